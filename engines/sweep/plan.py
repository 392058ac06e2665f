"""What a sweep is going to do, written down before it starts: enough to resume it, or to do it again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from engines.evaluation import MAX_NEW_TOKENS
from engines.results import Capabilities
from engines.sets import EvalSet
from engines.settings import fingerprint
from engines.sweep.space import MAX_POINTS, Point, config_of, key_of

SCHEMA_VERSION = 1
FULL = 0
"""The place of the full model among a plan's points."""
MAX_REPEATS = 100


@dataclass(frozen=True)
class SweepPlan:
    """Every point answers every item once, which gives its quality; its latency is measured on some of the items,
    with repeats.
    """

    points: tuple[Point, ...]
    """The full model, (), is the first: the reference that the others are compared with."""
    set_source: str
    """As a person would name it to `open_set`."""
    set_fingerprint: str
    items: int
    """How many the set has, after `every`."""
    digest: str
    """Of the checkpoint."""
    model: str
    device: str
    every: int = 1
    repeats: int = 3
    """Timed runs of a point on a timed item."""
    timed_items: int = 10
    """Latency is measured on so many items, spread evenly over the set; 0: not at all."""
    seed: int = 0
    """Of random draws inside pruning methods and the like."""
    max_new_tokens: int = MAX_NEW_TOKENS
    measure_kl: bool = False
    """Whether each point is also run along the full model's answer, which costs about one more run an item."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not self.points or self.points[FULL] != ():
            raise ValueError("The first point of a sweep must be the full model, ().")
        if len(self.points) > MAX_POINTS + 1:
            raise ValueError(f"The sweep has {len(self.points) - 1} points; at most {MAX_POINTS} are allowed.")
        for name, low, high in (
            ("every", 1, None), ("repeats", 1, MAX_REPEATS), ("timed_items", 0, None), ("items", 1, None),
            ("max_new_tokens", 1, 4096),
        ):  # fmt: skip
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or value < low or (high is not None and value > high):
                limit = f" and at most {high}" if high is not None else ""
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {low}{limit}.")
        for point in self.points:
            config_of(point)

    @property
    def timed(self) -> frozenset[int]:
        """The items on which latency is measured."""
        count = min(self.timed_items, self.items)
        return frozenset(place * self.items // count for place in range(count))

    def repeats_of(self, item: int) -> int:
        """How often a point is run on an item."""
        return self.repeats if item in self.timed else 1

    @property
    def runs(self) -> int:
        """All runs of the sweep, the full model's included."""
        return len(self.points) * (self.items + len(self.timed) * (self.repeats - 1))

    def places(self, points: Iterable[Point]) -> list[int]:
        """Where those points stand; one that comes to the full model's settings has the full model's place."""
        known = {key_of(point): place for place, point in enumerate(self.points)}
        return [known[key_of(point)] for point in points]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan: results of one plan are never mixed with another's."""
        return fingerprint(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. ValueError for a plan that another version wrote, or that is none."""
        version = values.get("schema_version") if isinstance(values, Mapping) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"The sweep was written in format {version}; this version reads {SCHEMA_VERSION}.")
        try:
            points = tuple(tuple(map(str, point)) for point in values["points"])
            return cls(**{**values, "points": points})
        except (KeyError, TypeError) as error:
            raise ValueError(f"The plan of the sweep cannot be read: {error}.") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls.from_dict(json.loads(text))


def make_plan(
    points: Iterable[Point], found: EvalSet, capabilities: Capabilities, source: str, **options: Any
) -> SweepPlan:
    """A plan of these points on that set and engine, with the full model first.

    options: every, repeats, timed_items, seed, max_new_tokens, measure_kl, as SweepPlan has them.
    ValueError where there is nothing to run.
    """
    if not found.total:
        raise ValueError(f"The set {found.name} has no row that can be asked.")
    others = [point for point in points if key_of(point) != key_of(())]
    return SweepPlan(
        points=((), *others),
        set_source=source,
        set_fingerprint=found.fingerprint,
        items=found.total,
        digest=capabilities.digest,
        model=capabilities.model,
        device=capabilities.device,
        **options,
    )
