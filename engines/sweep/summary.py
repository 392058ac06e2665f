"""From the runs of a sweep to a result a point."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from engines.answers import matches
from engines.evaluation import Item, Score
from engines.sets import EvalSet
from engines.sweep.measure import is_caching
from engines.sweep.medians import Median, median_of
from engines.sweep.plan import FULL, SweepPlan
from engines.sweep.results import PointResult
from engines.sweep.rows import Row
from engines.sweep.space import config_of

# So many different reasons why items failed are kept with a point.
MOST_ERRORS = 3

Time = Callable[[Row], float | None]


def summarise(
    plan: SweepPlan, eval_set: EvalSet, rows: Iterable[Row], items: Collection[int] | None = None
) -> tuple[PointResult, ...]:
    """A result for each point of the plan that has any row, in the plan's order. `items`: only these count."""
    by_point: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if items is None or row.item in items:
            by_point[row.point].append(row)
    full = by_point.get(FULL, [])
    return tuple(
        _point(plan, eval_set, place, by_point[place], full) for place in range(len(plan.points)) if by_point.get(place)
    )


def _point(plan: SweepPlan, eval_set: EvalSet, place: int, rows: list[Row], full: list[Row]) -> PointResult:
    settings = plan.points[place]
    config = config_of(settings)
    first = {row.item: row for row in rows if row.repeat == 0}
    answered = {item: row.answer for item, row in first.items() if row.answer is not None}
    theirs = {row.item: row.answer for row in full if row.repeat == 0 and row.answer is not None}
    agreed = [matches(answer, theirs[item]) for item, answer in answered.items() if item in theirs]
    score, groups = _judge(eval_set, answered)
    timed = [row for row in rows if row.timed and row.error is None]
    # Only from runs that measured it: None where none did.
    kept = [(row.visual_before, row.visual_after) for row in first.values() if row.visual_before and row.error is None]
    kl = [(row.kl_sum, row.kl_positions) for row in rows if row.kl_sum is not None and row.kl_positions]
    errors = [row.error for row in first.values() if row.error is not None]
    weights = [row.weight_bytes for row in first.values() if row.weight_bytes is not None]
    caches = [row.kv_bytes for row in first.values() if row.kv_bytes is not None]
    return PointResult(
        settings=settings,
        score=score,
        groups=groups,
        agreement=Score(len(agreed), sum(agreed)) if agreed else None,
        kl=sum(value for value, _ in kl) / sum(positions for _, positions in kl) if kl else None,
        ttft_s=_over_items(timed, lambda row: row.ttft_s),
        total_s=_over_items(timed, lambda row: row.total_s),
        ttft_ratio=_ratio(timed, full, lambda row: row.ttft_s),
        total_ratio=_ratio(timed, full, lambda row: row.total_s),
        peak_bytes=max((row.peak_bytes for row in timed if row.peak_bytes is not None), default=None),
        weight_bytes=max(weights, default=None),
        kv_bytes=round(statistics.median(caches)) if caches else None,
        keep_ratio=sum(after or 0 for _, after in kept) / sum(before or 0 for before, _ in kept) if kept else None,
        asked=len(answered),
        failed=len(errors),
        errors=tuple(dict.fromkeys(errors))[:MOST_ERRORS],
        warm=is_caching(config),
    )


def _judge(eval_set: EvalSet, answered: Mapping[int, str]) -> tuple[Score | None, dict[str, dict[str, Score]]]:
    """Over the labelled items among those that were answered."""
    rights: list[bool] = []
    by_group: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for index in sorted(answered):
        item: Item = eval_set.items[index]
        if not item.answer:
            continue
        right = matches(answered[index], item.answer)
        rights.append(right)
        for kind, name in item.groups.items():
            by_group[kind][name].append(right)
    groups = {
        kind: {name: Score(len(found), sum(found)) for name, found in names.items()} for kind, names in by_group.items()
    }
    return (Score(len(rights), sum(rights)) if rights else None), groups


def _over_items(rows: Iterable[Row], time: Time) -> Median | None:
    """Over the items, of each one's median over its repeats."""
    by_item: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if (value := time(row)) is not None:
            by_item[row.item].append(value)
    return median_of(statistics.median(values) for values in by_item.values())


def _ratio(rows: Iterable[Row], full: Iterable[Row], time: Time) -> Median | None:
    """Over the items, of each one's median ratio to the full model's run of the same repeat."""
    whole = {(row.item, row.repeat): time(row) for row in full if row.timed}
    by_item: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        value, other = time(row), whole.get((row.item, row.repeat))
        if value is not None and other:
            by_item[row.item].append(value / other)
    return median_of(statistics.median(values) for values in by_item.values())
