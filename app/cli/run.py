"""One question without a browser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli import report
from app.cli.common import UsageError, add_model_options, add_settings, load, preset_config, print_result

if TYPE_CHECKING:
    from engines.compare import Comparison
    from engines.results import Event, RunResult


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="answer one question about media, without a browser",
        description="Answer one question about any number of images and videos, without a browser. "
        "The result goes to stdout, progress to stderr.",
    )
    add_model_options(run, default=argparse.SUPPRESS)
    run.add_argument("media", nargs="*", type=Path, metavar="MEDIA", help="image and video files; none is text only")
    run.add_argument("--question", "-q", required=True, help="what to ask")
    add_settings(run)
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
    report.add_options(run)
    run.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
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
    config = preset_config(options, request).with_settings(options.assignments)
    taker = report.Taker(options)
    engine = load(options)
    engine.check(config)
    if options.compare:
        outcome: Comparison | None = None
        taker.begin(request, config, options.repeats)
        for item in compare(engine, request, CompressionConfig.full(), config, options.repeats):
            taker.take(item)
            if isinstance(item, SideEvent):
                _report_progress(item.event, f"{item.side}: ")
            else:
                outcome = item
        if outcome is not None:
            taker.write_comparison(engine)
            print_result(outcome.to_dict() if options.json else _describe_comparison(outcome))
        return
    for event in engine.run(request, config):
        _report_progress(event, "")
        if isinstance(event, Finished):
            taker.write_run(event.result)
            print_result(event.result.to_dict() if options.json else _describe_result(event.result))


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
