"""Running a plan: item by item, every point in turn, resuming where an earlier process ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from engines.media import MediaLimits
from engines.sets import EvalSet
from engines.sweep.measure import Measurer, Stopped, SweepEngine, Turn, order
from engines.sweep.plan import FULL, SweepPlan
from engines.sweep.results import PointResult
from engines.sweep.rows import Key, Row
from engines.sweep.store import SweepStore
from engines.sweep.summary import summarise

# How often the points are summed up on the way: often enough to watch, rarely enough to cost nothing.
SUMMARY_S = 2.0

__all__ = ["SweepEngine", "SweepProgress", "Turn", "check_plan", "run_sweep"]


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep stands. It ended early (cancelled) if the last one has done < total."""

    done: int
    """Runs, those of earlier processes included."""
    total: int
    left_s: float | None
    """An estimate from the pace so far; None before there is one."""
    points: tuple[PointResult, ...] | None = None
    """What is known so far, in the plan's order: every few seconds, and always with the last progress."""


def run_sweep(
    engine: SweepEngine,
    plan: SweepPlan,
    eval_set: EvalSet,
    store: SweepStore,
    cancel: threading.Event | None = None,
    turn: Turn | None = None,
    only: Collection[int] | None = None,
    limits: MediaLimits | None = None,
) -> Iterator[SweepProgress]:
    """Run what the store does not have of a plan yet; the first progress comes at once, the last has the points.

    cancel: set from another thread, it ends the run in progress, which is not kept.
    turn: waits for the engine before each run, so that others who use it wait for one run at most.
    only: places of points to run, besides the full model; all by default.
    Items that cannot be run are kept with their error. Raises ValueError if the set or the checkpoint is not the
    plan's, or another process runs the plan.
    """
    check_plan(plan, eval_set, engine)
    measurer = Measurer(engine, plan, limits or MediaLimits(), cancel, turn)

    def results(missing: Missing) -> Iterator[Row]:
        media = None
        try:
            for index, keys in missing.items():
                item = eval_set.items[index]
                if item.media != media:
                    measurer.forget()
                    media = item.media
                yield from measurer.measure(item, keys)
        except Stopped:
            return
        finally:
            measurer.forget()

    yield from follow(plan, eval_set, store, only, results)


Missing = dict[int, list[Key]]
"""The runs that are still to be done, by item."""
ResultsOf = Callable[[Missing], Iterable[Row]]
"""From the missing runs to their rows, in any order; it ends early when it is stopped."""


def follow(
    plan: SweepPlan,
    eval_set: EvalSet,
    store: SweepStore,
    only: Collection[int] | None,
    results: ResultsOf,
) -> Iterator[SweepProgress]:
    """Keep every row that `results` gives for the missing runs, and say where the sweep stands."""
    with store.claimed(plan):
        rows = {row.key: row for row in store.rows(plan)}
        chosen = None if only is None else {FULL, *only}
        asked = {index: list(order(plan, index, chosen)) for index in range(plan.items)}
        total = sum(map(len, asked.values()))
        missing = {index: left for index, keys in asked.items() if (left := [key for key in keys if key not in rows])}
        to_do = sum(map(len, missing.values()))
        done = total - to_do
        yield SweepProgress(done, total, None)
        began_s = summed_s = time.monotonic()
        for number, row in enumerate(results(missing) if missing else (), start=1):
            store.add(plan, [row])
            rows[row.key] = row
            now_s = time.monotonic()
            points = None
            if now_s - summed_s >= SUMMARY_S:
                points, summed_s = summarise(plan, eval_set, rows.values()), now_s
            yield SweepProgress(done + number, total, (now_s - began_s) / number * (to_do - number), points)
        done = sum(key in rows for keys in asked.values() for key in keys)
        yield SweepProgress(done, total, None, summarise(plan, eval_set, rows.values()))


def check_plan(plan: SweepPlan, eval_set: EvalSet, engine: SweepEngine) -> None:
    """Raise ValueError where a plan was made for another set, checkpoint or device."""
    if (plan.set_fingerprint, plan.items) != (eval_set.fingerprint, eval_set.total):
        raise ValueError(f"The set {eval_set.name} is not the one that the sweep was begun with; begin a new one.")
    offered = engine.capabilities()
    for what, planned, here in (
        ("checkpoint", plan.digest, offered.digest),
        ("device", plan.device, offered.device),
    ):
        if planned != here:
            raise ValueError(f"The sweep was begun with another {what}; begin a new one.")
