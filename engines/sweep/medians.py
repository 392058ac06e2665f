"""Medians with bounds that assume nothing about how times are distributed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Median:
    """The median of `n` values with the narrowest bounds, taken from the values themselves, that hold the true median
    with 95 % confidence; with fewer than six values no bounds do, and `coverage` says what the widest come to.
    """

    value: float
    low: float
    high: float
    n: int
    coverage: float
    """Confidence of the bounds, 0-1: binomial, by order statistics (Conover, 1999, section 3.2)."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def median_of(values: Iterable[float | None]) -> Median | None:
    """Of those that were measured; None if none was."""
    known = sorted(value for value in values if value is not None)
    n = len(known)
    if not n:
        return None
    # The k-th smallest and the k-th largest miss the true median if fewer than k values lie on one side of it.
    k, missed = 1, 2 * 0.5**n
    while k < n // 2 and (next_missed := missed + 2 * math.comb(n, k) * 0.5**n) <= 1 - CONFIDENCE:
        k, missed = k + 1, next_missed
    return Median(statistics.median(known), known[k - 1], known[n - k], n, max(0.0, 1 - missed))
