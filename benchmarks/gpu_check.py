"""Everything that needs a GPU to be believed, in one go of a few minutes: exactness, precisions, paired ratios.

    python -m benchmarks.gpu_check --folder /tmp/shape-true-4

Ends with one JSON line and exit code 0 only if every check passed. `--device cpu` runs the same checks without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.paired import measure_pairs, print_json
from benchmarks.shape_true import save_checkpoint
from engines.capabilities import describe_device
from engines.checkpoint import CheckpointError, pick_device
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine, load_engine
from engines.experts.kernel import only_kept_pairs
from engines.media import load_all
from engines.prompt import build_prompt
from engines.results import RunRequest

FULL = CompressionConfig.full()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    try:
        device = pick_device(options.device)
    except CheckpointError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, text_layers=4, vision_layers=4)
    engine = load_engine(str(options.folder), options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 255, (options.side, options.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(picture)
        checks = {
            "same_tokens_as_generate": same_tokens_as_generate(engine, picture),
            "skipped_pairs_are_left_out": skipped_pairs_are_left_out(engine),
        }
        figures: dict[str, object] = {}
        for name, settings in {
            "keep_25": ["pruning.keep_ratio=0.25"],
            "keep_10": ["pruning.keep_ratio=0.1"],
            "experts_half": ["experts.top_k=4"],
            "experts_skip_88": ["experts.method=random", "experts.options.skip=0.88"],
            "int8": ["precision.all=int8"],
            "int4": ["precision.all=int4"],
        }.items():
            figures[name] = prefill_ratio(engine, picture, FULL.with_settings(settings), options.pairs)
        checks |= {f"ran_{name}": True for name in figures}
    print_json("gpu_check", device=describe_device(device), dtype=options.dtype, checks=checks, prefill_ratios=figures)
    return 0 if all(checks.values()) else 1


def ask(picture: Path, tokens: int) -> RunRequest:
    return RunRequest("What is in this image?", (picture,), sampling=SamplingConfig(max_new_tokens=tokens))


def same_tokens_as_generate(engine: Engine, picture: Path) -> bool:
    """The full configuration answers token for token as transformers' `generate` does on this device."""
    request = ask(picture, 16)
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, engine.checkpoint.processor, engine.checkpoint.device)
    with torch.inference_mode():
        theirs = engine.checkpoint.model.generate(**prompt.inputs, max_new_tokens=16, do_sample=False)
    return list(engine.answer(request, FULL).tokens) == theirs[0, prompt.length :].tolist()


def skipped_pairs_are_left_out(engine: Engine) -> bool:
    """Leaving pairs out gives what computing them with weight 0 gives, in every layer, for many tokens and for one."""
    model, device = engine.checkpoint.model, engine.checkpoint.device
    close = []
    for layer, tokens in itertools.product(engine.checkpoint.structure.moe_layers, (257, 1)):
        hidden = torch.randn(tokens, layer.router.weight.shape[1], device=device, dtype=engine.checkpoint.dtype)
        with torch.inference_mode():
            _, weights, chosen = layer.router(hidden)
            skipped = torch.rand(chosen.shape, device=device) < 0.7
            weights = weights.masked_fill(skipped, 0.0)
            slow = layer.experts(hidden, chosen, weights).float()
            with only_kept_pairs(model):
                quick = layer.experts(hidden, chosen.masked_fill(skipped, layer.experts.num_experts), weights).float()
        close.append(bool((quick - slow).norm() <= 0.01 * slow.norm()))
    return all(close)


def prefill_ratio(engine: Engine, picture: Path, config: CompressionConfig, pairs: int) -> dict[str, float]:
    request = ask(picture, 1)

    def prefill_s(one: CompressionConfig) -> float:
        return engine.answer(request, one).trace.stage_s("prefill")

    return measure_pairs(lambda: prefill_s(FULL), lambda: prefill_s(config), pairs).summary()


if __name__ == "__main__":
    sys.exit(main())
