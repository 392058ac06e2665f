"""Still pictures: bytes to upright 8-bit RGB.

Colour profiles are not applied, nor are they in the pipelines that such models are trained with.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ImageFile import ImageFile

from .limits import MediaError, MediaLimits, check_pixels
from .record import Media, media_of

# The readers are called directly and not through Image.open: that one compares the size with a process-wide
# bound and warns (once per process, for everybody) before ours, which is set per call, is looked at.
_READERS: dict[str, Callable[[BinaryIO, str], ImageFile]] = {
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "JPEG": JpegImagePlugin.jpeg_factory,
    "PNG": PngImagePlugin.PngImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
}

# What Pillow's readers raise on damaged files. They parse with plain indexing, asserts and struct.
PILLOW_ERRORS: tuple[type[Exception], ...] = (
    OSError, EOFError, SyntaxError, ValueError, IndexError, KeyError, TypeError, AttributeError,
    AssertionError, OverflowError, MemoryError, NotImplementedError, ZeroDivisionError, RuntimeError,
    struct.error, zlib.error, Image.DecompressionBombError,
    Warning,  # of damaged metadata; raised only where the process turns warnings into errors
)  # fmt: skip

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(file: BinaryIO, image_format: str, name: str) -> ImageFile:
    """Read the header only; no pixel is decoded."""
    try:
        return _READERS[image_format](file, "")
    except PILLOW_ERRORS as error:
        raise damaged(name) from error


def damaged(name: str) -> MediaError:
    return MediaError(
        f"{name} is damaged or incomplete and cannot be read as a picture: save it again or upload another copy."
    )


def read_image(image: ImageFile, name: str, limits: MediaLimits) -> Media:
    """Decode an opened still picture."""
    check_pixels(name, *image.size, limits.max_image_pixels)
    notes: list[str] = []
    try:
        # Pillow turns a TIFF while loading it and then forgets the tag; the others it leaves to us.
        turned_by_pillow = image.format == "TIFF" and _orientation(image) in _UPRIGHT
        pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
        image.load()
        how = _UPRIGHT.get(_orientation(image))
        rgb = to_rgb(image, notes)
    except PILLOW_ERRORS as error:
        raise damaged(name) from error
    if how is not None:
        rgb = rgb.transpose(how)
    if how is not None or turned_by_pillow:
        notes.append("Turned upright by its EXIF orientation.")
    if pages > 1:
        notes.append(f"The file has {pages} pages; only the first is used.")
    return media_of("image", name, np.asarray(rgb)[None], notes=notes)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except PILLOW_ERRORS:
        return 1  # an unreadable EXIF block is no reason to refuse the pixels


def to_rgb(image: Image.Image, notes: list[str]) -> Image.Image:
    """Any of Pillow's modes to RGB: 8 bit by scaling and not by clipping, transparency over white."""
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image), 65535.0, image.info.get("transparency"), notes)
    if image.mode == "I":
        values = np.asarray(image)
        # 32-bit files mostly hold 16-bit values; nothing in them says so.
        top = next(float(t) for t in (255, 65535, 2**32 - 1) if values.max() <= t)
        notes.append(f"32-bit grey, scaled so that {top:.0f} is white.")
        return _grey(values, top, image.info.get("transparency"), [])
    if image.mode == "F":
        return _float_grey(np.asarray(image), notes)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema()[0] != 255:
            notes.append("Transparent parts are shown over white.")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode == "CMYK":
        notes.append("Converted from CMYK without a colour profile.")
    return image.convert("RGB")


def _grey(values: np.ndarray, top: float, transparent: object, notes: list[str]) -> Image.Image:
    grey = np.round(np.clip(values, 0, top) * (255.0 / top)).astype(np.uint8)
    if top == 65535.0:
        notes.append("16-bit grey, scaled to 8 bits.")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _float_grey(values: np.ndarray, notes: list[str]) -> Image.Image:
    values = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    notes.append(f"Floating-point grey, scaled so that {low:g} is black and {high:g} is white.")
    scale = 255.0 / (high - low) if high > low else 0.0
    return Image.fromarray(np.round((values - low) * scale).astype(np.uint8)).convert("RGB")
