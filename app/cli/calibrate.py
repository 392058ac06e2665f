"""What expert skipping, and int8 and int4, need to know of a checkpoint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.cli.common import UsageError, add_model_options, load_checkpoint


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    calibration = commands.add_parser(
        "calibrate",
        help="measure what expert skipping or int8 and int4 need to know of a checkpoint",
        description="experts: measure how much each layer's experts matter and find the thresholds of "
        "experts.method=modality that skip the target share at least damage. precision: measure what enters each "
        "layer from visual and from text tokens, by which int8 and int4 then choose their scales and the compensation "
        "its directions. Both on prompts like the benchmark's, precision also on the media of a folder. What was "
        "measured is kept in the user's cache folder and used from then on; the result goes to stdout, progress to "
        "stderr.",
    )
    add_model_options(calibration, default=argparse.SUPPRESS)
    calibration.add_argument("what", metavar="experts|precision", help="what to calibrate")
    calibration.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="with precision: images and videos to calibrate on, instead of prompts like the benchmark's",
    )
    calibration.add_argument(
        "--percentile",
        type=float,
        default=99.9,
        metavar="P",
        help="with precision: magnitudes above this percentile of a layer count as if at it (default: %(default)s)",
    )
    calibration.add_argument(
        "--every", type=int, default=60, metavar="N", help="use every Nth prompt of the 1,500 (default: %(default)s)"
    )
    calibration.add_argument(
        "--target",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of all (token, expert) pairs to skip (default: %(default)s)",
    )
    calibration.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
    if options.what not in ("experts", "precision"):
        raise UsageError(f"There is no calibration of {options.what}; there are those of experts and of precision.")
    if options.every < 1:
        raise UsageError(f"--every is {options.every}; it must be at least 1.")
    if options.what == "precision":
        _calibrate_precision(options)
    else:
        _calibrate_experts(options)


def _calibrate_precision(options: argparse.Namespace) -> None:
    import statistics
    import tempfile

    from tqdm import tqdm

    from engines.demo import benchmark
    from engines.media import SUFFIXES
    from engines.precision.calibrate import calibrate
    from engines.results import RunRequest

    if not 50 <= options.percentile <= 100:
        raise UsageError(f"--percentile is {options.percentile:g}; it must be at least 50 and at most 100.")
    files: list[Path] = []
    if options.folder is not None:
        if not options.folder.is_dir():
            raise UsageError(f"There is no folder {options.folder}; name one with images and videos.")
        files = sorted(path for path in options.folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not files:
            raise UsageError(f"The folder {options.folder} holds no image or video.")
    # Not through the engine, which would refuse an earlier calibration that cannot be read.
    checkpoint = load_checkpoint(options)
    with tempfile.TemporaryDirectory(prefix="workbench-calibrate-") as folder:
        if files:
            requests = iter([RunRequest("Describe this in detail.", (path.resolve(),)) for path in files])
            total, source = len(files), f"the folder {options.folder.name}"
        else:
            # Not the scenes that `eval` asks about.
            items = benchmark.items("all", Path(folder), options.every, split="validation")
            requests = (RunRequest(item.question, item.media, frames=item.frames) for item in items)
            total, source = benchmark.size("all", options.every), f"every {options.every}th bundled prompt"
        prompts = tqdm(requests, total=total, desc="prompts", unit="prompt", file=sys.stderr)
        found = calibrate(checkpoint, prompts, source, options.percentile)
    print(f"{'layers measured':32}{len(found.layers)}, on {found.prompts} prompts from {found.source}")
    for kind in ("text", "visual"):
        ratios = [ratio for one in found.signals.values() if (ratio := getattr(one, f"{kind}_db")) is not None]
        if ratios:
            shown = f"{statistics.median(ratios):.1f} dB, from {min(ratios):.1f} to {max(ratios):.1f}"
            print(f"{f'{kind} tokens at int4':32}signal to noise {shown} over {len(ratios)} layers")
    print(f"{'kept in':32}{found.save()}")


def _calibrate_experts(options: argparse.Namespace) -> None:
    import tempfile

    from tqdm import tqdm

    from engines.demo import benchmark
    from engines.experts.calibrate import calibrate
    from engines.results import RunRequest

    if options.folder is not None:
        raise UsageError("calibrate experts takes no folder.")
    if not 0 < options.target < 1:
        raise UsageError(f"--target is {options.target}; it must be above 0 and below 1.")
    # Not through the engine, which would refuse an earlier calibration that cannot be read.
    checkpoint = load_checkpoint(options)
    bars: dict[str, tqdm] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(total=total, desc=what, unit="round", file=sys.stderr)
        bars[what].update(done - bars[what].n)

    with tempfile.TemporaryDirectory(prefix="workbench-calibrate-") as folder:
        # Not the scenes that `eval` asks about.
        items = benchmark.items("all", Path(folder), options.every, split="validation")
        total = benchmark.size("all", options.every)
        prompts = tqdm(items, total=total, desc="prompts", unit="prompt", file=sys.stderr)
        requests = (RunRequest(item.question, item.media, frames=item.frames) for item in prompts)
        found = calibrate(checkpoint, requests, options.target, progress)
    for bar in bars.values():
        bar.close()
    print("layer importances   " + " ".join(f"{importance:.2f}" for importance in found.importances))
    for method, chosen in found.options.items():
        print("\n".join(f"{method + '.' + name:32}{value:g}" for name, value in chosen.items()))
    print(f"{'pairs skipped':32}{found.skipped:.1%} of them, asked for {found.target:.1%}")
    print(f"{'divergence from the full model':32}{found.divergence:.4f} nats, mean over {found.prompts} prompts")
    print(f"{'kept in':32}{found.save()}")
