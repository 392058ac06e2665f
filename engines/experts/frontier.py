"""The search for two thresholds that skip a wanted share, with as few trials as their monotonicity allows.

Raising a threshold never lowers the share that is skipped, and never makes the answer better. So of all pairs of
thresholds that skip enough, the best lies on the frontier: where lowering either one would skip too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Point = tuple[int, int]
"""A visual and a text threshold, by their places among all thresholds."""


def frontier(visual: Sequence[int], text: Sequence[int], pairs: int, target: float) -> list[Point]:
    """All points of the frontier, in one walk: the text threshold only goes down while the visual one goes up.

    `visual` and `text` hold, threshold by threshold, how many of the `pairs` are skipped; neither ever falls. Raises
    ValueError where even the highest thresholds skip less than the target share.
    """
    wanted = target * pairs
    found: list[Point] = []
    place = len(text) - 1
    for index, skipped in enumerate(visual):
        if skipped + text[place] < wanted:
            continue
        while place > 0 and skipped + text[place - 1] >= wanted:
            place -= 1
        if not found or place < found[-1][1]:
            found.append((index, place))
    if not found:
        raise ValueError(
            f"The target is {target}; with thresholds up to 1 and every token's best expert kept, at most "
            f"{(visual[-1] + text[-1]) / pairs:.2f} of the pairs can be skipped."
        )
    return found


def spread(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def best_of(points: Sequence[Point], damage: Callable[[Point], float]) -> tuple[Point, float]:
    """The point that does the least damage; of equal ones the first."""
    damages = [damage(point) for point in points]
    least = min(damages)
    return points[damages.index(least)], least
