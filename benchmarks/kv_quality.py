"""What a compressed KV cache does to the demo checkpoint's predictions, along the full model's own answers.

    python -m benchmarks.kv_quality --every 25 --set kv.bits=4

Both caches come from one prefill, so that the first token is the same by construction and is not counted. Accuracy on
the labelled benchmark is measured by `launch.py eval --set kv.bits=4`.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.paired import print_json
from engines.agreement import agreement
from engines.checkpoint import Checkpoint, load_checkpoint
from engines.config import CompressionConfig, KVConfig
from engines.decoding import Decoder, stop_tokens
from engines.demo import benchmark
from engines.kv.stage import KVStage
from engines.media import load_all
from engines.prompt import build_prompt
from engines.results import RunRequest
from engines.sequence import build_sequence
from engines.vision.torch_tower import encode_items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--every", type=int, default=25, help="ask every so manieth question of the benchmark")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of an answer")
    parser.add_argument("--set", dest="assignments", action="append", default=[], metavar="kv.NAME=VALUE")
    options = parser.parse_args()
    settings = options.assignments or ["kv.bits=4"]
    config = CompressionConfig.full().with_settings(settings).kv
    checkpoint = load_checkpoint(options.model, options.device)
    full, compressed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for item in benchmark.items("all", Path(folder), options.every):
            request = RunRequest(item.question, item.media, frames=item.frames)
            ours, theirs = both_logits(checkpoint, request, config, options.tokens)
            full += ours
            compressed += theirs
    found = agreement(torch.stack(full), torch.stack(compressed))
    p99 = "" if found.p99_kl is None else f" (99th percentile {found.p99_kl:.4f})"
    print(
        f"{', '.join(settings)}: mean divergence {found.mean_kl:.5f} nats{p99}, "
        f"the same most likely token at {found.same_top:.2%} of {found.positions} positions."
    )
    print_json("kv_quality", model=checkpoint.name, settings=settings, **asdict(found))


def both_logits(
    checkpoint: Checkpoint, request: RunRequest, config: KVConfig, tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The logits after each token of the full model's answer, (vocabulary,), with the plain cache and the other."""
    structure, stop = checkpoint.structure, stop_tokens(checkpoint.model, checkpoint.tokenizer)
    stage = KVStage(structure, config)
    with torch.inference_mode(), stage.applied():
        media = load_all(request.media, limits=request.limits, sampling=request.frames)
        prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
        images, videos = (encode_items(structure, items) if items else [] for items in (prompt.images, prompt.videos))
        sequence = build_sequence(structure, prompt, images, videos)
        plain = Decoder(structure)
        stage.begin(sequence.visual[0])
        token = int(plain.prefill(sequence).argmax())
        other = copy.copy(plain)
        other.cache = copy.deepcopy(plain.cache)
        stage.compress(other.cache)
        full: list[Tensor] = []
        compressed: list[Tensor] = []
        while token not in stop and len(full) < tokens:
            full.append(plain.step(token)[0])
            compressed.append(other.step(token)[0])
            token = int(full[-1].argmax())
    return full, compressed


if __name__ == "__main__":
    main()
