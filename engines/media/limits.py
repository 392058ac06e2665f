"""What a visitor may hand in, how many frames are taken from it, and the error that says why not."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

IMAGE_SUFFIXES: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
VIDEO_SUFFIXES: tuple[str, ...] = (
    ".mp4", ".m4v", ".mov", ".3gp", ".webm", ".mkv", ".avi", ".ogv", ".ts", ".m2ts",
)  # fmt: skip
# For file pickers only: what a file really is gets decided by its content.
SUFFIXES: tuple[str, ...] = IMAGE_SUFFIXES + VIDEO_SUFFIXES

ALLOWED = "a JPEG, PNG, WebP, GIF, BMP or TIFF image, or an MP4, MOV, WebM, MKV or AVI video"

MIB = 1024 * 1024
# Qwen's image processor refuses longer strips than this, so they are refused here, with a sentence.
MAX_ASPECT = 200
# All sampled frames of one clip together; above it they are scaled down, which the processor would do anyway.
MAX_FRAMES_BYTES = 200 * 10**6


class MediaError(ValueError):
    """A file that cannot be used. `str(error)` is one sentence for the visitor: what is wrong, what is
    allowed, what to do. It names the file by its base name only, never by a path on the server."""


@dataclass(frozen=True)
class MediaLimits:
    """Bounds on what is read; each must be positive.

    max_bytes: size of one file, in bytes.
    max_image_pixels: width x height of a still image, checked before any pixel is decoded.
    max_video_pixels: width x height of one frame of a video or an animation.
    max_duration_s: length of a clip, in seconds, by its timestamps and not by its header.
    max_frames: sampled frames of one clip; a larger `FrameSampling.max_frames` is lowered to it.
    max_items: files in one request.
    """

    max_bytes: int = 200 * MIB
    max_image_pixels: int = 50_000_000
    max_video_pixels: int = 4096 * 2304
    max_duration_s: float = 600.0
    max_frames: int = 64
    max_items: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name} must be a positive number, not {value}")


@dataclass(frozen=True)
class FrameSampling:
    """Which frames of a clip are taken: by rate (`fps`) or by count (`num_frames`), exactly one of them.

    fps: frames per second, (0, 240]; targets lie at t = 0, 1/fps, 2/fps, ...
    num_frames: that many frames spread evenly over the clip, 1-1024.
    max_frames: at most so many, 1-1024; a rate that would give more is spread evenly over the clip instead.
    """

    fps: float | None = 2.0
    num_frames: int | None = None
    max_frames: int = 16

    def __post_init__(self) -> None:
        if (self.fps is None) == (self.num_frames is None):
            raise ValueError(
                "give exactly one of fps and num_frames and set the other to None,"
                f" not fps={self.fps} with num_frames={self.num_frames}"
            )
        if self.fps is not None and not (math.isfinite(self.fps) and 0 < self.fps <= 240):
            raise ValueError(f"fps must lie in (0, 240], not {self.fps}")
        for name, value in (("num_frames", self.num_frames), ("max_frames", self.max_frames)):
            if value is not None and not (float(value).is_integer() and 1 <= value <= 1024):
                raise ValueError(f"{name} must be a whole number in 1-1024, not {value}")


def check_pixels(name: str, width: int, height: int, most: int, what: str = "pixels") -> None:
    """Refuse a picture that is too large, empty, or a longer strip than the model takes. `most` in pixels."""
    if width < 1 or height < 1:
        raise MediaError(f"{name} has no picture in it (its size is {width} x {height}): upload {ALLOWED}.")
    if width * height > most:
        raise MediaError(
            f"{name} is {width} x {height} = {_count(width * height)} {what}, and at most {_count(most)} are"
            " allowed: scale it down and upload it again."
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise MediaError(
            f"{name} is {width} x {height}, and the longer side may be at most {MAX_ASPECT} times the shorter"
            " one because the model takes no longer strip: crop it and upload it again."
        )


def _count(n: int) -> str:
    return f"{n / 1e6:.1f} million" if n >= 10**6 else f"{n:,}"


def check_duration(name: str, seconds: float, most: float) -> None:
    """Refuse a clip that is too long; both in seconds."""
    if seconds > most:
        raise MediaError(f"{name} is longer than {most:g} s, the longest clip allowed: cut it and upload it again.")
