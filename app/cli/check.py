"""What this device can do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from app.cli.common import add_model_options, load


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="say what this device can do",
        description="Say line by line what this device can do with the checkpoint, and why not where it can't.",
    )
    add_model_options(check, default=argparse.SUPPRESS)
    check.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
    from engines.capabilities import machine_capabilities

    def show(found: Sequence[Any]) -> None:
        for item in found:
            mark = "yes" if item.available else "no "
            print(f"  {mark}  {item.name:16}{item.detail if item.available else item.reason}")

    print("This machine")
    show(machine_capabilities())
    offered = load(options).capabilities()
    print(f"\nThe model: {offered.model} ({offered.family}) on {offered.device}")
    print("Precisions")
    show(offered.precisions)
    print("Pruning methods")
    show(offered.pruning)
    print("Expert skipping")
    show(offered.skipping)
    print("Others")
    show(offered.others)
