"""Accuracy on labelled questions: the same run as everywhere else, judged by the one rule of engines.answers."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.answers import matches
from engines.compare import Runner
from engines.config import CompressionConfig, SamplingConfig
from engines.media import FrameSampling
from engines.results import EngineError, Finished, RunRequest, RunResult

MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Item:
    """A question about media with its right answer. `groups`: what it counts towards, by kind of group, for
    instance {"category": "colour", "language": "en"}.
    """

    media: tuple[Path, ...]
    question: str
    answer: str
    groups: dict[str, str] = field(default_factory=dict)
    frames: FrameSampling = field(default_factory=FrameSampling)


@dataclass(frozen=True)
class Judged:
    """One item with what the model said."""

    item: Item
    answer: str
    right: bool
    result: RunResult


@dataclass(frozen=True)
class Score:
    """Right answers among those asked. `low` and `high` are the bounds of the 95 % Wilson score interval."""

    asked: int
    right: int

    @property
    def accuracy(self) -> float | None:
        return self.right / self.asked if self.asked else None

    @property
    def low(self) -> float | None:
        return wilson(self.right, self.asked)[0] if self.asked else None

    @property
    def high(self) -> float | None:
        return wilson(self.right, self.asked)[1] if self.asked else None

    def to_dict(self) -> dict[str, float | int | None]:
        return {
            "asked": self.asked,
            "right": self.right,
            "accuracy": self.accuracy,
            "low": self.low,
            "high": self.high,
        }


def wilson(right: int, asked: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (1927): honest for small counts and near 0 and 1, unlike the normal one."""
    if not 0 <= right <= asked or asked == 0:
        raise ValueError(f"{right} right of {asked} is no share")
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    share, weight = right / asked, z * z / asked
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * (share * (1 - share) / asked + weight / (4 * asked)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Report:
    """Scores of a whole set: over all, and by every kind of group in the items' order."""

    overall: Score
    groups: dict[str, dict[str, Score]]
    keep_ratio: float | None
    """Share of the visual tokens that the language model saw, over all runs; None without media."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "overall": self.overall.to_dict(),
            **{kind: {name: score.to_dict() for name, score in scores.items()} for kind, scores in self.groups.items()},
            "achieved_keep_ratio": self.keep_ratio,
        }


def evaluate(engine: Runner, items: Iterable[Item], config: CompressionConfig) -> Iterator[Judged]:
    """Ask every question once, greedily, and judge the answer. Nothing is timed, so nothing is warmed up.

    Raises EngineError or ValueError with one sentence when an item cannot be run.
    """
    for item in items:
        request = RunRequest(
            question=item.question,
            media=item.media,
            sampling=SamplingConfig(max_new_tokens=MAX_NEW_TOKENS),
            frames=item.frames,
            warm_up=False,
        )
        result = next((event.result for event in engine.run(request, config) if isinstance(event, Finished)), None)
        if result is None:
            raise EngineError(f"The run of {item.question!r} ended without a result.")
        yield Judged(item, result.answer, matches(result.answer, item.answer), result)


def report(judged: Iterable[Judged]) -> Report:
    """Add up what `evaluate` yields."""
    rights: list[bool] = []
    by_group: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    before = after = 0
    for one in judged:
        rights.append(one.right)
        before += one.result.prune_report.tokens_before
        after += one.result.prune_report.tokens_after
        for kind, name in one.item.groups.items():
            by_group[kind][name].append(one.right)
    return Report(
        overall=Score(len(rights), sum(rights)),
        groups={
            kind: {name: Score(len(found), sum(found)) for name, found in names.items()}
            for kind, names in by_group.items()
        },
        keep_ratio=after / before if before else None,
    )
