#!/usr/bin/env python
"""The command line: start the workbench, answer one question without a browser, or see what this device can do."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.checkpoint import Checkpoint
    from engines.compare import Comparison
    from engines.config import CompressionConfig
    from engines.engine import Engine
    from engines.evaluation import Report
    from engines.results import Event, RunRequest, RunResult

DESCRIPTION = """\
Full and compressed Qwen-VL-MoE, side by side.

  python launch.py                                  start the page with the bundled demo checkpoint
  python launch.py --model Qwen/Qwen3-VL-30B-A3B-Instruct --device cuda
  python launch.py run photo.jpg --question "What is this?" --compare --set pruning.keep_ratio=0.25
  python launch.py eval --set pruning.keep_ratio=0.25                 accuracy on the labelled benchmark
  python launch.py calibrate experts                measure what expert skipping needs to know of the checkpoint
  python launch.py calibrate precision my-photos/   measure the activations that int8 and int4 choose their scales by
  python launch.py check                            say what this device can do, and why not where it can't
"""


# Named here, so that --help needs no model library; a test holds it to engines/presets.py.
PRESETS = ("video", "document", "photo")


class UsageError(Exception):
    """A command that cannot be carried out as given: one line, exit 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from engines.checkpoint import CheckpointError
    from engines.media import MediaError
    from engines.results import EngineError

    try:
        return int(options.command(options) or 0)
    except (UsageError, CheckpointError, ValueError) as error:
        # MediaError is a ValueError, but it speaks of a file's content and not of the command.
        print(f"launch.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, MediaError) else 2
    except EngineError as error:
        print(f"launch.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("launch.py: stopped.", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_model_options(parser, default=None)
    page = parser.add_argument_group("the page")
    page.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    page.add_argument("--port", type=int, default=7860, help="port to listen on (default: %(default)s)")
    page.add_argument("--share", action="store_true", help="make a public link through Gradio's relay")
    page.add_argument("--auth", metavar="USER:PASSWORD", help="ask visitors for this name and password")
    page.add_argument(
        "--max-upload-mb", type=int, default=200, metavar="MB", help="largest upload (default: %(default)s)"
    )
    page.add_argument(
        "--open", action=argparse.BooleanOptionalAction, default=True, help="open the page in a browser (default: yes)"
    )
    page.add_argument(
        "--weight-pool-mb",
        type=int,
        metavar="MB",
        help="memory for weights at all precisions together; beyond it those not in use are given up, the checkpoint's "
        "own too, and made or read again when asked for (default: the checkpoint's own and half of what is free)",
    )
    page.add_argument(
        "--prefix-cache-mb",
        type=int,
        default=1024,
        metavar="MB",
        help="memory for the keys and values that cache.prefix keeps, on the model's device (default: %(default)s)",
    )
    endpoint = parser.add_argument_group("the OpenAI-compatible endpoint, /v1 and /metrics")
    endpoint.add_argument(
        "--api",
        action=argparse.BooleanOptionalAction,
        help="--api lets in whoever reaches the port, without a key; --no-api switches the endpoint off. Default: with "
        "--api-keys on, for holders of a key; without, on for programs on this machine if --host is a loopback "
        "address and neither --auth nor --share is given, and off otherwise",
    )
    endpoint.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="let in holders of a key only: one tenant:key a line"
    )
    parser.set_defaults(command=command_serve)

    commands = parser.add_subparsers(title="commands", metavar="")
    run = commands.add_parser(
        "run",
        help="answer one question about media, without a browser",
        description="Answer one question about any number of images and videos, without a browser. "
        "The result goes to stdout, progress to stderr.",
    )
    _add_model_options(run, default=argparse.SUPPRESS)
    run.add_argument("media", nargs="*", type=Path, metavar="MEDIA", help="image and video files; none is text only")
    run.add_argument("--question", "-q", required=True, help="what to ask")
    _add_settings(run)
    run.add_argument("--compare", action="store_true", help="run the full model too and compare")
    run.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="with --compare: N pairs of runs; figures are medians"
    )
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    run.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="longest answer (default: %(default)s)"
    )
    run.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: %(default)s)")
    run.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling (default: %(default)s)")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="seed of random draws (default: %(default)s)")
    run.add_argument("--fps", type=float, metavar="F", help="sample a video at F frames a second (default: 2)")
    run.add_argument("--frames", type=int, metavar="N", help="sample N frames of a video instead")
    run.set_defaults(command=command_run)

    evaluation = commands.add_parser(
        "eval",
        help="measure accuracy on the labelled benchmark",
        description="Ask every question of a labelled set and print the accuracy by category, with 95 %% Wilson "
        "intervals. The result goes to stdout, progress to stderr.",
    )
    _add_model_options(evaluation, default=argparse.SUPPRESS)
    evaluation.add_argument(
        "set",
        nargs="?",
        default="all",
        metavar="SET",
        help="all (1,500 questions, the default), stills (1,200) or clips (300)",
    )
    _add_settings(evaluation)
    evaluation.add_argument(
        "--every", type=int, default=1, metavar="N", help="ask every Nth question only, for a quick look"
    )
    evaluation.add_argument("--json", action="store_true", help="print scores and all answers as JSON")
    evaluation.set_defaults(command=command_eval)

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
    _add_model_options(calibration, default=argparse.SUPPRESS)
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
    calibration.set_defaults(command=command_calibrate)

    check = commands.add_parser(
        "check",
        help="say what this device can do",
        description="Say line by line what this device can do with the checkpoint, and why not where it can't.",
    )
    _add_model_options(check, default=argparse.SUPPRESS)
    check.set_defaults(command=command_check)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.NAME=VALUE",
        dest="assignments",
        help="a compression setting, such as pruning.keep_ratio=0.5, pruning.method=random, experts.top_k=2, "
        "experts.method=modality, precision.all=int8, precision.vision=bf16, modality.image=false, cache.encoder=true, "
        "cache.prefix=true; "
        "may be repeated",
    )
    parser.add_argument(
        "--preset",
        choices=("auto", *PRESETS),
        help="start from the pruning settings for such media, with the reason on stderr; what --set says is put on "
        "top. auto picks by the media",
    )


