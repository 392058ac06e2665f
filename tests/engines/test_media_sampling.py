"""Which frames are picked, and what the settings refuse."""

from __future__ import annotations

import ast
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

import engines.media
from engines.media import FrameSampling, MediaLimits
from engines.media.sampling import pick, rate_and_duration

LIMITS = MediaLimits()


def even(n: int, fps: float) -> list[float]:
    return [i / fps for i in range(n)]


def picked(
    times: list[float], sampling: FrameSampling, duration_s: float | None = None, limits: MediaLimits = LIMITS
) -> list[int]:
    return pick(times, duration_s, sampling, limits)[0]


@pytest.mark.parametrize(
    ("times", "duration_s", "sampling", "expected"),
    [
        (even(30, 10), 3.0, FrameSampling(), [0, 5, 10, 15, 20, 25]),
        (even(31, 10), 3.1, FrameSampling(), [0, 5, 10, 15, 20, 25, 30]),
        (even(90, 30), 3.0, FrameSampling(fps=1), [0, 30, 60]),
        (even(75, 25), 3.0, FrameSampling(fps=2), [0, 12, 25, 37, 50, 62]),
        ([0.0], None, FrameSampling(), [0]),
        ([0.0], 7.0, FrameSampling(), [0]),
        (even(3, 10), 0.3, FrameSampling(), [0]),
        (even(5, 2), 2.5, FrameSampling(fps=30), [0, 1, 2, 3, 4]),
        ([0.0, 0.9], 1.8, FrameSampling(), [0, 1]),
        ([0.0, 0.9], None, FrameSampling(), [0]),
        ([0.0, 0.9], 1e9, FrameSampling(), [0, 1]),
        ([0.0, 0.333, 0.667, 1.0], 1.333, FrameSampling(fps=3), [0, 1, 2, 3]),
        ([0.0, 5.0, 5.1, 5.2], 5.3, FrameSampling(), [0, 1]),
        (even(600, 10), 60.0, FrameSampling(max_frames=4), [0, 199, 399, 599]),
        (even(30, 10), 3.0, FrameSampling(fps=None, num_frames=1), [0]),
        (even(30, 10), 3.0, FrameSampling(fps=None, num_frames=2), [0, 29]),
        (even(31, 10), 3.1, FrameSampling(fps=None, num_frames=4), [0, 10, 20, 30]),
        (even(5, 10), 0.5, FrameSampling(fps=None, num_frames=5), [0, 1, 2, 3, 4]),
        (even(5, 10), 0.5, FrameSampling(fps=None, num_frames=12), [0, 1, 2, 3, 4]),
        ([0.0, 9.0, 9.1, 9.2], 9.3, FrameSampling(fps=None, num_frames=3), [0, 2, 3]),
        (even(100, 10), 10.0, FrameSampling(fps=None, num_frames=50, max_frames=3), [0, 49, 99]),
    ],
)
def test_picked(times: list[float], duration_s: float | None, sampling: FrameSampling, expected: list[int]) -> None:
    assert picked(times, sampling, duration_s) == expected


def test_always_rising_from_the_first_and_never_too_many() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        n = int(rng.integers(1, 80))
        times = [0.0, *np.cumsum(rng.choice([0.001, 0.04, 0.5, 7.0], n)).tolist()]
        most = int(rng.integers(1, 20))
        by_rate = FrameSampling(fps=float(rng.choice([0.01, 0.5, 2, 30, 240])), max_frames=most)
        by_count = FrameSampling(fps=None, num_frames=int(rng.integers(1, 40)), max_frames=most)
        for sampling in (by_rate, by_count):
            chosen = picked(times, sampling, rng.choice([None, times[-1] + 0.5]))
            assert chosen[0] == 0
            assert len(chosen) <= most
            assert all(later > earlier for earlier, later in itertools.pairwise(chosen))
        assert len(picked(times, by_count)) == min(len(times), most, by_count.num_frames or 0)


def test_what_was_not_followed_is_told() -> None:
    ten = even(10, 10)
    assert pick(ten, 1.0, FrameSampling(), LIMITS)[1] == []
    assert "the clip holds 10" in pick(ten, 1.0, FrameSampling(fps=None, num_frames=12), LIMITS)[1][0]
    assert "16 are allowed" in pick(even(99, 9), 11.0, FrameSampling(fps=9), LIMITS)[1][0]
    few = MediaLimits(max_frames=4)
    chosen, notes = pick(ten, 1.0, FrameSampling(fps=None, num_frames=8), few)
    assert len(chosen) == 4
    assert "4 are allowed" in notes[0]


def test_rate_and_duration() -> None:
    assert rate_and_duration([0.0], None) == (None, None)
    assert rate_and_duration([0.0], 0.5) == (None, 0.5)
    assert rate_and_duration([0.0, 0.5, 1.0], None) == (2.0, 1.5)
    assert rate_and_duration([0.0, 0.5, 1.0], 3.0) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fps": 0}, "fps must lie in (0, 240], not 0"),
        ({"fps": -1.5}, "not -1.5"),
        ({"fps": 241}, "not 241"),
        ({"fps": math.nan}, "not nan"),
        ({"fps": None}, "exactly one of fps and num_frames"),
        ({"num_frames": 8}, "not fps=2.0 with num_frames=8"),
        ({"fps": None, "num_frames": 0}, "num_frames must be a whole number in 1-1024, not 0"),
        ({"fps": None, "num_frames": 2.5}, "not 2.5"),
        ({"max_frames": 0}, "max_frames must be a whole number in 1-1024, not 0"),
        ({"max_frames": 5000}, "not 5000"),
    ],
)
def test_sampling_settings_are_checked(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        FrameSampling(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_bytes", "max_image_pixels", "max_duration_s", "max_frames", "max_items"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive number, not -1"):
        MediaLimits(**{name: -1})


def test_room_knows_no_model_and_no_page() -> None:
    folder = Path(engines.media.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"torch", "transformers", "gradio", "engines"}
