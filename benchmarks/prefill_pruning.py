"""Prefill with a share of the visual tokens against the full prefill, on the shape-true stack.

    python -m benchmarks.prefill_pruning --keep-ratio 0.25 --pairs 7

The checkpoint is written on first use to --folder (about 5 GiB for four layers) and kept for the next time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.paired import measure_pairs, print_json
from benchmarks.shape_true import save_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine, load_engine
from engines.results import RunRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--keep-ratio", type=float, default=0.25)
    parser.add_argument("--method", default="mmr")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    engine = load_engine(str(options.folder), options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 255, (options.side, options.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        request = RunRequest("What is in this image?", (path,), sampling=SamplingConfig(max_new_tokens=1))
        measure(engine, request, options)


def measure(engine: Engine, request: RunRequest, options: argparse.Namespace) -> None:
    settings = [f"pruning.keep_ratio={options.keep_ratio}", f"pruning.method={options.method}"]
    full, pruned = CompressionConfig.full(), CompressionConfig.full().with_settings(settings)
    seen: dict[str, object] = {}

    def prefill_s(config: CompressionConfig, name: str) -> float:
        result = engine.answer(request, config)
        seen[f"{name}_visual_tokens"] = result.visual_tokens
        seen[f"{name}_prune_s"] = round(result.trace.stage_s("prune"), 6)
        seen[f"{name}_ttft_s"] = round(result.ttft_s or 0.0, 6)
        return result.trace.stage_s("prefill")

    pairs = measure_pairs(lambda: prefill_s(full, "full"), lambda: prefill_s(pruned, "pruned"), options.pairs)
    print(f"Prefill with {seen['pruned_visual_tokens']} of {seen['full_visual_tokens']} visual tokens takes")
    print(f"{pairs.median_ratio:.3f} of the full prefill ({min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}).")
    print_json(
        "prefill_pruning", device=engine.capabilities().device, dtype=options.dtype, method=options.method,
        **pairs.summary(), **seen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
