"""The Pareto front: the points that no other beats in both cost and quality."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engines.sweep.results import PointResult

Figure = Callable[[PointResult], float | None]

# What the points can be ranked by. Of costs less is better, of qualities more is.
COSTS: dict[str, Figure] = {
    "ttft": lambda point: point.ttft_s.value if point.ttft_s else None,
    "total": lambda point: point.total_s.value if point.total_s else None,
    "weights": lambda point: point.weight_bytes,
    "kv_cache": lambda point: point.kv_bytes,
    "peak_memory": lambda point: point.peak_bytes,
}
QUALITIES: dict[str, Figure] = {
    "accuracy": lambda point: point.accuracy,
    "agreement": lambda point: point.agreement.accuracy if point.agreement else None,
    "kl": lambda point: -point.kl if point.kl is not None else None,
}


def pareto_front(points: Iterable[PointResult], cost: Figure, quality: Figure) -> tuple[PointResult, ...]:
    """The points for which no other has at most their cost and at least their quality, and is better in one of them.

    From the cheapest to the best. Points that tie in both are all on the front, in the order given; those whose cost
    or quality was not measured never are.
    """
    measured = [
        (at, worth, point)
        for point in points
        if (at := cost(point)) is not None and (worth := quality(point)) is not None and at == at and worth == worth
    ]
    measured.sort(key=lambda one: (one[0], -one[1]))
    front: list[tuple[float, float, PointResult]] = []
    for at, worth, point in measured:
        if not front or worth > front[-1][1] or (at, worth) == front[-1][:2]:
            front.append((at, worth, point))
    return tuple(point for _, _, point in front)
