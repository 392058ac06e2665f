"""A second question about an image against the first: time to first token, on the shape-true stack.

    python -m benchmarks.prefix_cache --pairs 7

Cold: an image that no run has seen, about 1,000 visual tokens. Warm: the same image again, another question, with the
prefix cache alone. Level: a ratio of at most 0.20. The checkpoint is written on first use to --folder (about 5 GiB
for four layers) and kept for the next time.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.paired import measure_pairs, print_json
from benchmarks.shape_true import save_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine, load_engine
from engines.results import RunRequest

LEVEL = 0.20
QUESTION = "What colour is shape number {number} on the left of the picture?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="GROUP.NAME=VALUE")
    options = parser.parse_args()
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    engine = load_engine(str(options.folder), options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        measure(engine, Path(folder), options)


def measure(engine: Engine, folder: Path, options: argparse.Namespace) -> None:
    cached = CompressionConfig.full().with_settings([*options.assignments, "cache.prefix=true"])
    random = np.random.default_rng(0)
    known = folder / "known.png"
    draw_noise(random, options.side, known)
    seen: dict[str, object] = {}
    # A question that was asked before would be cached itself.
    numbers = itertools.count(100)

    def ttft_s(path: Path, name: str) -> float:
        question = QUESTION.format(number=next(numbers))
        request = RunRequest(question, (path,), sampling=SamplingConfig(max_new_tokens=1), warm_up=False)
        result = engine.answer(request, cached)
        stats = result.cache_stats.run["prefix"]
        seen[f"{name}_prompt_tokens"], seen[f"{name}_cached_tokens"] = result.prompt_tokens, stats.tokens
        seen["visual_tokens"] = result.visual_tokens
        for stage in ("decode media", "preprocess", "prefix-cache lookup", "vision encode", "prefill"):
            seen[f"{name}_{stage.replace(' ', '_').replace('-', '_')}_s"] = round(result.trace.stage_s(stage), 6)
        assert result.ttft_s is not None
        return result.ttft_s

    def cold() -> float:
        fresh = folder / "fresh.png"
        draw_noise(random, options.side, fresh)
        return ttft_s(fresh, "cold")

    def warm() -> float:
        # Asked about untimed first, so that the image is known however much was forgotten since.
        ttft_s(known, "first")
        return ttft_s(known, "warm")

    pairs = measure_pairs(cold, warm, options.pairs)
    same = same_answer(engine, known, cached)
    print(f"With {seen['warm_cached_tokens']} of {seen['warm_prompt_tokens']} tokens cached, the first token comes in")
    print(f"{pairs.median_ratio:.3f} of the cold time ({min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}).")
    print(f"The answer is {'the same as' if same else 'NOT that'} without a cache.")
    print_json(
        "prefix_cache", device=engine.capabilities().device, dtype=options.dtype, level=LEVEL,
        reached=pairs.median_ratio <= LEVEL, same_answer=same, **pairs.summary(), **seen,
    )  # fmt: skip


def same_answer(engine: Engine, path: Path, cached: CompressionConfig) -> bool:
    """Eight tokens, with the cache warm and without any."""
    request = RunRequest(QUESTION.format(number=99), (path,), sampling=SamplingConfig(max_new_tokens=8), warm_up=False)
    plain = cached.with_settings(["cache.prefix=false"])
    return engine.answer(request, cached).tokens == engine.answer(request, plain).tokens


def draw_noise(random: np.random.Generator, side: int, path: Path) -> None:
    Image.fromarray(random.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)


if __name__ == "__main__":
    main()
