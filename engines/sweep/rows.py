"""One run of a sweep, as it is kept: everything that its tables are made of, and nothing of the media."""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[int, int, int]
"""Point, item, repeat."""


@dataclass(frozen=True)
class Row:
    """`error` says why there is no answer; then everything measured is None."""

    point: int
    item: int
    repeat: int
    timed: bool = False
    """Whether its times are meant to be used: warmed up, and reusing nothing that the settings don't."""
    answer: str | None = None
    error: str | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    peak_bytes: int | None = None
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    tokens: int | None = None
    """Length of the answer in tokens."""
    visual_before: int | None = None
    visual_after: int | None = None
    kl_sum: float | None = None
    """Divergence from the full model summed over the positions of its answer, in nats."""
    kl_positions: int | None = None

    @property
    def key(self) -> Key:
        return self.point, self.item, self.repeat
