"""What commands share: the options of the model and of the settings, loading, and printing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.checkpoint import Checkpoint
    from engines.config import CompressionConfig
    from engines.engine import Engine
    from engines.results import RunRequest

# Named here, so that --help needs no model library; a test holds it to engines/presets.py.
PRESETS = ("video", "document", "photo")


class UsageError(Exception):
    """A command that cannot be carried out as given: one line, exit 2."""


def add_model_options(parser: argparse.ArgumentParser, default: Any) -> None:
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


def add_settings(parser: argparse.ArgumentParser) -> None:
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
    # Not given here, it is what was given before the command.
    add_settings_file(parser, "start from", argparse.SUPPRESS)
    parser.add_argument(
        "--preset",
        choices=("auto", *PRESETS),
        help="take the pruning settings for such media, with the reason on stderr; what --set says is put on "
        "top. auto picks by the media",
    )


def add_settings_file(parser: argparse._ActionsContainer, what: str, default: Any) -> None:
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        default=default,
        help=f"{what} the settings in a file that the page saved",
    )


def add_signing_key(parser: argparse._ActionsContainer, default: Any) -> None:
    parser.add_argument(
        "--signing-key",
        type=Path,
        metavar="FILE",
        default=default,
        help="sign reports with the key in this file, or else with the one that the environment variable "
        "QWEN_VL_MOE_WORKBENCH_SIGNING_KEY holds, if it does",
    )


def settings_of(options: argparse.Namespace) -> CompressionConfig:
    """Those of --settings, and without it the full model's."""
    from engines import settings_file
    from engines.config import CompressionConfig

    return CompressionConfig.full() if options.settings is None else settings_file.read(options.settings)


def load(options: argparse.Namespace, **sizes: int) -> Engine:
    from engines.engine import Engine

    return Engine(load_checkpoint(options), **sizes)


def load_checkpoint(options: argparse.Namespace) -> Checkpoint:
    from engines import checkpoint

    print(f"Loading {options.model} ...", file=sys.stderr)
    checkpoint.quieten_library(progress=options.model != checkpoint.DEMO)
    return checkpoint.load_checkpoint(options.model, options.device, options.dtype)


def preset_config(options: argparse.Namespace, request: RunRequest | None) -> CompressionConfig:
    """The settings to start from with those of --preset, sized by the request's media; says which and why."""
    from engines.media import FrameSampling, load_all
    from engines.presets import Facts, preset, suggest

    base = settings_of(options)
    if options.preset is None:
        return base
    facts = []
    if request is not None:
        one = FrameSampling(fps=None, num_frames=1)
        facts = [Facts.of(item) for item in load_all(request.media, limits=request.limits, sampling=one)]
    found = suggest(facts) if options.preset == "auto" else preset(options.preset, facts)
    if found is None:
        print("preset: none, since there is no image or video to prune", file=sys.stderr)
        return base
    print(f"preset: {found.label}, keep ratio {found.keep_ratio:g}. {found.reason}", file=sys.stderr)
    return found.apply(base)


def print_result(outcome: dict[str, Any] | str) -> None:
    import json

    print(outcome if isinstance(outcome, str) else json.dumps(outcome, indent=2, ensure_ascii=False))
