"""Which settings a sweep tries: every combination of the axes' values, or a random choice of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from engines.config import CompressionConfig
from engines.results import EngineError
from engines.settings import fingerprint

MAX_POINTS = 1000

Point = tuple[str, ...]
"""Assignments for `CompressionConfig.full().with_settings`, such as ("pruning.keep_ratio=0.5",)."""


class Checker(Protocol):
    """What `check_points` needs of an engine."""

    def check(self, config: CompressionConfig) -> None: ...


@dataclass(frozen=True)
class Axis:
    """A setting and the values to try, as texts. For `find`, from the best quality to the fastest."""

    setting: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"The axis {self.setting} has no value; write {self.setting}=1,0.5,0.25 for instance.")
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"The axis {self.setting} names a value twice: {', '.join(self.values)}.")
        for value in self.values:
            config_of((f"{self.setting}={value}",))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `pruning.keep_ratio=1,0.5,0.25`."""
        setting, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form setting=value,value, such as pruning.keep_ratio=1,0.5.")
        return cls(setting.strip(), tuple(value.strip() for value in values.split(",") if value.strip()))


@dataclass(frozen=True)
class Space:
    """All combinations of the axes' values, on top of the same `base` assignments."""

    axes: tuple[Axis, ...]
    base: Point = ()

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("A sweep needs at least one axis, such as pruning.keep_ratio=1,0.5,0.25.")
        names = [axis.setting for axis in self.axes]
        if len(set(names)) < len(names):
            raise ValueError(f"Two axes have the same setting: {', '.join(names)}; write its values on one axis.")
        config_of(self.base)

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(len(axis.values) for axis in self.axes)

    def point(self, number: int) -> Point:
        """The combination of that number, the last axis changing fastest."""
        chosen = []
        for axis in reversed(self.axes):
            number, place = divmod(number, len(axis.values))
            chosen.append(f"{axis.setting}={axis.values[place]}")
        return (*self.base, *reversed(chosen))


def config_of(point: Point) -> CompressionConfig:
    """The settings of a point. ValueError, with one sentence, for an unknown setting or value."""
    return CompressionConfig.full().with_settings(point)


def key_of(point: Point) -> str:
    """Equal for points that come to the same settings; 1 and 1.0 do."""
    return fingerprint(_as_floats(config_of(point).to_dict()))


def grid(space: Space) -> tuple[Point, ...]:
    """Every combination. ValueError if there are more than MAX_POINTS."""
    if space.size > MAX_POINTS:
        raise ValueError(
            f"The axes have {space.size} combinations and a sweep takes at most {MAX_POINTS}: "
            "leave values out, or draw some of them at random."
        )
    return _distinct(space.point(number) for number in range(space.size))


def sample(space: Space, n: int, seed: int) -> tuple[Point, ...]:
    """So many different combinations, drawn at random without preference; all of them where there are fewer."""
    if not 1 <= n <= MAX_POINTS:
        raise ValueError(f"{n} points were asked for; it must be at least 1 and at most {MAX_POINTS}.")
    if n >= space.size:
        return grid(space)
    return _distinct(space.point(number) for number in sorted(random.Random(seed).sample(range(space.size), n)))


def check_points(engine: Checker, points: Iterable[Point]) -> None:
    """Raise ValueError, naming the point, for the first that this checkpoint or device cannot do."""
    for point in points:
        try:
            engine.check(config_of(point))
        except (EngineError, ValueError) as error:
            raise ValueError(f"The point {' '.join(point) or '(full)'} cannot be run here: {error}") from error


def _as_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_floats(one) for name, one in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _distinct(points: Iterable[Point]) -> tuple[Point, ...]:
    """Without those that come to the same settings as an earlier one."""
    found: dict[str, Point] = {}
    for point in points:
        found.setdefault(key_of(point), point)
    return tuple(found.values())
