"""Whether a report is what was signed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.cli.common import UsageError

MOST_BYTES = 512 << 20


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser(
        "verify",
        help="check the signature of a report",
        description="Check that every byte of an HTML or JSON report is as it was signed. Prints 'valid' and exits "
        "with 0, or says why not on stderr and exits with 1.",
    )
    verify.add_argument("report", type=Path, metavar="FILE", help="the report")
    verify.add_argument(
        "--key", type=Path, metavar="FILE", help="file with the key (default: QWEN_VL_MOE_WORKBENCH_SIGNING_KEY)"
    )
    verify.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    from engines import signing

    key = signing.read_key(options.key)
    if key is None:
        raise UsageError(f"There is no key to verify with; give --key FILE or set {signing.KEY_VARIABLE}.")
    try:
        with options.report.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The report {options.report} could not be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"The report {options.report} is larger than {MOST_BYTES >> 20} MiB.")
    try:
        signing.verify(content, key)
    except signing.SignatureError as error:
        print(f"launch.py: {options.report} is not valid. {error}", file=sys.stderr)
        return 1
    print("valid")
    return 0
