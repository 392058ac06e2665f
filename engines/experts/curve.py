"""Prefill speed against the share of (token, expert) pairs skipped, measured on one request."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from engines.compare import Runner
from engines.config import CompressionConfig, ExpertConfig
from engines.experts import METHODS
from engines.results import EngineError, Finished, RunRequest, RunResult

PAIRS = 3
BASELINE = "random"


@dataclass(frozen=True)
class CurvePoint:
    """One strength of a method. Speeds are prompt tokens a second in prefill, one a pair of runs, as the runs beside
    them that skip nothing measured theirs."""

    options: Mapping[str, float]
    skipped: float
    """Share of the pairs that the checkpoint's own top-k would have computed in prefill, 0-1, as counted."""
    full_tokens_per_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()

    @property
    def ratios(self) -> tuple[float, ...]:
        """Skipping / full, pair by pair: above 1 skipping is faster."""
        return tuple(ours / full for full, ours in zip(self.full_tokens_per_s, self.tokens_per_s, strict=True))


@dataclass(frozen=True)
class Curve:
    """What is known so far: `done` of `total` pairs of runs. Points are in the order of their strengths."""

    method: str
    tokens: int
    """Tokens that entered the language model."""
    points: tuple[CurvePoint, ...]
    done: int
    total: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "tokens": self.tokens,
            "pairs_done": self.done,
            "pairs_total": self.total,
            "points": [
                {
                    "options": dict(point.options),
                    "skipped": point.skipped,
                    "median_tokens_per_s": statistics.median(point.tokens_per_s),
                    "median_ratio": statistics.median(point.ratios),
                    "lowest_ratio": min(point.ratios),
                    "highest_ratio": max(point.ratios),
                    "tokens_per_s": list(point.tokens_per_s),
                    "full_tokens_per_s": list(point.full_tokens_per_s),
                }
                for point in self.points
            ],
        }


def measure_curve(
    engine: Runner, request: RunRequest, config: CompressionConfig, pairs: int = PAIRS
) -> Iterator[Curve]:
    """Run the prefill at several strengths of the skipping method, each beside one that skips nothing.

    The method is that of `config`, with its other options, or random where it skips nothing; the other settings apply
    to both runs of a pair. The order alternates, A B B A, and every strength has its first pair before any has its
    second, so that a drift of the machine touches all alike. The engine is at work only while the next curve is
    waited for, one pair a step. Ends early when the request is cancelled, with the pairs that were complete.
    """
    experts = config.experts if config.experts.skipping else replace(config.experts, method=BASELINE, options={})
    strengths = METHODS[experts.method].strengths
    full = replace(config, experts=ExpertConfig(), vision=replace(config.vision, measure_fidelity=False))
    sides = [replace(full, experts=replace(experts, options={**experts.options, **strength})) for strength in strengths]
    request = replace(request, sampling=replace(request.sampling, max_new_tokens=1))
    points: dict[int, CurvePoint] = {}
    for step in range(pairs * len(sides)):
        index = step % len(sides)
        order = [full, sides[index]]
        results = [_run(engine, request, side) for side in (order if step % 2 == 0 else reversed(order))]
        if any(result.finish_reason == "cancelled" for result in results):
            return
        plain, skipping = results if step % 2 == 0 else reversed(results)
        if skipping.expert_report is None or skipping.expert_report.skipped_share is None:
            raise EngineError("This checkpoint is dense: it has no experts to skip.")
        point = points.setdefault(index, CurvePoint(strengths[index], skipping.expert_report.skipped_share))
        points[index] = replace(
            point,
            full_tokens_per_s=(*point.full_tokens_per_s, _speed(plain)),
            tokens_per_s=(*point.tokens_per_s, _speed(skipping)),
        )
        tokens = int(plain.trace.named("prefill")[0].attributes["tokens"])
        yield Curve(
            experts.method, tokens, tuple(points[known] for known in sorted(points)), step + 1, pairs * len(sides)
        )


def _run(engine: Runner, request: RunRequest, config: CompressionConfig) -> RunResult:
    with closing(engine.run(request, config)) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Finished):
                return event.result
    raise EngineError("The run ended without a result.")


def _speed(result: RunResult) -> float:
    return float(result.trace.named("prefill")[0].attributes["tokens"]) / result.trace.stage_s("prefill")
