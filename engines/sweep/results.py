"""What a sweep found out about each of its points: quality beside latency beside memory. None means "not measured"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from engines.evaluation import Score
from engines.sweep.medians import Median
from engines.sweep.space import Point

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PointResult:
    """One point over all items that it has answered so far. Times in seconds, engine time only."""

    settings: Point
    """Assignments on top of the full model; () is the full model itself."""
    score: Score | None
    """Right answers among the labelled items; None for a set without answers."""
    groups: dict[str, dict[str, Score]]
    """The same by kind of group, for instance groups["category"]["colour"]."""
    agreement: Score | None
    """Items with the full model's answer, among those that both answered; None before there is one."""
    kl: float | None
    """Kullback-Leibler divergence from the full model along its own answers, in nats, mean over their positions."""
    ttft_s: Median | None
    """Time to first token: over the timed items, of each one's median over its repeats."""
    total_s: Median | None
    """End to end, likewise."""
    ttft_ratio: Median | None
    """Time to first token / the full model's, paired item by item and repeat by repeat; below 1 is faster."""
    total_ratio: Median | None
    peak_bytes: int | None
    """The highest peak of any timed run; on a CPU that is the whole process, with all weights that it holds."""
    weight_bytes: int | None
    kv_bytes: int | None
    """Median over the items' KV caches at the end of the answer."""
    keep_ratio: float | None
    """Share of the visual tokens that the language model saw, over all items; None without media."""
    asked: int
    """Items answered."""
    failed: int
    """Items that could not be run at these settings; `errors` has the first few reasons."""
    errors: tuple[str, ...] = ()
    warm: bool = False
    """Timed with its caches filled, since the settings switch one on."""

    @property
    def is_full(self) -> bool:
        return self.settings == ()

    @property
    def accuracy(self) -> float | None:
        return self.score.accuracy if self.score else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "settings": list(self.settings),
            "score": self.score and self.score.to_dict(),
            "groups": {
                kind: {name: score.to_dict() for name, score in scores.items()} for kind, scores in self.groups.items()
            },
            "agreement": self.agreement and self.agreement.to_dict(),
            **{name: (value := getattr(self, name)) and value.to_dict() for name in _MEDIANS},
            **{name: getattr(self, name) for name in _PLAIN},
            "errors": list(self.errors),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. ValueError for what another version wrote."""
        if values.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(
                f"The point was written in format {values.get('schema_version')}; this version reads {SCHEMA_VERSION}."
            )
        medians: dict[str, Any] = {name: values[name] and Median(**values[name]) for name in _MEDIANS}
        return cls(
            settings=tuple(values["settings"]),
            score=_score(values["score"]),
            groups={
                kind: {name: Score(score["asked"], score["right"]) for name, score in scores.items()}
                for kind, scores in values["groups"].items()
            },
            agreement=_score(values["agreement"]),
            errors=tuple(values["errors"]),
            **(medians | {name: values[name] for name in _PLAIN}),
        )


_MEDIANS = ("ttft_s", "total_s", "ttft_ratio", "total_ratio")
_PLAIN = ("kl", "peak_bytes", "weight_bytes", "kv_bytes", "keep_ratio", "asked", "failed", "warm")


def _score(values: Mapping[str, Any] | None) -> Score | None:
    return Score(values["asked"], values["right"]) if values else None
