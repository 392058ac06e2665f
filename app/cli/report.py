"""What `run` writes beside its answer: a report of the comparison, and a trace of where the time went."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import UsageError, add_signing_key

if TYPE_CHECKING:
    from engines.compare import Comparison, SideEvent
    from engines.config import CompressionConfig
    from engines.engine import Engine
    from engines.results import RunRequest, RunResult

KINDS = ("html", "json", "csv")  # a test holds it to app/report/files.py


def add_options(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="with --compare: write the comparison to a file that stands for itself; its ending, .html, .json or .csv, "
        "says what it becomes",
    )
    add_signing_key(run, argparse.SUPPRESS)
    run.add_argument(
        "--trace", type=Path, metavar="FILE", help="write every stage as JSON for Perfetto or chrome://tracing"
    )


class Taker:
    """Watches a run and writes what was asked for. Made before the model is loaded, so that mistakes are said early."""

    def __init__(self, options: argparse.Namespace) -> None:
        from app.session import Session
        from engines.signing import read_key

        self.report: Path | None = options.report
        self.trace: Path | None = options.trace
        if self.report is not None:
            if not options.compare:
                raise UsageError("--report needs --compare.")
            if self.report.suffix.lstrip(".") not in KINDS:
                raise UsageError(f"--report {self.report} must end in {', '.join('.' + kind for kind in KINDS)}.")
        for path in (self.report, self.trace):
            if path is not None and not path.parent.is_dir():
                raise UsageError(f"There is no folder {path.parent} to write {path.name} to.")
        self.key = read_key(options.signing_key)
        self.session = Session()

    def begin(self, request: RunRequest, config: CompressionConfig, repeats: int) -> None:
        from app.runs import Watcher

        self.session.begin(0, repeats)
        self.session.asked = (request, config)
        self._watcher = Watcher(self.session)

    def take(self, event: SideEvent | Comparison) -> None:
        self._watcher.take(event)

    def write_comparison(self, engine: Engine) -> None:
        from app.report import Report, make
        from app.report.files import to_trace

        found = Report.of(self.session, engine.capabilities())
        if self.trace is not None:
            _write(self.trace, to_trace(found))
        if self.report is not None:
            _write(self.report, make(found, self.report.suffix[1:], lambda: _controls(engine), self.key))

    def write_run(self, result: RunResult) -> None:
        from engines.trace import chrome_trace

        if self.trace is not None:
            _write(self.trace, json.dumps(chrome_trace({"run": [result.trace]})).encode())


def _controls(engine: Engine) -> tuple:
    from app.controls import make_controls, methods_of

    capabilities = engine.capabilities()
    return make_controls(capabilities, methods_of(capabilities))


def _write(path: Path, content: bytes) -> None:
    from engines.results import EngineError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise EngineError(f"{path} could not be written: {error.strerror}.") from error