def _add_model_options(parser: argparse.ArgumentParser, default: Any) -> None:
    def either(value: str) -> Any:
        return value if default is None else default

    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model", default=either("demo"), help="checkpoint folder or hub id (default: the bundled demo)"
    )
    group.add_argument("--device", default=either("auto"), help="auto, cpu, cuda, cuda:1 or mps (default: auto)")
    group.add_argument(
        "--dtype",
        default=either("auto"),
        help="auto, fp32, bf16 or fp16: how the weights are loaded (default: auto, which is the "
        "checkpoint's own format on a GPU, and on a CPU fp32 where it fits)",
    )


# ---- the page ----


def command_serve(options: argparse.Namespace) -> None:
    auth = _parse_auth(options.auth)
    if options.weight_pool_mb is not None and options.weight_pool_mb < 1:
        raise UsageError(f"--weight-pool-mb is {options.weight_pool_mb}; it must be at least 1.")
    if options.prefix_cache_mb < 1:
        raise UsageError(f"--prefix-cache-mb is {options.prefix_cache_mb}; it must be at least 1.")
    if options.max_upload_mb < 1:
        raise UsageError(f"--max-upload-mb is {options.max_upload_mb}; it must be at least 1.")
    if options.api is False and options.api_keys is not None:
        raise UsageError("--no-api and --api-keys exclude each other.")
    from app.api.gate import Gate, read_keys

    gate = Gate.choose(
        host=options.host,
        keys=read_keys(options.api_keys) if options.api_keys is not None else None,
        wanted=options.api,
        guarded=auth is not None or options.share,
    )
    _check_port(options.host, options.port)
    sizes = {"prefix_cache_bytes": options.prefix_cache_mb << 20}
    if options.weight_pool_mb is not None:
        sizes["weight_pool_bytes"] = options.weight_pool_mb << 20
    engine = _load(options, **sizes)
    from app.server import serve

    folder = Path(options.model).expanduser()
    serve(
        engine,
        host=options.host,
        port=options.port,
        share=options.share,
        auth=auth,
        max_upload_mb=options.max_upload_mb,
        open_browser=options.open,
        # Clients see no more of a path than the folder's name.
        model_name=folder.resolve().name if folder.is_dir() else options.model,
        gate=gate,
    )


