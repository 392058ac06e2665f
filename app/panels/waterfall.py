"""The waterfall of both runs, with its table."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import plots
from app.panels.download import Download
from app.session import Session
from app.words import seconds

EMPTY = '<p class="empty">After a run: how long each stage took, both runs on one time axis.</p>'


class WaterfallPanel:
    """`outputs` are filled by `update`."""

    def __init__(self) -> None:
        with gr.Column(elem_id="waterfall", elem_classes="card"):
            gr.HTML("<h2>Where the time went</h2>", elem_classes="card-title")
            self.note = gr.HTML(EMPTY)
            with gr.Row(visible=False, elem_classes="buttons") as self.row:
                self.trace = Download("Trace for Perfetto", "export-trace", scale=0)
            self.said = gr.HTML(elem_id="export-trace-text")
            self.plot = gr.Plot(show_label=False, container=False, visible=False, elem_id="waterfall-plot")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML()
        self.outputs: list[gr.blocks.Block] = [self.note, self.plot, self.fold, self.table, self.row, self.said]

    @staticmethod
    def update(session: Session) -> list[Any]:
        results = session.results
        hidden = gr.update(visible=False)
        if not results:
            return [gr.update(value=EMPTY, visible=True), hidden, hidden, "", hidden, ""]
        prepared = [
            f"{side}: {seconds(result.prepare_s)}" for side, result in results.items() if result.prepare_s >= 0.05
        ]
        note = (
            '<p class="hint">Each run starts at 0; the clock is stopped only when the device is idle.'
            + (f" Preparation before the clock ({', '.join(prepared)}) is not part of it." if prepared else "")
            + "</p>"
        )
        return [
            gr.update(value=note, visible=True),
            gr.update(value=plots.as_plot(plots.waterfall(results)), visible=True),
            gr.update(visible=True),
            plots.waterfall_table(results),
            gr.update(visible=session.comparison is not None),
            "",
        ]
