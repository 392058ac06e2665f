"""The Pareto front, medians with bounds, and finding a setting: known answers and slow references."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest

from engines.evaluation import Score
from engines.sweep.find import find_fastest
from engines.sweep.front import COSTS, QUALITIES, pareto_front
from engines.sweep.medians import Median, median_of
from engines.sweep.results import PointResult


def point(name: int, cost: float | None, right: int | None, **changes: object) -> PointResult:
    values: dict = {
        "settings": (f"sampling.seed={name}",),
        "score": None if right is None else Score(100, right),
        "groups": {"category": {"colour": Score(4, 3)}},
        "agreement": Score(10, 7),
        "kl": 0.25,
        "ttft_s": None,
        "total_s": None if cost is None else Median(cost, cost, cost, 1, 0.0),
        "ttft_ratio": None,
        "total_ratio": None,
        "peak_bytes": None,
        "weight_bytes": 5,
        "kv_bytes": None,
        "keep_ratio": 0.5,
        "asked": 100,
        "failed": 0,
    }
    return PointResult(**{**values, **changes})


def front_of(points: list[PointResult]) -> tuple[PointResult, ...]:
    return pareto_front(points, COSTS["total"], QUALITIES["accuracy"])


def test_a_known_front() -> None:
    """Points on a rising curve are the front; whatever was moved to the worse of them is not."""
    on = [point(place, cost=1.0 + place, right=50 + place * 5) for place in range(8)]
    off = [point(100 + place, cost=1.5 + place, right=48 + place * 5) for place in range(8)]
    unmeasured = [point(200, None, 99), point(201, 0.1, None), point(202, math.nan, 99)]
    mixed = [*off, *reversed(on), *unmeasured]
    assert front_of(mixed) == tuple(on)
    assert front_of([]) == ()
    assert front_of(unmeasured) == ()


def test_duplicates_are_all_on_the_front_and_ties_in_one_figure_are_decided_by_the_other() -> None:
    best, same = point(1, 1.0, 80), point(2, 1.0, 80)
    slower, worse = point(3, 2.0, 80), point(4, 1.0, 70)
    assert front_of([worse, best, slower, same]) == (best, same)


def test_the_front_is_the_brute_force_one() -> None:
    draw = random.Random(0)
    for _ in range(200):
        points = [
            point(place, draw.choice([None, *range(1, 9)]), draw.choice([None, *range(8)]))
            for place in range(draw.randrange(1, 25))
        ]
        measured = [
            (one.total_s.value, one.accuracy, one) for one in points if one.total_s and one.accuracy is not None
        ]
        expected = {
            one.settings
            for cost, worth, one in measured
            if not any(c <= cost and w >= worth and (c < cost or w > worth) for c, w, _ in measured)
        }
        found = front_of(points)
        assert {one.settings for one in found} == expected
        assert [COSTS["total"](one) for one in found] == sorted(COSTS["total"](one) or 0 for one in found)


def test_divergence_ranks_the_smaller_first() -> None:
    near, far = point(1, 1.0, 1, kl=0.1), point(2, 1.0, 1, kl=0.2)
    assert pareto_front([far, near], COSTS["total"], QUALITIES["kl"]) == (near,)


def test_a_result_survives_json() -> None:
    one = point(1, 2.0, 80, ttft_ratio=Median(0.5, 0.4, 0.6, 9, 0.96), errors=("It broke.",), failed=1, warm=True)
    assert PointResult.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    bare = point(2, None, None, agreement=None, groups={}, kl=None)
    assert PointResult.from_dict(json.loads(json.dumps(bare.to_dict()))) == bare
    with pytest.raises(ValueError, match="format 99"):
        PointResult.from_dict({**one.to_dict(), "schema_version": 99})


# ---- medians ----


@pytest.mark.parametrize(
    ("n", "k"),
    # The ranks that tables of the sign test give for 95 % (Conover, 1999).
    [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (30, 10)],
)
def test_bounds_are_the_order_statistics_of_the_sign_test(n: int, k: int) -> None:
    values = list(range(1, n + 1))
    random.Random(n).shuffle(values)
    found = median_of(values)
    assert found is not None
    assert (found.low, found.high, found.n) == (k, n + 1 - k, n)
    assert found.value == statistics.median(values)
    assert found.coverage >= 0.95


def test_few_values_give_their_range_and_say_how_little_it_covers() -> None:
    assert median_of([3.0, None, 1.0]) == Median(2.0, 1.0, 3.0, 2, 0.5)
    assert median_of([7.0]) == Median(7.0, 7.0, 7.0, 1, 0.0)
    assert median_of([None]) is None


def test_bounds_hold_the_true_median_as_often_as_they_say() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        found = median_of(draw.lognormvariate(0, 1) for _ in range(11))
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert found is not None
    assert held / 2000 == pytest.approx(found.coverage, abs=0.015)


# ---- find ----


def test_finding_asks_few_and_finds_the_last_that_keeps_the_floor() -> None:
    for count in (1, 2, 3, 7, 16):
        for last in range(-1, count):
            asked: list[int] = []

            def quality(place: int, last: int = last, asked: list[int] = asked) -> float:
                asked.append(place)
                return 1.0 - 0.001 * place if place <= last else 0.5

            found = find_fastest(count, quality, 0.97)
            assert found.place == (last if last >= 0 else None)
            assert found.monotone
            assert len(asked) == len(set(asked)) <= 2 + math.ceil(math.log2(count))
            assert list(found.tried) == asked


def test_a_quality_that_is_not_monotone_is_said_and_everything_is_tried() -> None:
    qualities = [1.0, 0.99, 0.5, 0.6, 0.97, 0.2, 0.96, 0.1]
    found = find_fastest(len(qualities), qualities.__getitem__, 0.965)
    assert (found.place, found.monotone, len(found.tried)) == (4, False, 8)
    assert "does not fall steadily" in found.note


@pytest.mark.parametrize(("count", "floor"), [(0, 0.9), (3, 0.0), (3, 1.5)])
def test_nothing_to_find(count: int, floor: float) -> None:
    with pytest.raises(ValueError, match=r"no value|floor is"):
        find_fastest(count, lambda place: 1.0, floor)
