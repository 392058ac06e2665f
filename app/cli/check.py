"""What this device can do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from app.cli.common import UsageError, add_model_options, load

MOST_TOKENS = 1_000_000


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="say what this device can do",
        description="Say line by line what this device can do with the checkpoint, and why not where it can't. Then, "
        "as an estimate, how fast it could be, after about two seconds of measuring.",
    )
    check.add_argument("--visual-tokens", type=int, default=1024, help="of the image in the estimate (default: 1024)")
    check.add_argument("--text-tokens", type=int, default=64, help="around it (default: 64)")
    add_model_options(check, default=argparse.SUPPRESS)
    check.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
    from app.cli import estimate
    from engines.capabilities import machine_capabilities

    if not (1 <= options.visual_tokens <= MOST_TOKENS and 1 <= options.text_tokens <= MOST_TOKENS):
        raise UsageError(f"--visual-tokens and --text-tokens must be from 1 to {MOST_TOKENS}.")

    def show(found: Sequence[Any]) -> None:
        for item in found:
            mark = "yes" if item.available else "no "
            print(f"  {mark}  {item.name:26}{item.detail if item.available else item.reason}")

    print("This machine")
    show(machine_capabilities())
    engine = load(options)
    offered = engine.capabilities()
    print(f"\nThe model: {offered.model} ({offered.family}) on {offered.device}")
    print("Precisions")
    show(offered.precisions)
    print("Pruning methods")
    show(offered.pruning)
    print("Expert skipping")
    show(offered.skipping)
    print("Others")
    show(offered.others)
    for line in estimate.lines(engine, options.visual_tokens, options.text_tokens):
        print(line)
