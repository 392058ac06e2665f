"""Decoded pixels to pictures small enough to send: what is shown is what the model was given, upright and all."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from app.session import Picture

LONGEST_PX = 1024
THUMBNAIL_PX = 320


def picture_of(frame: np.ndarray, longest_px: int = LONGEST_PX) -> Picture:
    """uint8 (height, width, 3) to a JPEG data URL whose longer side is at most `longest_px`."""
    return _encoded(Image.fromarray(frame), longest_px)


def smaller(picture: Picture, longest_px: int) -> Picture:
    """The same, its longer side at most `longest_px`."""
    if max(picture.width, picture.height) <= longest_px:
        return picture
    return _encoded(Image.open(io.BytesIO(base64.b64decode(picture.url.partition(",")[2]))), longest_px)


def _encoded(image: Image.Image, longest_px: int) -> Picture:
    image.thumbnail((longest_px, longest_px), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return Picture(
        "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"), image.width, image.height
    )
