"""Two runs of the same request, one full and one compressed, and where they differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
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
    """An event of one of the two runs."""

    side: Side
    event: Event


@dataclass(frozen=True)
class Segment:
    """A piece of an answer. `same` is False where the other answer has something else."""

    text: str
    same: bool


@dataclass(frozen=True)
class Comparison:
    """Both results. Ratios are compressed / full: below 1 the compressed run took less."""

    full: RunResult
    compressed: RunResult

    def ratios(self) -> dict[str, float | None]:
        """Compressed / full per figure; None where either was not measured or the full one is 0."""
        return {
            "ttft": _ratio(self.compressed.ttft_s, self.full.ttft_s),
            "tpot": _ratio(self.compressed.tpot_s, self.full.tpot_s),
            "tokens_per_s": _ratio(self.compressed.tokens_per_s, self.full.tokens_per_s),
            "total": _ratio(self.compressed.trace.total_s, self.full.trace.total_s),
            "vision_encode": _ratio(
                self.compressed.trace.stage_s("vision encode"), self.full.trace.stage_s("vision encode")
            ),
            "prefill": _ratio(self.compressed.trace.stage_s("prefill"), self.full.trace.stage_s("prefill")),
            "visual_tokens": _ratio(self.compressed.visual_tokens, self.full.visual_tokens),
            "peak_memory": _ratio(self.compressed.memory.peak_bytes, self.full.memory.peak_bytes),
            "weights": _ratio(self.compressed.memory.weight_bytes, self.full.memory.weight_bytes),
            "kv_cache": _ratio(self.compressed.memory.kv_cache_bytes, self.full.memory.kv_cache_bytes),
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
            "ratios": self.ratios(),
            "first_difference": self.first_difference,
        }


def compare(
    engine: Runner, request: RunRequest, full: CompressionConfig, compressed: CompressionConfig
) -> Iterator[SideEvent | Comparison]:
    """Run the request at both settings, one after the other on the same engine; end with the Comparison.

    Closing the iterator cancels whichever run is in progress.
    """
    results: dict[Side, RunResult] = {}
    for side, config in zip(SIDES, (full, compressed), strict=True):
        with closing(engine.run(request, config)) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, Finished):
                    results[side] = event.result
                yield SideEvent(side, event)
        if results[side].finish_reason == "cancelled":
            return
    yield Comparison(results["full"], results["compressed"])


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
