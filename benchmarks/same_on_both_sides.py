"""A against A: the same settings on both sides. The median ratio shows how fair the comparison is.

python -m benchmarks.same_on_both_sides photo.jpg --pairs 10
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.paired import measure_pairs, print_json
from engines.compare import Comparison, compare
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import load_engine
from engines.results import RunRequest, RunResult


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("media", nargs="+", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    options = parser.parse_args()
    engine = load_engine(options.model, options.device)
    sampling = SamplingConfig(max_new_tokens=options.max_new_tokens)
    request = RunRequest("What is in this picture?", tuple(options.media), sampling=sampling)
    config = CompressionConfig.full()
    results: list[RunResult] = []

    def run() -> float:
        results.append(engine.answer(request, config))
        return results[-1].trace.total_s

    pairs = measure_pairs(run, run, options.pairs)
    shares = [result.trace.unaccounted_s / result.trace.total_s for result in results]
    print(f"Same settings on both sides: median ratio {pairs.median_ratio:.3f}")
    print(f"({min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}); unaccounted time at most {max(shares):.1%}.")
    page = [item for item in compare(engine, request, config, config) if isinstance(item, Comparison)]
    print_json(
        "same_on_both_sides",
        device=engine.capabilities().device,
        **pairs.summary(),
        ttft_median_s=round(sorted(result.ttft_s or 0.0 for result in results)[len(results) // 2], 6),
        largest_unaccounted_share=round(max(shares), 4),
        one_comparison_total_ratio=round(page[0].ratios()["total"] or 0.0, 4),
    )


if __name__ == "__main__":
    main()
