"""Accuracy: the intervals are Wilson's, and every question is judged by the one rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.config import CompressionConfig
from engines.evaluation import Item, Score, evaluate, report, wilson
from tests.app.fake import FakeEngine


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_the_published_ones(right: int, asked: int, low: float, high: float) -> None:
    assert wilson(right, asked) == pytest.approx((low, high), abs=5e-5)


def test_a_wilson_interval_holds_the_shares_that_a_score_test_accepts() -> None:
    """The slow way: all shares p whose distance from the observed one is within 1.96 of their own deviations."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        asked = int(rng.integers(1, 60))
        right = int(rng.integers(0, asked + 1))
        shares = np.linspace(1e-6, 1 - 1e-6, 200_001)
        accepted = shares[np.abs(right / asked - shares) <= 1.959964 * np.sqrt(shares * (1 - shares) / asked)]
        assert wilson(right, asked) == pytest.approx((accepted.min(), accepted.max()), abs=2e-5)


@pytest.mark.parametrize(("right", "asked"), [(0, 0), (3, 2), (-1, 5)])
def test_no_interval_without_a_share(right: int, asked: int) -> None:
    with pytest.raises(ValueError, match=f"{right} right of {asked}"):
        wilson(right, asked)
    assert Score(0, 0).accuracy is None
    assert Score(0, 0).low is None


def test_questions_are_judged_and_added_up_by_group() -> None:
    said = "A red circle"
    asked = [
        Item((), "?", "a red circle.", {"category": "list", "language": "en"}),
        Item((), "?", "blue", {"category": "colour", "language": "en"}),
        Item((), "?", "A  RED circle", {"category": "list", "language": "zh"}),
    ]
    judged = list(evaluate(FakeEngine(), asked, CompressionConfig.full()))
    assert [one.answer for one in judged] == [said] * 3
    assert [one.right for one in judged] == [True, False, True]
    found = report(judged)
    assert (found.overall.right, found.overall.asked) == (2, 3)
    assert found.groups["category"] == {"list": Score(2, 2), "colour": Score(1, 0)}
    assert found.groups["language"] == {"en": Score(2, 1), "zh": Score(1, 1)}
    assert found.to_dict()["category"]["colour"]["accuracy"] == 0.0
    assert 0 < found.to_dict()["overall"]["low"] < 2 / 3 < found.to_dict()["overall"]["high"] < 1


def test_an_item_is_asked_greedily_with_its_own_media_and_frames() -> None:
    engine = FakeEngine()
    list(evaluate(engine, [Item((Path("a.png"),), "What?", "x")], CompressionConfig.full()))
    request, _ = engine.seen[-1]
    assert (request.question, request.media, request.warm_up) == ("What?", (Path("a.png"),), False)
    assert request.sampling.temperature == 0
