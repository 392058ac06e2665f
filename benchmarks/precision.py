"""Resident memory of the weights, and time of prefill and of decoding, at int8 and int4, on the shape-true stack.

    python -m benchmarks.precision --pairs 7

Memory is that of a process of its own, with and without the weights, which may hold no precision but the one in use.
Times are those of the language model, experts and output head included, over the faster of fp32 and bf16. The
checkpoint is written on first use to --folder and kept. --only kernels times single products instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.paired import Pairs, measure_pairs, print_json
from benchmarks.shape_true import save_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine, load_engine
from engines.precision.base import Conversion
from engines.precision.int4 import Int4Matrix
from engines.precision.int8 import Int8Matrix
from engines.precision.layers import Activations
from engines.results import RunRequest, RunResult

FLOATS = ("fp32", "bf16")
INTEGERS = ("int8", "int4")
# (out, in) of an expert's second product, and of the query projection.
SHAPES = ((2048, 768), (4096, 2048))
ROWS = (1, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-2")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--tokens", type=int, default=17, help="tokens that are decoded in a run")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=("memory", "time", "kernels"), help="measure one thing only")
    parser.add_argument("--resident", metavar="PRECISION", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only == "kernels":
        print_json("precision", kernels=measure_kernels(options.pairs), threads=torch.get_num_threads())
        return
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    if options.resident:
        print(json.dumps(resident_bytes(options.folder, options.device, options.resident)))
        return
    figures: dict[str, object] = {}
    if options.only != "time":
        figures["memory"] = measure_memory(options.folder, options.device)
    if options.only != "memory":
        figures["time"] = measure_time(options)
    print_json("precision", layers=options.text_layers, threads=torch.get_num_threads(), **figures)


# ---- memory ----


def measure_memory(folder: Path, device: str) -> dict[str, float]:
    """Bytes that came with the weights, over those at bf16."""
    found = {}
    for name in ("native", *INTEGERS):
        command = [sys.executable, "-m", "benchmarks.precision", "--folder", str(folder), "--device", device]
        done = subprocess.run([*command, "--resident", name], capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    ratios = {}
    for name in INTEGERS:
        ratios[name] = found[name]["resident"] / found["native"]["resident"]
        of_tensors = found[name]["tensors"] / found["native"]["tensors"]
        ratios[f"{name}_tensors"] = of_tensors
        print(f"{name}: {ratios[name]:.3f} of the resident memory of bf16 weights; {of_tensors:.3f} of their tensors.")
    return {name: round(value, 4) for name, value in ratios.items()} | {"bf16_bytes": found["native"]["resident"]}


def resident_bytes(folder: Path, device: str, precision: str) -> dict[str, int]:
    """What a process holds more with a model at this precision than before it was loaded."""
    before = _memory(device)
    engine = load_engine(str(folder), device, "bf16")
    engine = Engine(engine.checkpoint, weight_pool_bytes=1)
    config = CompressionConfig.full().with_settings([f"precision.all={precision}"])
    request = RunRequest("What?", sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    result = engine.answer(request, config)
    # Mapped weights that the run did not need are not there yet; the others were read to be converted.
    for weights in engine.checkpoint.model.parameters():
        if not weights.is_meta:
            weights.detach().view(-1)[::512].sum()
    return {"resident": _memory(device) - before, "tensors": result.memory.weight_bytes}


def _memory(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated()
    import psutil

    return int(psutil.Process().memory_info().rss)


# ---- time ----


def measure_time(options: argparse.Namespace) -> dict[str, object]:
    engine = load_engine(str(options.folder), options.device, "bf16")
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 255, (options.side, options.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        request = RunRequest(
            "What is in this image?", (path,), sampling=SamplingConfig(max_new_tokens=options.tokens), warm_up=False
        )
        for name in INTEGERS:
            against = {other: pairs_of_runs(engine, request, other, name, options.pairs) for other in FLOATS}
            for stage in ("prefill", "decode"):
                # The faster float is the one against which the ratio is higher.
                other = max(FLOATS, key=lambda one: against[one][stage].median_ratio)
                pairs = against[other][stage]
                print(
                    f"{name} {stage}: {pairs.median_ratio:.3f} of the time of {other}"
                    f" ({min(pairs.ratios):.3f} to {max(pairs.ratios):.3f})."
                )
                figures[f"{name}_{stage}"] = {"over": other, **pairs.summary()}
    return figures


def pairs_of_runs(engine: Engine, request: RunRequest, first: str, second: str, pairs: int) -> dict[str, Pairs]:
    """Both stages out of the same runs, in alternating order after one run each."""
    seconds: dict[str, tuple[list[float], list[float]]] = {"prefill": ([], []), "decode": ([], [])}

    def run(place: int, name: str) -> float:
        config = CompressionConfig.full().with_settings([f"precision.all={name}"])
        result = engine.answer(request, config)
        for stage, spent_s in stages_s(result).items():
            seconds[stage][place].append(spent_s)
        return result.trace.total_s

    measure_pairs(lambda: run(0, first), lambda: run(1, second), pairs)
    # The first run of each is the warm-up.
    return {stage: Pairs(firsts[1:], seconds_[1:]) for stage, (firsts, seconds_) in seconds.items()}


def stages_s(result: RunResult) -> dict[str, float]:
    """Seconds of the prefill, and the median of the decode steps."""
    spans = result.trace.spans
    return {
        "prefill": sum(span.duration_s for span in spans if span.name == "prefill"),
        "decode": statistics.median(span.duration_s for span in spans if span.name == "decode"),
    }


# ---- single products ----


def measure_kernels(pairs: int) -> dict[str, object]:
    """One product on the CPU, with as many copies of its weights as no cache holds."""
    figures: dict[str, object] = {}
    with torch.inference_mode():
        for out, width in SHAPES:
            copies = 400_000_000 // (out * width * 2)
            weights = [torch.randn(out, width, dtype=torch.bfloat16) * width**-0.5 for _ in range(copies)]
            calls: dict[str, Callable[[int, Tensor], Tensor]] = {}
            floats = {"bf16": weights, "fp32": [weight.float() for weight in weights[: copies // 2]]}
            for name, made in floats.items():
                calls[name] = lambda turn, rows, made=made: torch.nn.functional.linear(  # type: ignore[misc]
                    rows.to(made[0].dtype), made[turn % len(made)]
                )
            for name, kind in (("int8", Int8Matrix), ("int4", Int4Matrix)):
                matrix = kind(torch.stack(weights), Conversion())
                calls[name] = lambda turn, rows, matrix=matrix, copies=copies: matrix.product(  # type: ignore[misc]
                    Activations(rows), turn % copies
                )
            for rows in ROWS:
                inputs = torch.randn(rows, width)
                for name in INTEGERS:
                    against = {
                        other: measure_pairs(_timed(calls[other], inputs), _timed(calls[name], inputs), pairs)
                        for other in floats
                    }
                    other = max(against, key=lambda one: against[one].median_ratio)
                    found = against[other]
                    print(f"{out} x {width}, {rows} rows: {name} {found.median_ratio:.3f} of the time of {other}.")
                    figures[f"{name}_{out}x{width}_{rows}"] = {"over": other, **found.summary()}
    return figures


def _timed(call: Callable[[int, Tensor], Tensor], inputs: Tensor) -> Callable[[], float]:
    turn = [0]

    def timed() -> float:
        repeats = 16 if len(inputs) == 1 else 4
        start_s = time.perf_counter()
        for _ in range(repeats):
            turn[0] += 1
            call(turn[0], inputs)
        return (time.perf_counter() - start_s) / repeats

    return timed


if __name__ == "__main__":
    main()
