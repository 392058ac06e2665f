"""Paired timing: two things measured in turn, A B B A, so that a drift of the machine touches both alike."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pairs:
    """Seconds of both sides, pair by pair. Ratios are second / first."""

    first_s: list[float]
    second_s: list[float]

    @property
    def ratios(self) -> list[float]:
        return [second / first for first, second in zip(self.first_s, self.second_s, strict=True)]

    @property
    def median_ratio(self) -> float:
        return statistics.median(self.ratios)

    def words(self, whole: str) -> str:
        """'0.310 of the full prefill (0.301 to 0.320)'."""
        return f"{self.median_ratio:.3f} of {whole} ({min(self.ratios):.3f} to {max(self.ratios):.3f})"

    def summary(self) -> dict[str, float]:
        return {
            "median_ratio": round(self.median_ratio, 4),
            "lowest_ratio": round(min(self.ratios), 4),
            "highest_ratio": round(max(self.ratios), 4),
            "first_median_s": round(statistics.median(self.first_s), 6),
            "second_median_s": round(statistics.median(self.second_s), 6),
            "pairs": len(self.ratios),
        }


def measure_pairs(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Pairs:
    """Call both, which return the seconds they measured, `pairs` times in alternating order after one warm-up."""
    first()
    second()
    first_s: list[float] = []
    second_s: list[float] = []
    for pair in range(pairs):
        order = [(first, first_s), (second, second_s)]
        for call, seconds in order if pair % 2 == 0 else reversed(order):
            seconds.append(call())
    return Pairs(first_s, second_s)


def print_json(name: str, **figures: object) -> None:
    """The last line of every benchmark: one JSON object."""
    print(json.dumps({"benchmark": name, **figures}))
