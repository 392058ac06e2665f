"""Animated GIF, WebP and PNG: a clip whose frames carry their own durations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

from .image import PILLOW_ERRORS, damaged, open_image, to_rgb
from .limits import MAX_FRAMES_BYTES, FrameSampling, MediaError, MediaLimits, check_duration, check_pixels
from .record import Media, media_of
from .sampling import pick, rate_and_duration

# These formats have no key frames: to see the last frame, all before it are drawn. A small file can ask for
# hours of that, so the drawing is bounded, in pixels over all frames (a few seconds of work).
MAX_DRAWN_PIXELS = 2 * 10**9
# Every browser plays frames of 10 ms and less at this pace.
_HASTY_MS, _BROWSER_MS = 10, 100


def is_animated(image: ImageFile) -> bool:
    """Whether more than one frame is there to be played."""
    try:
        return image.format in ("GIF", "WEBP", "PNG") and _frame_count(image) > 1
    except PILLOW_ERRORS:
        return False


def _first(image: ImageFile) -> int:
    # An animated PNG may begin with a stand-in for old viewers that is no part of the animation.
    return 1 if image.format == "PNG" and getattr(image, "default_image", False) else 0


def _frame_count(image: ImageFile) -> int:
    return getattr(image, "n_frames", 1) - _first(image)


def read_animation(file: BinaryIO, image_format: str, name: str, limits: MediaLimits, sampling: FrameSampling) -> Media:
    """Two passes over the frames: when each is shown, then the pixels of those that are picked."""
    image = open_image(file, image_format, name)
    check_pixels(name, *image.size, limits.max_video_pixels, "pixels a frame")
    promised = _frame_count(image)
    notes: list[str] = []
    starts_s: list[float] = []
    clock_ms, drawn, last_ms = 0.0, 0, 0.0
    for frame in _frames(image, name, limits):
        starts_s.append(clock_ms / 1000)
        last_ms = float(frame.info.get("duration") or 0)
        if last_ms <= _HASTY_MS:
            last_ms = _BROWSER_MS
            notes.append("Frames without a usable duration are shown for 0.1 s, as browsers do.")
        clock_ms += last_ms
        check_duration(name, clock_ms / 1000, limits.max_duration_s)
        drawn += frame.width * frame.height
        if drawn > MAX_DRAWN_PIXELS:
            raise MediaError(
                f"{name} has more than {MAX_DRAWN_PIXELS / 1e9:g} billion pixels over all its frames, too"
                " many to draw: scale it down, or save it as MP4."
            )
    if not starts_s:
        raise damaged(name)
    if len(starts_s) < promised:
        notes.append(f"The container promised {promised} frames and held {len(starts_s)}.")

    fps, duration_s = rate_and_duration(starts_s, last_ms / 1000)
    chosen, pick_notes = pick(starts_s, duration_s, sampling, limits)
    file.seek(0)
    image = open_image(file, image_format, name)
    frame_bytes = 3 * image.width * image.height
    shrink = min(1.0, (MAX_FRAMES_BYTES / (frame_bytes * len(chosen))) ** 0.5)
    if shrink < 1.0:
        notes.append(f"Frames were scaled to {shrink:.0%} of their size to bound memory.")
    size = (max(1, int(image.width * shrink)), max(1, int(image.height * shrink)))
    wanted = set(chosen)
    pictures: list[np.ndarray] = []
    for i, frame in enumerate(_frames(image, name, limits)):
        if i in wanted:
            try:
                rgb = to_rgb(frame, notes)
            except PILLOW_ERRORS as error:
                raise damaged(name) from error
            pictures.append(np.asarray(rgb if rgb.size == size else rgb.resize(size, Image.Resampling.BOX)))
            if len(pictures) == len(chosen):
                break
    times = tuple(starts_s[i] for i in chosen[: len(pictures)])
    return media_of("video", name, np.stack(pictures), times, duration_s, fps, notes + pick_notes)


def _frames(image: ImageFile, name: str, limits: MediaLimits) -> Iterator[ImageFile]:
    """The frames that can be drawn, in order; ends at the first damaged one."""
    for i in range(_first(image), _first(image) + _frame_count(image)):
        try:
            image.seek(i)
            image.load()
        except PILLOW_ERRORS:
            return
        # A frame of a GIF may lie outside of the canvas, which Pillow then enlarges.
        check_pixels(name, *image.size, limits.max_video_pixels, "pixels a frame")
        yield image
