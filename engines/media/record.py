"""What every decoder hands on: upright RGB frames, when each is shown, and a digest of the content."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["image", "video"]


@dataclass(frozen=True, eq=False)  # compare by `digest`: == on arrays gives an array
class Media:
    """One decoded image or clip.

    kind: "image" or "video"; an animated GIF, WebP or PNG is a video.
    name: base name of the file, safe to show.
    frames: uint8 (n_frames, height, width, 3), RGB, upright; n_frames = 1 for an image.
    timestamps_s: when each frame is shown, seconds after the first frame, rising strictly; () for an image.
    duration_s: length of the whole clip in seconds; None = unknown, or an image.
    source_fps: mean frame rate of the whole clip, frames a second; None = unknown, or an image.
    digest: sha256 in hex over kind, shape, pixels and timestamps. The name has no part in it.
    notes: what was done to the file or found wrong with it, plain sentences for the visitor.
    """

    kind: Kind
    name: str
    frames: np.ndarray
    timestamps_s: tuple[float, ...]
    duration_s: float | None
    source_fps: float | None
    digest: str
    notes: tuple[str, ...] = ()

    @property
    def n_frames(self) -> int:
        return int(self.frames.shape[0])

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.frames.shape[1])

    @property
    def width(self) -> int:
        """Pixels."""
        return int(self.frames.shape[2])


def media_of(
    kind: Kind,
    name: str,
    frames: np.ndarray,
    timestamps_s: tuple[float, ...] = (),
    duration_s: float | None = None,
    source_fps: float | None = None,
    notes: list[str] | None = None,
) -> Media:
    """Media with its digest; `frames` is uint8 (n, height, width, 3)."""
    frames = np.ascontiguousarray(frames)
    hasher = hashlib.sha256(f"{kind} {frames.shape}".encode())
    hasher.update(struct.pack(f"<{len(timestamps_s)}d", *timestamps_s))
    hasher.update(frames.data)
    unique_notes = tuple(dict.fromkeys(notes or ()))
    return Media(kind, name, frames, tuple(timestamps_s), duration_s, source_fps, hasher.hexdigest(), unique_notes)
