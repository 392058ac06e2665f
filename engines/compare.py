"""Two runs of the same request, one full and one compressed, and where they differ."""

from __future__ import annotations

import difflib
import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engines.config import CompressionConfig
from engines.results import Event, Finished, RunRequest, RunResult

Side = Literal["full", "compressed"]
SIDES: tuple[Side, Side] = ("full", "compressed")


class Runner(Protocol):
    """What `compare` needs of an engine."""

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]: ...


@dataclass(frozen=True)
class SideEvent:
    """An event of one of the runs. `repeat` counts the pairs from 0."""

    side: Side
    event: Event
    repeat: int = 0


@dataclass(frozen=True)
class Segment:
    """A piece of an answer. `same` is False where the other answer has something else."""

    text: str
    same: bool


# What is compared: one number of a result each, None where it was not measured.
FIGURES: dict[str, Callable[[RunResult], float | None]] = {
    "ttft": lambda result: result.ttft_s,
    "tpot": lambda result: result.tpot_s,
    "tokens_per_s": lambda result: result.tokens_per_s,
    "total": lambda result: result.trace.total_s,
    "vision_encode": lambda result: result.trace.stage_s("vision encode"),
    "prefill": lambda result: result.trace.stage_s("prefill"),
    "visual_tokens": lambda result: result.visual_tokens,
    "expert_pairs": lambda result: result.expert_report.pairs_computed if result.expert_report else None,
    "peak_memory": lambda result: result.memory.peak_bytes,
    "weights": lambda result: result.memory.weight_bytes,
    "kv_cache": lambda result: result.memory.kv_cache_bytes,
    "energy_per_token": lambda result: result.device_report.energy_per_token_j if result.device_report else None,
}


@dataclass(frozen=True)
class Comparison:
    """The results of every pair of runs. Ratios are compressed / full: below 1 the compressed run took less."""

    full: RunResult
    compressed: RunResult
    later: tuple[tuple[RunResult, RunResult], ...] = ()
    """The (full, compressed) results of the pairs after the first, when the runs were repeated."""

    @property
    def pairs(self) -> tuple[tuple[RunResult, RunResult], ...]:
        return ((self.full, self.compressed), *self.later)

    def medians(self, side: Side) -> dict[str, float | None]:
        """Per figure the median over this side's runs; None where any run did not measure it."""
        results = [pair[SIDES.index(side)] for pair in self.pairs]
        return {name: _median([figure(result) for result in results]) for name, figure in FIGURES.items()}

    def ratios(self) -> dict[str, float | None]:
        """Compressed / full per figure, the median over the pairs; None where a pair has no ratio."""
        return {name: _median(ratios) for name, ratios in self._paired().items()}

    def ranges(self) -> dict[str, tuple[float, float] | None]:
        """The lowest and the highest ratio over the pairs."""
        found = {}
        for name, ratios in self._paired().items():
            known = [ratio for ratio in ratios if ratio is not None]
            found[name] = (min(known), max(known)) if known and len(known) == len(ratios) else None
        return found

    def _paired(self) -> dict[str, list[float | None]]:
        return {
            name: [_ratio(figure(compressed), figure(full)) for full, compressed in self.pairs]
            for name, figure in FIGURES.items()
        }

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, None when the answers are the same."""
        ours, theirs = self.full.tokens, self.compressed.tokens
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return index
        return None if len(ours) == len(theirs) else min(len(ours), len(theirs))

    def segments(self) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        return mark_differences(self.full.answer, self.compressed.answer)

    def to_dict(self) -> dict[str, Any]:
        return {
            "full": self.full.to_dict(),
            "compressed": self.compressed.to_dict(),
            "pairs": len(self.pairs),
            "ratios": self.ratios(),
            "ratio_ranges": self.ranges(),
            "first_difference": self.first_difference,
        }


def compare(
    engine: Runner, request: RunRequest, full: CompressionConfig, compressed: CompressionConfig, repeats: int = 1
) -> Iterator[SideEvent | Comparison]:
    """Run the request at both settings, one after the other on the same engine; end with the Comparison.

    With `repeats` above 1 the pairs alternate their order, A B B A, so that a drift of the machine touches both
    sides alike. Closing the iterator cancels whichever run is in progress; a cancelled run ends the comparison,
    with the pairs that were complete.
    """
    configs: dict[Side, CompressionConfig] = {"full": full, "compressed": compressed}
    pairs: list[tuple[RunResult, RunResult]] = []
    for repeat in range(repeats):
        results: dict[Side, RunResult] = {}
        for side in SIDES if repeat % 2 == 0 else reversed(SIDES):
            with closing(engine.run(request, configs[side])) as events:  # type: ignore[type-var]
                for event in events:
                    if isinstance(event, Finished):
                        results[side] = event.result
                    yield SideEvent(side, event, repeat)
            if results[side].finish_reason == "cancelled":
                break
        if len(results) < 2 or any(result.finish_reason == "cancelled" for result in results.values()):
            break
        pairs.append((results["full"], results["compressed"]))
    if pairs:
        (first_full, first_compressed), *later = pairs
        yield Comparison(first_full, first_compressed, tuple(later))


# Words, runs of space, and single characters of scripts written without spaces or of punctuation.
_PIECES = re.compile(r"[A-Za-z0-9_À-ɏЀ-ӿ']+|\s+|.", re.DOTALL)


def mark_differences(full: str, compressed: str) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Split both answers into segments that are the same in both and segments that are not, word by word."""
    ours, theirs = _PIECES.findall(full), _PIECES.findall(compressed)
    left: list[Segment] = []
    right: list[Segment] = []
    matcher = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False)
    for operation, a0, a1, b0, b1 in matcher.get_opcodes():
        for segments, pieces in ((left, ours[a0:a1]), (right, theirs[b0:b1])):
            if pieces:
                segments.append(Segment("".join(pieces), operation == "equal"))
    return tuple(left), tuple(right)


def _ratio(compressed: float | None, full: float | None) -> float | None:
    return compressed / full if compressed is not None and full else None


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None
