"""One decoded frame of a clip to upright RGB pixels, as a player would show it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream

from .limits import MAX_FRAMES_BYTES, MediaLimits, check_pixels

# Pixels more oblong than this are a broken header, not a film.
_MAX_PIXEL_ASPECT = 4.0
_HDR_CURVES = {16: "PQ", 18: "HLG"}  # transfer characteristics by their number in ITU-T H.273


class Canvas:
    """Turns frames into pictures of one common size and collects what the visitor should know.

    Pixels that are not square are stretched along the side that grows, so that a circle is a circle and no
    detail is lost; a display matrix (phone held sideways, mirrored selfie) is applied; transparency goes over
    white; 10-bit and grey come out as 8-bit RGB. HDR is not tone-mapped, and said so.
    """

    def __init__(self, name: str, limits: MediaLimits, stream: VideoStream) -> None:
        self.name = name
        self.limits = limits
        aspect = stream.sample_aspect_ratio
        self._pixel_aspect = float(aspect) if aspect else 1.0
        context = stream.codec_context
        if context.width and context.height:
            check_pixels(name, context.width, context.height, limits.max_video_pixels, "pixels a frame")
        self.plan(1)

    def plan(self, n_frames: int) -> None:
        """Start over; so many pictures will be asked for, and all of them must fit in memory."""
        self.notes: list[str] = []
        self._n_planned = n_frames
        self._first: VideoFrame | None = None  # rules size and turning of all: pictures must stack
        self._size = (0, 0)  # width, height before turning

    def picture(self, frame: VideoFrame) -> np.ndarray:
        """uint8 (height, width, 3)."""
        first = self._first
        if first is None:
            first = self._first = frame
            self._size = self._choose_size(frame)
        elif (first.width, first.height) != (frame.width, frame.height):
            self.notes.append("The picture size changes within the clip; all frames were scaled to the first's.")
        width, height = self._size
        has_alpha = any(component.is_alpha for component in frame.format.components)
        same_size = (width, height) == (frame.width, frame.height)
        scaler = Interpolation.BICUBIC if same_size else Interpolation.AREA
        pixels: np.ndarray = frame.reformat(
            width,
            height,
            "rgba" if has_alpha else "rgb24",
            interpolation=scaler | Interpolation.ACCURATE_RND,
        ).to_ndarray()
        if has_alpha:
            pixels = self._over_white(pixels)
        curve = _HDR_CURVES.get(frame.color_trc)
        if curve:
            self.notes.append(f"High dynamic range ({curve}) is shown without tone mapping; colours look pale.")
        pixels = self._turn(pixels, first)
        if frame is first:
            check_pixels(self.name, pixels.shape[1], pixels.shape[0], self.limits.max_video_pixels, "pixels a frame")
        return np.ascontiguousarray(pixels)

    def _choose_size(self, frame: VideoFrame) -> tuple[int, int]:
        check_pixels(self.name, frame.width, frame.height, self.limits.max_video_pixels, "pixels a frame")
        width, height = float(frame.width), float(frame.height)
        aspect = self._pixel_aspect
        if not 1 / _MAX_PIXEL_ASPECT <= aspect <= _MAX_PIXEL_ASPECT:
            self.notes.append(f"The pixel shape {aspect:g} : 1 in the header makes no sense and is ignored.")
        elif aspect != 1.0:
            self.notes.append(f"Pixels are {aspect:.3g} : 1 and not square; stretched as a player does.")
            width, height = width * max(1.0, aspect), height * max(1.0, 1 / aspect)
        total = 3 * width * height * self._n_planned
        most = min(total, float(MAX_FRAMES_BYTES), 3.0 * self.limits.max_video_pixels * self._n_planned)
        shrink = (most / total) ** 0.5
        if shrink < 1.0:
            self.notes.append(f"Frames were scaled to {shrink:.0%} of their size to bound memory.")
        return max(1, int(width * shrink + 1e-6)), max(1, int(height * shrink + 1e-6))

    def _over_white(self, rgba: np.ndarray) -> np.ndarray:
        alpha = rgba[..., 3:].astype(np.uint16)
        if int(alpha.min()) < 255:
            self.notes.append("Transparent parts are shown over white.")
        mixed = rgba[..., :3] * alpha + 255 * (255 - alpha)
        return ((mixed + 127) // 255).astype(np.uint8)

    def _turn(self, pixels: np.ndarray, frame: VideoFrame) -> np.ndarray:
        side_data: Any = frame.side_data  # PyAV's stubs call it a dict; it is a sequence of buffers
        matrix = next((bytes(data) for data in side_data if data.type.name == "DISPLAYMATRIX"), b"")
        if len(matrix) < 36:
            return pixels
        # A point (x, y) is shown at (a x + c y, b x + d y); quarter turns and mirrors only.
        a, b, _, c, d = struct.unpack("=9i", matrix[:36])[:5]
        if max(abs(b), abs(c)) > max(abs(a), abs(d)):
            pixels = pixels.transpose(1, 0, 2)
            flip_x, flip_y, turned = c < 0, b < 0, True
        else:
            flip_x, flip_y, turned = a < 0, d < 0, False
        if flip_x:
            pixels = pixels[:, ::-1]
        if flip_y:
            pixels = pixels[::-1]
        if turned or flip_x or flip_y:
            self.notes.append("Turned upright by the rotation in its header.")
        return pixels