def _parse_auth(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not colon or not user or not password:
        raise UsageError("--auth must be of the form USER:PASSWORD.")
    return user, password


def _check_port(host: str, port: int) -> None:
    """Find out before the model is loaded whether the page can have its address."""
    if not 0 < port < 65536:
        raise UsageError(f"--port is {port}; it must be from 1 to 65535.")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host} is not an address of this machine ({error.strerror}).") from error
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise UsageError(f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port.") from error


def _load(options: argparse.Namespace, **sizes: int) -> Engine:
    from engines.engine import Engine

    return Engine(_load_checkpoint(options), **sizes)


def _load_checkpoint(options: argparse.Namespace) -> Checkpoint:
    import transformers

    from engines.checkpoint import load_checkpoint

    print(f"Loading {options.model} ...", file=sys.stderr)
    transformers.logging.set_verbosity_error()
    if options.model == "demo":
        transformers.logging.disable_progress_bar()
    return load_checkpoint(options.model, options.device, options.dtype)


# ---- one question without a browser ----


def command_run(options: argparse.Namespace) -> None:
    from engines.compare import SideEvent, compare
    from engines.config import CompressionConfig, SamplingConfig
    from engines.media import FrameSampling
    from engines.results import Finished, RunRequest

    if options.fps is not None and options.frames is not None:
        raise UsageError("--fps and --frames exclude each other; give one.")
    frames = FrameSampling()
    if options.frames is not None:
        frames = FrameSampling(fps=None, num_frames=options.frames, max_frames=max(options.frames, frames.max_frames))
    elif options.fps is not None:
        frames = FrameSampling(fps=options.fps)
    if options.repeats < 1:
        raise UsageError(f"--repeats is {options.repeats}; it must be at least 1.")
    if options.repeats > 1 and not options.compare:
        raise UsageError("--repeats needs --compare.")
    request = RunRequest(
        question=options.question,
        # A person's own links are followed here; the engine follows none.
        media=tuple(path.resolve() if path.exists() else path for path in options.media),
        sampling=SamplingConfig(options.max_new_tokens, options.temperature, options.top_p, options.seed),
        frames=frames,
    )
    config = _preset_config(options, request).with_settings(options.assignments)
    engine = _load(options)
    engine.check(config)
    if options.compare:
        outcome: Comparison | None = None
        for item in compare(engine, request, CompressionConfig.full(), config, options.repeats):
            if isinstance(item, SideEvent):
                _report_progress(item.event, f"{item.side}: ")
            else:
                outcome = item
        if outcome is not None:
            _print(outcome.to_dict() if options.json else _describe_comparison(outcome))
        return
    for event in engine.run(request, config):
        _report_progress(event, "")
        if isinstance(event, Finished):
            _print(event.result.to_dict() if options.json else _describe_result(event.result))


def _preset_config(options: argparse.Namespace, request: RunRequest | None) -> CompressionConfig:
    """The full model's settings with those of --preset, sized by the request's media; says which and why."""
    from engines.config import CompressionConfig
    from engines.media import FrameSampling, load_all
    from engines.presets import Facts, preset, suggest

    full = CompressionConfig.full()
    if options.preset is None:
        return full
    facts = []
    if request is not None:
        one = FrameSampling(fps=None, num_frames=1)
        facts = [Facts.of(item) for item in load_all(request.media, limits=request.limits, sampling=one)]
    found = suggest(facts) if options.preset == "auto" else preset(options.preset, facts)
    if found is None:
        print("preset: none, since there is no image or video to prune", file=sys.stderr)
        return full
    print(f"preset: {found.label}, keep ratio {found.keep_ratio:g}. {found.reason}", file=sys.stderr)
    return found.apply(full)


def _print(outcome: dict[str, Any] | str) -> None:
    import json

    print(outcome if isinstance(outcome, str) else json.dumps(outcome, indent=2, ensure_ascii=False))


def _report_progress(event: Event, prefix: str) -> None:
    from engines.results import Finished, StageEnded, StageStarted

    if isinstance(event, StageEnded):
        print(f"{prefix}{event.span.name}: {event.span.duration_s * 1e3:.1f} ms", file=sys.stderr)
    elif isinstance(event, StageStarted) and event.name in ("preparing weights", "warming up"):
        print(f"{prefix}{event.name} ...", file=sys.stderr)
    elif isinstance(event, Finished):
        for warning in event.result.warnings:
            print(f"{prefix}note: {warning}", file=sys.stderr)


def _describe_result(result: RunResult) -> str:
    from engines.compare import FIGURES

    lines = [result.answer, ""]
    lines += [f"{label:24}{show(FIGURES[name](result)):>14}" for label, name, show in _SHOWN]
    lines += _describe_caches(result)
    return "\n".join(lines)


def _describe_caches(result: RunResult) -> list[str]:
    """A line a cache level that the run asked."""
    units = {"encoder": "images and frame groups", "prefix": "prompt tokens"}
    return [
        f"{level + ' cache':24}{stats.hits} of {stats.queries} {units[level]} found, "
        f"{_mebibytes(stats.bytes)} reused, {_milliseconds(stats.saved_s)} saved"
        for level, stats in result.cache_stats.run.items()
        if stats.queries
    ]


def _describe_comparison(outcome: Comparison) -> str:
    ratios, ranges = outcome.ratios(), outcome.ranges()
    full, compressed = outcome.medians("full"), outcome.medians("compressed")
    lines = [f"full:       {outcome.full.answer}", f"compressed: {outcome.compressed.answer}", ""]
    lines.append(f"{'':24}{'full':>14}{'compressed':>14}{'ratio':>10}")
    for label, name, show in _SHOWN:
        value, limits = ratios[name], ranges[name]
        text = "" if value is None else f"{value:.2f}x"
        spread = f"   {limits[0]:.2f} to {limits[1]:.2f}x" if limits and outcome.later else ""
        lines.append(f"{label:24}{show(full[name]):>14}{show(compressed[name]):>14}{text:>10}{spread}")
    lines += _describe_caches(outcome.pairs[-1][1])
    difference = outcome.first_difference
    lines.append("")
    lines.append("The answers are the same." if difference is None else f"First different token: {difference + 1}.")
    if outcome.later:
        lines.append(f"Figures are medians of {len(outcome.pairs)} pairs of runs in alternating order.")
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _mebibytes(size: float | None) -> str:
    return "not measured" if size is None else f"{size / 2**20:.1f} MiB"


def _whole(number: float | None) -> str:
    return "not measured" if number is None else f"{number:.0f}"


_SHOWN: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("time to first token", "ttft", _milliseconds),
    ("time per output token", "tpot", _milliseconds),
    ("end to end", "total", _milliseconds),
    ("visual tokens", "visual_tokens", _whole),
    ("expert pairs computed", "expert_pairs", _whole),
    ("peak memory", "peak_memory", _mebibytes),
    ("weights", "weights", _mebibytes),
    ("KV cache", "kv_cache", _mebibytes),
)


