"""The files that a report can be taken away as, by the ending of their name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from app.controls import Control
from app.report.data import Report
from engines.compare import FIGURES, SIDES
from engines.signing import JSON_HEAD, sign
from engines.trace import Trace, chrome_trace

KINDS = ("html", "json", "csv")


def make(report: Report, kind: str, controls: Callable[[], Sequence[Control]], key: bytes | None = None) -> bytes:
    """One of KINDS. HTML and JSON are signed where there is a key; a table has no place for a signature.

    `controls` name the settings in words; only HTML needs them.
    """
    if kind == "csv":
        return to_csv(report)
    if kind == "json":
        made = to_json(report.to_dict())
    elif kind == "html":
        from app.report.html import comparison_html  # which needs the panels

        made = comparison_html(report, controls())
    else:
        raise ValueError(f"There is no report of the kind {kind!r}; choose {', '.join(KINDS)}.")
    return sign(made, key) if key is not None else made


def to_json(values: dict[str, Any]) -> bytes:
    """Indented, and with a place for a signature."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return JSON_HEAD + text.removeprefix("{\n").encode("utf-8", "replace") + b"\n"


def to_csv(report: Report) -> bytes:
    """A row for every run of either side: what was asked, answered and measured. Empty is not measured."""
    rows = io.StringIO()
    table = csv.writer(rows)
    about = ["made_at", "model", "digest", "device", "question", "pair", "side", "settings", "answer", "finish_reason"]
    table.writerow([*about, *FIGURES])
    for number, pair in enumerate(report.comparison.pairs, start=1):
        for side, result in zip(SIDES, pair, strict=True):
            settings = " ".join(report.settings) if side == "compressed" else ""
            said = [report.made_at, report.model, report.digest, report.device, report.question, number, side, settings]
            figures = [figure(result) for figure in FIGURES.values()]
            table.writerow([_cell(one) for one in (*said, result.answer, result.finish_reason, *figures)])
    return rows.getvalue().encode("utf-8", "replace")


def to_trace(report: Report) -> bytes:
    """The runs of both sides for Perfetto or chrome://tracing."""
    runs: dict[str, list[Trace]] = {
        side: [pair[place].trace for pair in report.comparison.pairs] for place, side in enumerate(SIDES)
    }
    about = {"model": report.model, "digest": report.digest, "device": report.device, "made_at": report.made_at}
    return json.dumps({**chrome_trace(runs), "otherData": about}).encode()


def _cell(value: Any) -> Any:
    # A spreadsheet would compute a text that begins like a formula, and an answer may say anything.
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
