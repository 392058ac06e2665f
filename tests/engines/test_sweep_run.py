"""A sweep on a real, tiny engine: judged and timed beside the full model, kept as it comes, resumed where it ended."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.config import CompressionConfig
from engines.engine import Engine
from engines.evaluation import Item
from engines.media import MediaError
from engines.results import RunRequest
from engines.sets import EvalSet
from engines.sweep.plan import SweepPlan, make_plan
from engines.sweep.results import PointResult
from engines.sweep.runner import SweepProgress, run_sweep
from engines.sweep.store import SweepStore
from tests.app.fake import FakeEngine

POINTS = (("pruning.keep_ratio=0.25",), ("experts.top_k=1",), ("pruning.keep_ratio=0.5", "pruning.method=random"))


@pytest.fixture
def items(media_files: dict[str, Path]) -> EvalSet:
    asked = [
        Item((media_files[name],), f"What is {word}?", answer, {"category": word})
        for name, word, answer in [("wide", "this", "x"), ("clip", "that", ""), ("tall", "this", "A red circle")]
    ]
    return EvalSet("three", tuple(asked), 3, (), True, "f" * 64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    with SweepStore(tmp_path / "sweep.sqlite") as opened:
        yield opened


def plan_of(engine: Any, items: EvalSet, **options: Any) -> SweepPlan:
    values = {"repeats": 2, "timed_items": 1, "max_new_tokens": 4, **options}
    return make_plan(POINTS, items, engine.capabilities(), "three", **values)


def last(steps: Iterator[SweepProgress]) -> tuple[PointResult, ...]:
    *_, end = steps
    assert end.points is not None
    assert end.done == end.total
    return end.points


def quality(points: tuple[PointResult, ...]) -> list[object]:
    """What does not depend on the clock."""
    return [
        replace(point, ttft_s=None, total_s=None, ttft_ratio=None, total_ratio=None, peak_bytes=None)
        for point in points
    ]


def test_every_point_answers_every_item_and_is_compared_with_the_full_model(
    moe: Engine, items: EvalSet, store: SweepStore
) -> None:
    plan = plan_of(moe, items, measure_kl=True)
    points = last(run_sweep(moe, plan, items, store))
    assert [point.settings for point in points] == [(), *POINTS]
    full = points[0]
    for point in points:
        assert (point.asked, point.failed) == (3, 0)
        assert point.score is not None
        assert point.score.asked == 2  # the third has no right answer
        assert point.groups["category"].keys() == {"this"}
        for median in (point.ttft_s, point.total_s, point.ttft_ratio, point.total_ratio):
            assert median is not None
            assert median.n == 1
            assert median.value > 0
        assert point.weight_bytes
        assert point.kv_bytes
    assert full.agreement is not None
    assert (full.agreement.accuracy, full.kl) == (1.0, 0.0)
    assert full.ttft_ratio is not None
    assert full.ttft_ratio.value == 1.0
    assert points[1].keep_ratio == pytest.approx(0.25, abs=0.03)
    assert all(point.kl is not None and point.kl > 0 for point in points[1:])
    # Answers that nothing was reused for are the same: the engine asked directly.
    for row in store.rows(plan):
        item = items.items[row.item]
        request = RunRequest(item.question, item.media, sampling=replace(RunRequest("").sampling, max_new_tokens=4))
        config = CompressionConfig.full().with_settings(plan.points[row.point])
        assert row.answer == moe.answer(request, config).answer
        assert (row.ttft_s is not None) == row.timed == (row.item == 0)


def test_nothing_is_left_in_the_caches_and_an_unmeasured_divergence_is_none(
    moe: Engine, items: EvalSet, store: SweepStore
) -> None:
    points = last(run_sweep(moe, plan_of(moe, items, timed_items=0), items, store))
    assert all(stats.entries == 0 for stats in moe.cache_totals().values())
    assert all(point.kl is None and point.ttft_s is None and point.ttft_ratio is None for point in points)


def test_a_stopped_sweep_goes_on_where_it_ended(moe: Engine, items: EvalSet, store: SweepStore, tmp_path: Path) -> None:
    plan = plan_of(moe, items)
    with SweepStore(tmp_path / "other.sqlite") as other:
        undisturbed = last(run_sweep(moe, plan, items, other))
    done = 0
    for stop_after in (3, 7):
        cancel = threading.Event()
        seen = []
        for step in run_sweep(moe, plan, items, store, cancel):
            seen.append(step)
            if step.done >= stop_after:
                cancel.set()
        assert seen[0].done == done
        assert seen[-1].points is not None
        done = seen[-1].done
        assert stop_after <= done < plan.runs
        assert store.count(plan) == done
    resumed = list(run_sweep(moe, plan, items, store))
    assert resumed[0].done == done
    assert len(resumed) == plan.runs - done + 2
    assert resumed[-1].points is not None
    assert quality(resumed[-1].points) == quality(undisturbed)
    again = list(run_sweep(moe, plan, items, store))
    assert [step.done for step in again] == [plan.runs] * 2


def test_closing_the_iterator_keeps_what_was_done_and_frees_the_plan(
    moe: Engine, items: EvalSet, store: SweepStore
) -> None:
    plan = plan_of(moe, items)
    with closing(run_sweep(moe, plan, items, store)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.done == 2:
                break
    assert store.count(plan) == 2
    last(run_sweep(moe, plan, items, store))


def test_only_some_points_then_the_others(moe: Engine, items: EvalSet, store: SweepStore) -> None:
    plan = plan_of(moe, items)
    some = last(run_sweep(moe, plan, items, store, only={2}))
    assert [point.settings for point in some] == [(), POINTS[1]]
    assert len(last(run_sweep(moe, plan, items, store))) == 4
    assert store.count(plan) == plan.runs


def test_two_cannot_run_one_plan_at_a_time_and_other_plans_are_free(
    moe: Engine, items: EvalSet, store: SweepStore, tmp_path: Path
) -> None:
    plan = plan_of(moe, items)
    first = run_sweep(moe, plan, items, store)
    next(first)
    with SweepStore(store.path) as other:
        with pytest.raises(ValueError, match="being run already"):
            next(run_sweep(moe, plan, items, other))
        with pytest.raises(ValueError, match="being run already"):
            other.delete(plan)
        last(run_sweep(moe, plan_of(moe, items, seed=1), items, other))
    first.close()  # type: ignore[attr-defined]
    last(run_sweep(moe, plan, items, store))
    assert [one.seed for one in store.plans()] == [0, 1]
    store.delete(plan)
    assert (store.rows(plan), [one.seed for one in store.plans()]) == ([], [1])


def test_an_item_that_fails_is_kept_with_its_reason_and_the_rest_goes_on(items: EvalSet, store: SweepStore) -> None:
    engine = FakeEngine(fail=MediaError("photo.png is broken."))
    # Runs that are not timed differ from the full model in their cache alone; timed ones are the point's own.
    plan = plan_of(engine, items, timed_items=3, repeats=1)
    points = last(run_sweep(engine, plan, items, store))
    assert [(point.asked, point.failed) for point in points] == [(3, 0), (0, 3), (0, 3), (0, 3)]
    assert points[1].errors == ("photo.png is broken.",)
    assert (points[1].score, points[1].agreement, points[1].total_s) == (None, None, None)
    assert points[0].score is not None


def test_turns_are_taken_run_by_run_and_given_back(items: EvalSet, store: SweepStore) -> None:
    engine, held, most = FakeEngine(), [0], [0]

    @contextmanager
    def turn() -> Iterator[bool]:
        held[0] += 1
        most[0] += 1
        assert held[0] == 1
        try:
            yield most[0] <= 5
        finally:
            held[0] -= 1
            assert engine.open_runs == 0

    plan = plan_of(engine, items)
    steps = list(run_sweep(engine, plan, items, store, turn=turn))
    assert len(engine.seen) == steps[-1].done == 5
    assert held == [0]
    assert {request.scope.tenant for request, _ in engine.seen} == {engine.cleared[-1][1]} != {"local"}


def test_timed_runs_are_warmed_up_and_reuse_nothing_that_their_settings_do_not(
    items: EvalSet, store: SweepStore
) -> None:
    engine = FakeEngine()
    found = replace(items, fingerprint="c")
    plan = make_plan(
        [("cache.encoder=true",), ("pruning.keep_ratio=0.5",)],
        found, engine.capabilities(), "three", repeats=2, timed_items=1,
    )  # fmt: skip
    points = last(run_sweep(engine, plan, found, store))
    assert [point.warm for point in points] == [False, True, False]
    timed = [(request, config) for request, config in engine.seen if request.media == items.items[0].media]
    # Three points twice, and the one that caches once before, so that it is timed with its cache filled.
    assert len(timed) == 7
    assert all(request.warm_up for request, _ in timed)
    assert sum(config.cache.encoder for _, config in timed) == 3
    others = [(request, config) for request, config in engine.seen if request.media != items.items[0].media]
    assert len(others) == 6
    assert all(config.cache.encoder and not request.warm_up for request, config in others)


@pytest.mark.parametrize(
    ("change", "word"), [("digest", "checkpoint"), ("device", "device"), ("set_fingerprint", "set")]
)
def test_a_plan_of_something_else_is_not_mixed_in(items: EvalSet, store: SweepStore, change: str, word: str) -> None:
    engine = FakeEngine()
    with pytest.raises(ValueError, match=word):
        next(run_sweep(engine, replace(plan_of(engine, items), **{change: "other"}), items, store))
    assert not store.plans()


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(ValueError, match="holds no results of sweeps"):
        SweepStore(text)
    assert text.read_text() == "not a database, " * 100
    with closing(sqlite3.connect(tmp_path / "other.db")) as base:
        base.execute("CREATE TABLE photos (name)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(ValueError, match="another program's"):
        SweepStore(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == before
    with pytest.raises(ValueError, match="cannot be kept"):
        SweepStore(text / "below" / "x.sqlite")
