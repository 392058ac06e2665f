"""Prefill with a share of the visual tokens against the full prefill, and what choosing them costs.

    python -m benchmarks.prefill_pruning --keep-ratio 0.25 0.1 --pairs 7

On the shape-true stack, with 1,024 visual tokens unless --side says otherwise. The checkpoint is written on first use
to --folder (about 5 GiB for four layers) and kept for the next time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.paired import Pairs, measure_pairs, print_json
from benchmarks.stack import open_stack, stack_parser
from engines.config import CompressionConfig
from engines.engine import Engine
from engines.pruning import METHODS
from engines.pruning.stage import PruneStage
from engines.results import RunRequest
from engines.structure import LayerCut, synchronise

# What a selector may cost of the prefill that it saves.
MOST_SHARE = 0.03


def main() -> None:
    parser = stack_parser(__doc__.split("\n")[0])
    parser.add_argument("--keep-ratio", type=float, nargs="+", default=[0.25, 0.1])
    parser.add_argument("--method", default="mmr", help="the selector with which prefill is measured")
    parser.add_argument("--selectors", nargs="*", default=list(METHODS), help="those whose cost is measured")
    parser.add_argument("--selector-pairs", type=int, default=3)
    options = parser.parse_args()
    with open_stack(options) as (engine, request):
        prefill = []
        for keep_ratio in options.keep_ratio:
            pairs, seen = prefill_pairs(engine, request, options.method, keep_ratio, options.pairs)
            print(
                f"Prefill with {seen['visual_tokens']} of {seen['full_visual_tokens']} visual tokens takes "
                f"{pairs.words('the full prefill')}."
            )
            prefill.append({"keep_ratio": keep_ratio, **pairs.summary(), **seen})
        costs = []
        for method in options.selectors:
            pairs, seen = prefill_pairs(engine, request, method, options.keep_ratio[0], options.selector_pairs)
            cost = selection_cost(pairs, seen)
            costs.append({"method": method, **cost, **seen})
            verdict = "" if cost["share"] is None or cost["share"] < MOST_SHARE else "  <- above 3 %"
            share = "nothing saved" if cost["share"] is None else f"{cost['share']:.2%} of the prefill it saves"
            print(f"{method:>16}: {cost['selection_s'] * 1000:7.1f} ms, {share}{verdict}")
        print_json(
            "prefill_pruning", device=engine.capabilities().device, dtype=options.dtype, method=options.method,
            prefill=prefill, selection=costs,
        )  # fmt: skip


def prefill_pairs(
    engine: Engine, request: RunRequest, method: str, keep_ratio: float, count: int
) -> tuple[Pairs, dict[str, Any]]:
    """Prefill seconds, full and pruned in turn, and what else was seen; `selection_s` holds one figure a pair."""
    full = CompressionConfig.full()
    pruned = full.with_settings([f"pruning.keep_ratio={keep_ratio}", f"pruning.method={method}"])
    seen: dict[str, Any] = {"selection_s": []}

    def full_s() -> float:
        result = engine.answer(request, full)
        seen["full_visual_tokens"] = result.visual_tokens
        return result.trace.stage_s("prefill")

    def pruned_s() -> float:
        with selection_timed(engine) as spent_s:
            result = engine.answer(request, pruned)
        seen["visual_tokens"] = result.visual_tokens
        seen["inside_layer"] = result.prune_report.layer
        # A run with new shapes warms up first, and chooses there too: the last choice is that of the run.
        seen["selection_s"].append(spent_s[-1])
        return result.trace.stage_s("prefill")

    pairs = measure_pairs(full_s, pruned_s, count)
    seen["selection_s"] = seen["selection_s"][-count:]
    return pairs, seen


def selection_cost(pairs: Pairs, seen: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of a selection, and its share of the prefill saved; None where nothing is saved."""
    selection_s = statistics.median(seen.pop("selection_s"))
    saved_s = statistics.median(full - pruned for full, pruned in zip(pairs.first_s, pairs.second_s, strict=True))
    if seen["inside_layer"] is not None:  # what it cost is part of its prefill
        saved_s += selection_s
    return {
        "selection_s": round(selection_s, 6),
        "saved_s": round(saved_s, 6),
        "share": round(selection_s / saved_s, 5) if saved_s > 0 else None,
    }


@contextmanager
def selection_timed(engine: Engine) -> Iterator[list[float]]:
    """Seconds of every selection made while open: choosing the rows, and reading the attention where it needs that."""
    device = engine.checkpoint.device
    spent_s: list[float] = []
    reading_s = [0.0]

    def timed(work: Callable[..., Any], done: Callable[[float], None]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            synchronise(device)
            start_s = time.perf_counter()
            outcome = work(*arguments)
            synchronise(device)
            done(time.perf_counter() - start_s)
            return outcome

        return call

    def read(seconds: float) -> None:
        reading_s[0] = seconds

    def chosen(seconds: float) -> None:
        spent_s.append(seconds + reading_s[0])
        reading_s[0] = 0.0

    choose, received = PruneStage._choose, LayerCut._received
    PruneStage._choose = timed(choose, chosen)  # type: ignore[method-assign]
    LayerCut._received = timed(received, read)  # type: ignore[method-assign]
    try:
        yield spent_s
    finally:
        PruneStage._choose = choose  # type: ignore[method-assign]
        LayerCut._received = received  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
