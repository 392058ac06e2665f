"""The finished comparison as files to take away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr

from app.controls import Control
from app.panels.download import Download, Made
from app.report import KINDS, Report, make
from app.report.files import to_trace
from app.session import Session
from engines.results import Capabilities

LABELS = {"html": "Report (HTML)", "json": "JSON", "csv": "CSV"}


class ExportLine:
    """Buttons that appear after a run; `outputs` are filled by `update`."""

    def __init__(
        self, session: gr.State, capabilities: Capabilities, controls: Sequence[Control], key: bytes | None
    ) -> None:
        self.capabilities, self.controls, self.key = capabilities, tuple(controls), key
        signed = " HTML and JSON are signed." if key is not None else ""
        with gr.Row(visible=False, elem_classes="buttons", elem_id="export") as self.row:
            gr.HTML(f'<p class="hint">Take it away, with settings, figures and versions.{signed}</p>', min_width=180)
            buttons = {kind: Download(LABELS[kind], f"export-{kind}", scale=0) for kind in KINDS}
        self.said = gr.HTML(elem_id="export-text")
        self.outputs: list[gr.blocks.Block] = [self.row, self.said]
        for kind, button in buttons.items():
            button.connect(partial(self.file, kind), [session], self.said)

    def file(self, kind: str, session: Session) -> Made:
        report = Report.of(session, self.capabilities)
        return f"{_name(report)}.{kind}", make(report, kind, lambda: self.controls, self.key)

    def trace(self, session: Session) -> Made:
        report = Report.of(session, self.capabilities)
        return f"{_name(report)}-trace.json", to_trace(report)

    @staticmethod
    def update(session: Session) -> list[Any]:
        return [gr.update(visible=session.comparison is not None), ""]


def _name(report: Report) -> str:
    """By its date and the beginning of its question, in letters that every file system takes."""
    words = re.sub(r"[^a-z0-9]+", "-", report.question.lower()).strip("-")[:40].strip("-")
    return "-".join(part for part in ("comparison", report.made_at[:10], words) if part)
