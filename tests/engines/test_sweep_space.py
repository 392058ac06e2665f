"""Which points a sweep tries, and the plan that it writes down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.config import CompressionConfig
from engines.engine import Engine
from engines.sets import EvalSet
from engines.sweep.measure import order
from engines.sweep.plan import SweepPlan, make_plan
from engines.sweep.space import Axis, Space, check_points, config_of, grid, sample
from tests.app.fake import capabilities

RATIOS = Axis.parse("pruning.keep_ratio=1, 0.5,0.25")
EXPERTS = Axis.parse("experts.top_k=4,2")


def plan_of(points: int = 3, items: int = 7, **options: object) -> SweepPlan:
    found = EvalSet("set", (), items, (), True, "f" * 64)
    ratios = tuple((f"pruning.keep_ratio={1 - place / (points + 1):.3f}",) for place in range(1, points + 1))
    return make_plan(ratios, found, capabilities(), "somewhere", **options)


def test_a_grid_is_every_combination_on_top_of_the_base() -> None:
    points = grid(Space((RATIOS, EXPERTS), ("pruning.method=random",)))
    assert len(points) == len(set(points)) == 6
    assert points[-1] == ("pruning.method=random", "pruning.keep_ratio=0.25", "experts.top_k=2")
    config = config_of(points[-1])
    assert (config.pruning.method, config.pruning.keep_ratio, config.experts.top_k) == ("random", 0.25, 2)


def test_points_that_come_to_the_same_settings_are_run_once() -> None:
    assert len(grid(Space((Axis.parse("pruning.keep_ratio=0.5,0.50,5e-1"),)))) == 1


def test_a_sample_is_drawn_from_the_grid_without_repeats_and_again_the_same() -> None:
    space = Space(tuple(Axis(f"pruning.options.x{n}", tuple(map(str, range(10)))) for n in range(9)))
    drawn = sample(space, 60, seed=3)
    assert len(set(drawn)) == 60
    assert drawn == sample(space, 60, seed=3)
    assert drawn != sample(space, 60, seed=4)
    assert set(sample(Space((RATIOS, EXPERTS)), 4, 0)) < set(grid(Space((RATIOS, EXPERTS))))
    assert sample(Space((RATIOS,)), 99, 0) == grid(Space((RATIOS,)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pruning.keep_ratio", "not of the form"),
        ("pruning.keep_ratio=", "has no value"),
        ("pruning.keep_ratio=0.5,0.5", "names a value twice"),
        ("pruning.keep_ratio=0.5,2", r"pruning.keep_ratio is 2; it must be a number above 0 and at most 1"),
        ("pruning.keep=0.5", "Unknown setting pruning.keep"),
        ("prune.keep=0.5", "Unknown group"),
        ("precision.vision=int3", "must be one of"),
    ],
)
def test_an_axis_that_cannot_be_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Axis.parse(text)


def test_a_space_that_cannot_be_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="at least one axis"):
        Space(())
    with pytest.raises(ValueError, match="the same setting"):
        Space((RATIOS, RATIOS))
    with pytest.raises(ValueError, match="at most 1000"):
        grid(Space(tuple(Axis(f"pruning.options.x{n}", tuple(map(str, range(10)))) for n in range(4))))
    with pytest.raises(ValueError, match="at least 1"):
        sample(Space((RATIOS,)), 0, 0)


def test_what_the_checkpoint_cannot_do_is_said_with_its_point(moe: Engine, engines: dict[str, Engine]) -> None:
    check_points(moe, grid(Space((RATIOS, EXPERTS))))
    with pytest.raises(ValueError, match=r"experts.top_k=99 cannot be run here: .*at most 4"):
        check_points(moe, [("experts.top_k=99",)])
    with pytest.raises(ValueError, match=r"experts.top_k=2 cannot be run here: .*dense"):
        check_points(engines["qwen3_vl"], [("experts.top_k=2",)])


def test_the_full_model_is_always_the_first_point_and_never_twice() -> None:
    found = EvalSet("set", (), 5, (), True, "f")
    plan = make_plan(grid(Space((RATIOS,))), found, capabilities(), "all")
    assert plan.points == ((), ("pruning.keep_ratio=0.5",), ("pruning.keep_ratio=0.25",))
    assert config_of(plan.points[0]) == CompressionConfig.full()


def test_a_plan_survives_json_and_its_fingerprint_tells_plans_apart() -> None:
    plan = plan_of()
    assert SweepPlan.from_json(plan.to_json()) == plan
    changed = [
        replace(plan, **{name: value})
        for name, value in {"every": 2, "repeats": 4, "seed": 1, "digest": "x", "device": "x", "timed_items": 3}.items()
    ]
    assert len({other.fingerprint for other in [plan, *changed]}) == len(changed) + 1
    with pytest.raises(ValueError, match="format 99"):
        SweepPlan.from_dict({**plan.to_dict(), "schema_version": 99})
    with pytest.raises(ValueError, match="cannot be read"):
        SweepPlan.from_dict({**plan.to_dict(), "colour": 1})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"repeats": 101}, "at most 100"),
        ({"timed_items": -1}, "timed_items is -1"),
        ({"every": True}, "every is True"),
        ({"points": (("pruning.keep_ratio=0.5",),)}, "must be the full model"),
        ({"points": ((), ("pruning.keep_ratio=7",))}, "keep_ratio is 7"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(change: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SweepPlan.from_dict({**plan_of().to_dict(), **change})
    with pytest.raises(ValueError, match="no row"):
        make_plan((), EvalSet("empty", (), 0, (), False, "f"), capabilities(), str(Path("x")))


def test_timed_items_are_spread_evenly_and_repeats_are_interleaved() -> None:
    plan = plan_of(points=4, items=20, timed_items=4, repeats=3)
    assert plan.timed == {0, 5, 10, 15}
    assert plan.runs == 5 * (20 + 4 * 2)
    orders = {item: list(order(plan, item)) for item in range(20)}
    assert sum(map(len, orders.values())) == plan.runs
    assert all(len(set(keys)) == len(keys) for keys in orders.values())
    rounds = [[key[0] for key in orders[5] if key[2] == repeat] for repeat in range(3)]
    assert all(sorted(one) == [0, 1, 2, 3, 4] for one in rounds)
    # A repeat ends before the next begins, and no point always comes first.
    assert [key[2] for key in orders[5]] == [0] * 5 + [1] * 5 + [2] * 5
    assert len({one[0] for one in rounds}) == 3
    firsts = [orders[item][0][0] for item in range(20)]
    assert all(firsts.count(point) == 4 for point in range(5))
    assert {key[0] for key in order(plan, 3, only={0, 2})} == {0, 2}
    assert plan_of(timed_items=0).timed == frozenset()