# ---- accuracy on the labelled benchmark ----


def command_eval(options: argparse.Namespace) -> None:
    import tempfile
    import time

    from tqdm import tqdm

    from engines import evaluation
    from engines.demo import benchmark

    if options.set not in benchmark.SETS:
        raise UsageError(f"There is no set {options.set}; choose one of {', '.join(benchmark.SETS)}.")
    if options.every < 1:
        raise UsageError(f"--every is {options.every}; it must be at least 1.")
    if options.preset == "auto":
        raise UsageError(f"--preset auto goes by the media of one run; for eval name one of {', '.join(PRESETS)}.")
    config = _preset_config(options, None).with_settings(options.assignments)
    engine = _load(options)
    engine.check(config)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="workbench-eval-") as folder:
        items = benchmark.items(options.set, Path(folder), options.every)
        total = benchmark.size(options.set, options.every)
        pace_s = 0.2 if sys.stderr.isatty() else 10  # a log needs no animation
        asked = evaluation.evaluate(engine, items, config)
        bar = tqdm(asked, total=total, unit="question", file=sys.stderr, mininterval=pace_s)
        judged, right = [], 0
        for one in bar:
            judged.append(one)
            right += one.right
            bar.set_postfix_str(f"{right / len(judged):.1%} right", refresh=False)
    report = evaluation.report(judged)
    if not options.json:
        print(_describe_report(report))
        return
    offered = engine.capabilities()
    answers = [
        {**one.item.groups, "question": one.item.question, "expected": one.item.answer, "answer": one.answer,
         "right": one.right}
        for one in judged
    ]  # fmt: skip
    about = {
        "set": options.set,
        "every": options.every,
        "model": offered.model,
        "digest": offered.digest,
        "device": offered.device,
        "config": config.to_dict(),
        "seconds": time.monotonic() - began_s,
    }
    _print({**about, **report.to_dict(), "answers": answers})


def _describe_report(report: Report) -> str:
    lines = [f"{'':16}{'questions':>10}{'right':>8}{'accuracy':>10}   95 % interval"]
    for kind, scores in [*report.groups.items(), ("", {"all": report.overall})]:
        lines.append(kind)
        for name, score in scores.items():
            if score.accuracy is not None and score.low is not None and score.high is not None:
                interval = f"{score.low:.1%} to {score.high:.1%}"
                lines.append(f"  {name:14}{score.asked:>10}{score.right:>8}{score.accuracy:>10.1%}   {interval}")
    if report.keep_ratio is not None and report.keep_ratio < 1:
        lines.append(f"Visual tokens kept: {report.keep_ratio:.1%}.")
    return "\n".join(lines)


# ---- what expert skipping, and int8 and int4, need to know ----


def command_calibrate(options: argparse.Namespace) -> None:
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
    checkpoint = _load_checkpoint(options)
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
    checkpoint = _load_checkpoint(options)
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


# ---- what this device can do ----


def command_check(options: argparse.Namespace) -> None:
    from engines.capabilities import machine_capabilities

    def show(found: Sequence[Any]) -> None:
        for item in found:
            mark = "yes" if item.available else "no "
            print(f"  {mark}  {item.name:16}{item.detail if item.available else item.reason}")

    print("This machine")
    show(machine_capabilities())
    offered = _load(options).capabilities()
    print(f"\nThe model: {offered.model} ({offered.family}) on {offered.device}")
    print("Precisions")
    show(offered.precisions)
    print("Pruning methods")
    show(offered.pruning)
    print("Expert skipping")
    show(offered.skipping)
    print("Others")
    show(offered.others)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
