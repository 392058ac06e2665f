"""Time of a reduced vision tower against the whole one, at the layer sizes of Qwen3-VL-30B-A3B.

    python -m benchmarks.tower_reduction --side 1024 --pairs 5

A tower of --layers layers with random weights; the published one has 27. No checkpoint is written.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen3VLMoeVisionConfig, Qwen3VLMoeVisionModel

from benchmarks.paired import measure_pairs, print_json
from benchmarks.shape_true import VISION
from engines.config import VisionConfig
from engines.structure import synchronise
from engines.vision import METHODS
from engines.vision.reduced import reduced_tower

PATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--after-layer", type=int, default=1)
    parser.add_argument("--keep-ratio", type=float, nargs="+", default=[0.5, 0.25])
    parser.add_argument("--method", nargs="+", choices=tuple(METHODS), default=["merging", "still"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    tower = build_tower(options.layers, options.device, getattr(torch, options.dtype))
    side = options.side // PATCH
    pixels = torch.randn(side * side, 3 * 2 * PATCH * PATCH).to(options.device)
    grid = torch.tensor([[1, side, side]], device=options.device)
    structure: Any = SimpleNamespace(visual=tower, merge_size=2, mergers=[tower.merger, *tower.deepstack_merger_list])

    def encode_s(config: VisionConfig | None) -> float:
        with torch.inference_mode(), reduced_tower(structure, config) if config else nullcontext():
            synchronise(pixels.device)
            start_s = time.perf_counter()
            tower(pixels, grid_thw=grid)
            synchronise(pixels.device)
            return time.perf_counter() - start_s

    found = []
    for method in options.method:
        for keep_ratio in options.keep_ratio:
            config = VisionConfig(method, keep_ratio, options.after_layer)
            pairs = measure_pairs(lambda: encode_s(None), lambda config=config: encode_s(config), options.pairs)  # type: ignore[misc]
            print(
                f"{method}: {keep_ratio:.0%} of the units after layer {options.after_layer} of {options.layers} take "
                f"{pairs.words('the time of the whole tower')}."
            )
            found.append({"method": method, "keep_ratio": keep_ratio, **pairs.summary()})
    print_json(
        "tower_reduction", device=options.device, dtype=options.dtype, patches=side * side, layers=options.layers,
        after_layer=options.after_layer, results=found,
    )  # fmt: skip


def build_tower(layers: int, device: str, dtype: torch.dtype) -> Any:
    """One deepstack feature a third of the way, as the published tower has three."""
    torch.manual_seed(0)
    config = Qwen3VLMoeVisionConfig(**VISION, depth=layers, deepstack_visual_indexes=[max(0, layers // 3 - 1)])
    return Qwen3VLMoeVisionModel(config).to(device, dtype).eval()


if __name__ == "__main__":
    main()
