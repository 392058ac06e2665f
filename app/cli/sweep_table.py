"""What `launch.py sweep` prints: a row a point, the Pareto front marked, or everything as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engines.evaluation import Score
from engines.sets import EvalSet
from engines.sweep.front import COSTS, QUALITIES, pareto_front
from engines.sweep.medians import Median
from engines.sweep.plan import SweepPlan
from engines.sweep.results import PointResult
from engines.sweep.space import Point

SCHEMA_VERSION = 1
MISSING = "not measured"


@dataclass(frozen=True)
class Chosen:
    """What --find found. `settings` is None where no value keeps the floor; `tried`: values with their share."""

    settings: Point | None
    floor: float
    tried: tuple[tuple[str, float], ...]
    monotone: bool
    note: str


def as_json(
    plan: SweepPlan,
    found: EvalSet,
    points: tuple[PointResult, ...],
    cost: str,
    quality: str,
    chosen: Chosen | None,
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "plan": plan.to_dict(),
        "set": {
            "name": found.name,
            "questions": found.total,
            "labelled": found.labelled,
            "note": found.note,
            "problems": [asdict(problem) for problem in found.problems],
        },
        "points": [point.to_dict() for point in points],
        "front": {
            "cost": cost,
            "quality": quality,
            "points": [list(point.settings) for point in pareto_front(points, COSTS[cost], QUALITIES[quality])],
        },
        "found": chosen and asdict(chosen),
    }


def describe(
    plan: SweepPlan,
    found: EvalSet,
    points: tuple[PointResult, ...],
    cost: str,
    quality: str,
    chosen: Chosen | None,
) -> str:
    front = {point.settings for point in pareto_front(points, COSTS[cost], QUALITIES[quality])}
    header = ["", "point", "accuracy (95 %)", "same answer", "TTFT (bounds)", "of full", "total (bounds)", "of full"]
    header += ["weights", "KV cache", "peak"]
    header += ["KL, nats"] if plan.measure_kl else []
    header += ["failed"] if any(point.failed for point in points) else []
    rows = [header]
    for point in points:
        cells = ["*" if point.settings in front else "", " ".join(point.settings) or "full"]
        cells += [_score(point.score), _share(point.agreement)]
        cells += [_time(point.ttft_s), _ratio(point.ttft_ratio), _time(point.total_s), _ratio(point.total_ratio)]
        cells += [_size(point.weight_bytes), _size(point.kv_bytes), _size(point.peak_bytes)]
        cells += [MISSING if point.kl is None else f"{point.kl:.4f}"] if plan.measure_kl else []
        cells += [str(point.failed)] if "failed" in header else []
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines += ["", f"* on the Pareto front of {cost.replace('_', ' ')} against {quality}."]
    times = [median for point in points if (median := point.total_s) is not None]
    if times:
        covered = min(median.coverage for median in times)
        lines.append(
            f"Times are medians over {max(median.n for median in times)} questions of the medians of {plan.repeats} "
            f"repeats; their bounds hold the true median with {covered:.0%} confidence or more."
        )
    lines += ["Points that switch a cache on are timed with it filled."] if any(point.warm for point in points) else []
    lines += [found.note] if found.note else []
    reasons = dict.fromkeys(reason for point in points for reason in point.errors)
    lines += [f"failed: {reason}" for reason in reasons]
    lines += [f"{len(found.problems)} rows of the set were left out."] if found.problems else []
    lines += ["", *_chosen(chosen)] if chosen is not None else []
    return "\n".join(lines)


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    """Names to the left, figures to the right."""
    return [
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _chosen(chosen: Chosen) -> list[str]:
    lines = [f"tried {name}: {share:.1%} of the full quality" for name, share in chosen.tried]
    if chosen.settings is None:
        lines.append(f"No value keeps {chosen.floor:.1%} of the full quality.")
    else:
        lines.append(f"Fastest with {chosen.floor:.1%} of the full quality: {' '.join(chosen.settings) or 'full'}.")
    return [*lines, chosen.note]


def _score(score: Score | None) -> str:
    if score is None or score.accuracy is None or score.low is None or score.high is None:
        return MISSING
    return f"{score.accuracy:.1%} ({score.low:.1%} to {score.high:.1%})"


def _share(score: Score | None) -> str:
    return MISSING if score is None or score.accuracy is None else f"{score.accuracy:.1%}"


def _time(median: Median | None) -> str:
    if median is None:
        return MISSING
    return f"{median.value * 1e3:.1f} ms ({median.low * 1e3:.1f} to {median.high * 1e3:.1f})"


def _ratio(median: Median | None) -> str:
    return MISSING if median is None else f"{median.value:.2f}x"


def _size(size: int | None) -> str:
    return MISSING if size is None else f"{size / 2**20:.1f} MiB"
