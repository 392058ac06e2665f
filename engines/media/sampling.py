"""Pick frames of a clip by the times at which they are really shown."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .limits import FrameSampling, MediaLimits

# Containers round times to a tick (Matroska: 1 ms). A frame that starts half a tick late still counts.
_TICK_S = 0.0005


def pick(
    times_s: Sequence[float], duration_s: float | None, sampling: FrameSampling, limits: MediaLimits
) -> tuple[list[int], list[str]]:
    """Indices of the frames to take, rising strictly and beginning with 0, and notes for the visitor.

    times_s: (n,) seconds after the first frame, rising strictly, n >= 1.
    duration_s: of the whole clip, None = unknown; by rate, the last frame counts for as long as it is shown.
    A rate finer than the clip's own takes every frame once. A count spreads over time; if a long still would
    make it name a frame twice, it spreads over the frames instead, so that the count asked for is kept.
    """
    times = np.asarray(times_s, dtype=np.float64)
    most = min(sampling.max_frames, limits.max_frames)
    notes: list[str] = []
    if sampling.num_frames is None:
        assert sampling.fps is not None  # FrameSampling sees to it
        # However long the last frame is said to stand, one more target than its beginning finds it.
        end_s = min(max(duration_s or 0.0, times[-1] + 2 * _TICK_S), times[-1] + 1.0 / sampling.fps + _TICK_S)
        n_targets = max(1, math.ceil((end_s - _TICK_S) * sampling.fps))
        chosen = _shown_at(times, np.arange(n_targets) / sampling.fps)
        if len(chosen) <= most:
            return chosen, notes
        notes.append(
            f"{sampling.fps:g} frames a second would be {len(chosen)} frames; {most} are allowed and were"
            " spread evenly over the clip."
        )
        return _spread(times, most), notes
    count = sampling.num_frames
    if count > most:
        notes.append(f"{count} frames were asked for and {most} are allowed.")
        count = most
    if count > len(times):
        notes.append(f"{count} frames were asked for and the clip holds {len(times)}.")
        count = len(times)
    return _spread(times, count), notes


def _shown_at(times: np.ndarray, targets: np.ndarray) -> list[int]:
    """Distinct indices of the last frame that has begun at each target time."""
    indices = np.searchsorted(times, targets + _TICK_S, side="right") - 1
    return [int(i) for i in np.unique(np.maximum(indices, 0))]


def _spread(times: np.ndarray, count: int) -> list[int]:
    chosen = _shown_at(times, np.linspace(0.0, times[-1], count))
    if len(chosen) == count:
        return chosen
    return [int(i) for i in np.round(np.linspace(0, len(times) - 1, count))]


def rate_and_duration(times_s: Sequence[float], last_frame_s: float | None) -> tuple[float | None, float | None]:
    """(mean frames a second, seconds in all); `last_frame_s`: how long the last is shown, None = unknown."""
    if len(times_s) < 2:
        return None, last_frame_s
    mean_gap = times_s[-1] / (len(times_s) - 1)
    return 1.0 / mean_gap, times_s[-1] + (mean_gap if last_frame_s is None else last_frame_s)
