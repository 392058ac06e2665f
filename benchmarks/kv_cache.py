"""Bytes and decode time of a KV cache in blocks against the plain one, on the shape-true stack.

    python -m benchmarks.kv_cache --pairs 7

The cache is filled with random keys and values of the right shapes instead of a prefill, which changes neither
figure. Time is that of whole decode steps, experts and output head included. The checkpoint is written on first use
to --folder and kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.paired import measure_pairs, print_json
from benchmarks.shape_true import save_checkpoint
from engines.capabilities import describe_device
from engines.checkpoint import Checkpoint, load_checkpoint
from engines.config import KVConfig
from engines.kv.stage import KVStage
from engines.memory import cache_bytes
from engines.structure import Structure, synchronise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in the cache")
    parser.add_argument("--visual", type=float, default=0.9, help="share of them that is visual")
    parser.add_argument("--bits", type=int, nargs="+", default=(8, 4))
    parser.add_argument("--steps", type=int, default=16, help="decode steps a measurement")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    checkpoint = load_checkpoint(str(options.folder), options.device, options.dtype)
    figures = {}
    for bits in options.bits:
        figures[f"{bits}_bit"] = found = measure(checkpoint, KVConfig(bits=bits), options)
        print(
            f"{bits} bit: {found['bytes_over_bf16']:.3f} of the bytes of a bf16 cache at {options.tokens} tokens; "
            f"a decode step takes {found['median_ratio']:.3f} of the time "
            f"({found['lowest_ratio']:.3f} to {found['highest_ratio']:.3f})."
        )
    print_json(
        "kv_cache", device=describe_device(checkpoint.device), dtype=options.dtype, tokens=options.tokens,
        layers=len(checkpoint.structure.language_model.layers), **figures,
    )  # fmt: skip


def measure(checkpoint: Checkpoint, config: KVConfig, options: argparse.Namespace) -> dict[str, float]:
    structure, device = checkpoint.structure, checkpoint.device
    visual = torch.zeros(options.tokens, dtype=torch.bool, device=device)
    visual[4 : 4 + int(options.visual * options.tokens)] = True
    plain, compressed = (fill(structure, options.tokens, checkpoint.dtype, device) for _ in range(2))
    stage = KVStage(structure, config)
    stage.begin(visual)
    bf16_bytes = cache_bytes(plain) * torch.bfloat16.itemsize // checkpoint.dtype.itemsize
    started_s = time.perf_counter()
    with torch.inference_mode():
        stage.compress(compressed)
    synchronise(device)
    compress_s = time.perf_counter() - started_s
    held_bytes = cache_bytes(compressed)

    def compressed_s() -> float:
        with stage.applied():
            return decode_s(structure, compressed, options.steps)

    pairs = measure_pairs(lambda: decode_s(structure, plain, options.steps), compressed_s, options.pairs)
    return {
        "bytes_over_bf16": round(held_bytes / bf16_bytes, 4),
        "compress_s": round(compress_s, 4),
        **pairs.summary(),
    }


def fill(structure: Structure, tokens: int, dtype: torch.dtype, device: torch.device) -> DynamicCache:
    """A plain cache as a prefill of so many tokens would leave it."""
    config = structure.text_config
    shape = (1, config.num_key_value_heads, tokens, config.head_dim)
    cache = DynamicCache(config=config)
    generator = torch.Generator(device).manual_seed(0)
    for index in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(2))
        cache.update(keys, values, index)
    return cache


def decode_s(structure: Structure, cache: Any, steps: int) -> float:
    """Seconds of so many decode steps; both caches grow alike from call to call."""
    device = structure.lm_head.weight.device
    embeddings = structure.core.get_input_embeddings()(torch.zeros(1, 1, dtype=torch.long, device=device))
    synchronise(device)
    started_s = time.perf_counter()
    with torch.inference_mode():
        for _ in range(steps):
            positions = torch.full((4, 1, 1), cache.get_seq_length(), device=device)
            output = structure.language_model(
                inputs_embeds=embeddings, position_ids=positions, cache=cache, use_cache=True
            )
            structure.lm_head(output.last_hidden_state)
    synchronise(device)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
