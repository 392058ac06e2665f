"""Time of the expert layers against the share of (token, expert) pairs skipped, on the shape-true stack.

    python -m benchmarks.expert_skipping --skip 0.5 0.88 --pairs 7

Pairs are skipped at random, so that the curve is that of the kernel and of no method; each token's best expert stays,
which is 1 of 8. The checkpoint is written on first use to --folder (about 5 GiB for four layers) and kept.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from torch import Tensor

from benchmarks.paired import measure_pairs, print_json
from benchmarks.stack import open_stack, stack_parser
from engines.config import CompressionConfig
from engines.engine import Engine
from engines.results import RunRequest, RunResult
from engines.structure import synchronise

SKIPPED = (0.5, 0.88)


def main() -> None:
    parser = stack_parser(__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=("prefill", "decode"), default="prefill", help="what is timed")
    parser.add_argument("--skip", type=float, nargs="+", default=SKIPPED, help="shares of the pairs to skip")
    parser.add_argument("--experts", default="native", help="number format of the experts, such as int8")
    options = parser.parse_args()
    with open_stack(options, new_tokens=1 if options.stage == "prefill" else 17) as (engine, request):
        measure(engine, request, options)


def measure(engine: Engine, request: RunRequest, options: argparse.Namespace) -> None:
    full = CompressionConfig.full().with_settings([f"precision.experts={options.experts}"])
    curve = []
    for skip in options.skip:
        config = full.with_settings(["experts.method=random", f"experts.options.skip={skip}"])
        shares: list[float] = []

        def skipping_s(config: CompressionConfig = config, shares: list[float] = shares) -> float:
            seconds, result = expert_s(engine, request, config, options.stage)
            assert result.expert_report is not None
            shares.append(result.expert_report.skipped_share or 0.0)
            return seconds

        pairs = measure_pairs(lambda: expert_s(engine, request, full, options.stage)[0], skipping_s, options.pairs)
        print(
            f"{shares[0]:6.1%} of the pairs skipped: the expert layers take {pairs.words('their full time')} in "
            f"{options.stage}."
        )
        curve.append({"asked": skip, "skipped": shares[0], **pairs.summary()})
    print_json(
        "expert_skipping", device=engine.capabilities().device, dtype=options.dtype, experts=options.experts,
        stage=options.stage, curve=curve,
    )  # fmt: skip


def expert_s(engine: Engine, request: RunRequest, config: CompressionConfig, stage: str) -> tuple[float, RunResult]:
    """Seconds in the blocks that hold router and experts, choosing what to skip included, and the run's result."""
    device, spent_s, began_s = engine.checkpoint.device, [0.0], [0.0]

    def before(_module: Any, _inputs: Any) -> None:
        synchronise(device)
        began_s[0] = time.perf_counter()

    def after(_module: Any, inputs: tuple[Tensor, ...], _output: Any) -> None:
        synchronise(device)
        if (inputs[0].shape[1] > 1) is (stage == "prefill"):
            spent_s[0] += time.perf_counter() - began_s[0]

    handles = []
    for layer in engine.checkpoint.structure.moe_layers:
        handles += [layer.block.register_forward_pre_hook(before), layer.block.register_forward_hook(after)]
    try:
        result = engine.answer(request, config)
    finally:
        for handle in handles:
            handle.remove()
    return spent_s[0], result


if __name__ == "__main__":
    main()
