"""What the cross-modal top-k mask costs in time, and what share of the pairs it keeps, on the shape-true stack.

    python -m benchmarks.cross_modal_mask --text-top-k 12 --visual-top-k 24 --pairs 5

A mask saves no work by itself: every score is computed to find the best. Ratios above 1 say what it costs.
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
from engines.reports import AttentionReport
from engines.results import RunRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a checkpoint to measure on instead, such as demo")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--text-top-k", type=int, default=12)
    parser.add_argument("--visual-top-k", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    if options.model is None and not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    engine = load_engine(options.model or str(options.folder), options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 255, (options.side, options.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        sampling = SamplingConfig(max_new_tokens=options.new_tokens)
        measure(engine, RunRequest("What is in this image?", (path,), sampling=sampling), options)


def measure(engine: Engine, request: RunRequest, options: argparse.Namespace) -> None:
    settings = [
        "attention.cross_modal=true",
        f"attention.text_top_k={options.text_top_k}",
        f"attention.visual_top_k={options.visual_top_k}",
    ]
    full, masked = CompressionConfig.full(), CompressionConfig.full().with_settings(settings)
    reports: list[AttentionReport] = []

    def stage_s(config: CompressionConfig, stage: str) -> float:
        result = engine.answer(request, config)
        if result.attention_report is not None:
            reports.append(result.attention_report)
        return result.trace.stage_s(stage) / max(1, len(result.trace.named(stage)))

    figures: dict[str, object] = {}
    for stage in ("prefill", "decode"):
        pairs = measure_pairs(lambda: stage_s(full, stage), lambda: stage_s(masked, stage), options.pairs)  # noqa: B023
        low, high = min(pairs.ratios), max(pairs.ratios)
        print(f"{stage} with the mask takes {pairs.median_ratio:.3f} of that without ({low:.3f} to {high:.3f}).")
        figures[stage] = pairs.summary()
    report = reports[-1]
    for kind, pairs_kept in (("text to visual", report.text), ("visual to text", report.visual)):
        print(f"{kind} pairs kept: {pairs_kept.kept:,} of {pairs_kept.total:,}")
    figures |= {"text_share": report.text.share, "visual_share": report.visual.share}
    print_json("cross_modal_mask", text_top_k=options.text_top_k, visual_top_k=options.visual_top_k, **figures)


if __name__ == "__main__":
    main()
