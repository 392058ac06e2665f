"""Find for me: the fastest value of one setting that keeps the quality above a floor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engines.sweep.front import Figure
from engines.sweep.results import PointResult
from engines.sweep.space import Point


@dataclass(frozen=True)
class Found:
    """`place` is that of the chosen value, None if none that was tried reaches the floor."""

    place: int | None
    tried: dict[int, float]
    """Quality at each place that was tried, as a share of the full model's, in the order of trying."""
    monotone: bool
    """Whether quality fell, or stayed, from each tried value to the next; if not, all values were tried."""
    note: str
    """One sentence on what that means for the choice."""


Search = Generator[int, float, Found]
"""Gives the place whose quality it wants next, and is sent that; returns what it found."""


def find_fastest(count: int, quality: Callable[[int], float], floor: float) -> Found:
    """`search` with a function that tells the quality at a place, called at most once a place."""
    steps = search(count, floor)
    try:
        place = next(steps)
        while True:
            place = steps.send(quality(place))
    except StopIteration as end:
        found: Found = end.value
        return found


def search(count: int, floor: float) -> Search:
    """By bisection over `count` values ordered from the best quality to the fastest.

    Qualities are shares of the full model's, 0-1 or above; each place is asked for at most once. Bisection is right if
    quality never rises towards the fast end. Where a value that was tried contradicts that, the rest is tried too, and
    the fastest of all that reach the floor is chosen.
    """
    if count < 1:
        raise ValueError("There is no value to choose from.")
    if not 0 < floor <= 1:
        raise ValueError(f"The floor is {floor}; it must be above 0 and at most 1, a share of the full quality.")
    tried: dict[int, float] = {}
    # The ends first: they often settle it, and they show best whether quality falls at all.
    reached, missed = -1, count
    for place in dict.fromkeys((0, count - 1)):
        tried[place] = yield place
        if tried[place] >= floor:
            reached = max(reached, place)
        else:
            missed = min(missed, place)
    while missed - reached > 1:
        middle = (reached + missed) // 2
        tried[middle] = yield middle
        if tried[middle] >= floor:
            reached = middle
        else:
            missed = middle
    looked_at = len(tried)
    if _falls(tried):
        note = (
            f"Quality fell or stayed from each of the {looked_at} tried values to the next; the values between them "
            "were taken to do the same."
            if looked_at < count
            else f"All {count} values were tried."
        )
        return Found(reached if reached >= 0 else None, tried, True, note)
    for place in range(count):
        if place not in tried:
            tried[place] = yield place
    good = [place for place, value in tried.items() if value >= floor]
    note = (
        f"Quality does not fall steadily towards the fast end (seen after {looked_at} values), so all {count} were "
        "tried; near the floor the choice may be luck."
    )
    return Found(max(good, default=None), tried, False, note)


def share_of_full(points: Iterable[PointResult], settings: Point, quality: Figure) -> float:
    """Quality of a point as a share of the full model's. ValueError where the full model's is 0 or not measured."""
    found = {point.settings: quality(point) for point in points}
    full = found.get(())
    if not full:
        raise ValueError("The full model has no right answer here, so there is no share of its quality to keep.")
    return (found.get(settings) or 0.0) / full


def pick(points: Sequence[PointResult], cost: Figure, quality: Figure, floor: float) -> PointResult | None:
    """Of measured points the cheapest that keeps that share of the full model's quality, then the best of equals."""
    keeping = [
        (at, -worth, place)
        for place, point in enumerate(points)
        if (at := cost(point)) is not None
        and (worth := quality(point)) is not None
        and share_of_full(points, point.settings, quality) >= floor
    ]
    return points[min(keeping)[2]] if keeping else None


def _falls(tried: dict[int, float]) -> bool:
    ordered = [tried[place] for place in sorted(tried)]
    return all(later <= earlier for earlier, later in pairwise(ordered))
