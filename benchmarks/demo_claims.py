"""What the demo checkpoint can do and what compression costs it: `python -m benchmarks.demo_claims`.

Measures on the bundled labelled benchmark: accuracy of the full model, with images swapped and by blind guess; with
fewer experts a token; with weights of fewer bits; with fewer visual tokens, by method and keep ratio. Takes some
forty passes over the benchmark; `--every 4` asks a quarter of the questions, and several processes may share the
methods: `python -m benchmarks.pruning_table FILE...` makes one table of what they printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.paired import print_json
from engines.config import CompressionConfig
from engines.demo import benchmark
from engines.engine import Engine, load_engine
from engines.evaluation import Item, Judged, Report, evaluate, report
from engines.pruning import METHODS

SECTIONS = ("looks", "experts", "bits", "pruning")
KEEP_RATIOS = (0.75, 0.5, 0.25, 0.1)
GROUP = 64
# The parts that no quantiser touches: they are small, and choose or normalise rather than multiply.
_KEPT_WHOLE = ("norm", "embed", "gate.weight", "lm_head")


def round_weights(model: torch.nn.Module, bits: int) -> None:
    """Round all matrices to so many bits in place: symmetric, one scale for each group of 64 inputs."""
    top = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or any(part in name for part in _KEPT_WHOLE):
                continue
            rows = parameter.flatten(1) if parameter.ndim > 3 else parameter
            width = rows.shape[-1]
            groups = rows.reshape(-1, GROUP if width % GROUP == 0 else width)
            scale = (groups.abs().amax(-1, keepdim=True) / top).clamp_min(1e-12)
            parameter.copy_(((groups / scale).round().clamp(-top, top) * scale).view_as(parameter))


def least_used(judged: Iterable[Judged]) -> float:
    """Share of the tokens that reach the least used expert of any layer, over all runs."""
    layers: list[list[int]] = []
    top_k = 1
    for one in judged:
        found = one.result.expert_report
        if found is None:
            raise ValueError("a dense checkpoint has no experts")
        top_k = found.top_k
        layers = [
            [a + b for a, b in zip(sums, layer, strict=True)]
            for sums, layer in zip(layers or [[0] * found.experts] * len(found.layers), found.layers, strict=True)
        ]
    return min(min(layer) / (sum(layer) / top_k) for layer in layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="ask every Nth question only")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=SECTIONS)
    parser.add_argument("--methods", choices=sorted(METHODS), nargs="+", default=sorted(METHODS))
    arguments = parser.parse_args()
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        every = arguments.every
        everything = list(benchmark.items("all", Path(folder), every))
        engine = load_engine(arguments.model, "cpu", "fp32")

        def ask(name: str, items: list[Item], *settings: str, engine: Engine = engine) -> Report:
            # The cache saves encoding a scene anew for each question; its hits equal what the tower would give.
            config = CompressionConfig.full().with_settings(["cache.encoder=true", *settings])
            judged = list(tqdm(evaluate(engine, items, config), total=len(items), desc=name, file=sys.stderr))
            found = report(judged)
            if name == "full":
                figures["least_used_expert"] = round(least_used(judged), 4)
            figures[name] = _summary(found)
            score = found.overall
            print(f"{name:24}{score.accuracy:8.1%}  ({score.low:.1%} to {score.high:.1%})", flush=True)
            return found

        full = ask("full", everything)
        _print_groups(full)
        print(f"least used expert: {figures['least_used_expert']:.2%} of the tokens")
        if "looks" in arguments.only:
            _print_groups(ask("swapped images", benchmark.swapped(everything)))
            blind = benchmark.blind_scores("all")
            figures["blind guess"] = {name: round(score.accuracy or 0, 4) for name, score in blind.items()}
            print("blind guess: " + ", ".join(f"{name} {score.accuracy:.1%}" for name, score in blind.items()))
        if "experts" in arguments.only:
            for top_k in (2, 1):
                ask(f"top-{top_k}", everything, f"experts.top_k={top_k}")
        if "bits" in arguments.only:
            ask("int8", everything, "precision.all=int8")
            for bits in (4, 3):
                rounded = load_engine(arguments.model, "cpu", "fp32")
                round_weights(rounded.checkpoint.model, bits)
                ask(f"{bits}-bit weights", everything, engine=rounded)
        if "pruning" in arguments.only:
            for method, keep in itertools.product(arguments.methods, KEEP_RATIOS):
                settings = (f"pruning.method={method}", f"pruning.keep_ratio={keep}")
                _print_groups(ask(f"{method} {keep:.0%}", everything, *settings))
    print_json("demo_claims", model=arguments.model, every=every, **figures)


def _summary(found: Report) -> dict[str, object]:
    return {
        "asked": found.overall.asked,
        "accuracy": round(found.overall.accuracy or 0, 4),
        "low": round(found.overall.low or 0, 4),
        "high": round(found.overall.high or 0, 4),
        **{
            kind: {name: round(score.accuracy or 0, 4) for name, score in scores.items()}
            for kind, scores in found.groups.items()
        },
    }


def _print_groups(found: Report) -> None:
    for scores in found.groups.values():
        print("    " + ", ".join(f"{name} {score.accuracy:.1%}" for name, score in scores.items()), flush=True)


if __name__ == "__main__":
    main()
