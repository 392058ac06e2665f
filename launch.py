#!/usr/bin/env python
"""The command line: start the workbench, answer one question without a browser, or see what this device can do."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from app.cli import calibrate, check, evaluate, judge, run, serve, sweep, verify
from app.cli.common import UsageError, add_model_options

DESCRIPTION = """\
Full and compressed Qwen-VL-MoE, side by side.

  python launch.py                                  start the page with the bundled demo checkpoint
  python launch.py --model Qwen/Qwen3-VL-30B-A3B-Instruct --device cuda
  python launch.py run photo.jpg --question "What is this?" --compare --set pruning.keep_ratio=0.25
  python launch.py eval --set pruning.keep_ratio=0.25                 accuracy on the labelled benchmark
  python launch.py sweep stills --every 12 --axis pruning.keep_ratio=1,0.5,0.25   quality and speed, Pareto front marked
  python launch.py robustness stills --every 20     accuracy on noisy and distorted pictures
  python launch.py calibrate experts                measure what expert skipping needs to know of the checkpoint
  python launch.py calibrate precision my-photos/   measure the activations that int8 and int4 choose their scales by
  python launch.py verify report.html --key key.txt  say whether a report is as it was signed
  python launch.py check                            say what this device can do, and why not where it can't
"""


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
    add_model_options(parser, default=None)
    serve.add_options(parser)
    commands = parser.add_subparsers(title="commands", metavar="")
    for command in (run, evaluate, sweep, judge, calibrate, verify, check):
        command.add(commands)
    return parser


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
