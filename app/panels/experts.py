"""Which experts did the work in both runs, and what the compressed one skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.panels.curve import CurvePanel
from app.plots.figure import SIDE_NAMES
from app.session import Session
from app.words import count, escape, percent
from engines.compare import SIDES, Side
from engines.config import OFF
from engines.reports import ExpertReport

EMPTY = '<p class="empty">After a run: how much each expert was used, and how many pairs were skipped.</p>'
DENSE = '<p class="empty">This model is dense: it has no experts, so there is nothing to skip or to show.</p>'


class ExpertsPanel:
    """`update` fills it after a run; its own control redraws it from the visitor's session."""

    def __init__(self, session: gr.State, has_experts: bool, samples: Path) -> None:
        with gr.Column(elem_id="experts", elem_classes="card"):
            gr.HTML("<h2>How the experts were used</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY if has_experts else DENSE, elem_id="experts-text")
            with gr.Column(visible=False, elem_id="experts-body") as self.body:
                self.side = gr.Radio(
                    [(SIDE_NAMES[side], side) for side in reversed(SIDES)],
                    value="compressed",
                    label="Run",
                    elem_id="experts-side",
                )
                self.plot = gr.Plot(show_label=False, container=False, elem_id="experts-plot")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML()
            self.curve = CurvePanel(session, has_experts, samples)
        drawn = [self.plot, self.table]
        self.outputs: list[gr.blocks.Block] = [self.text, self.body, self.fold, self.side, *drawn]
        self.side.input(
            self.draw, [session, self.side], drawn,
            queue=False, show_progress="hidden", trigger_mode="always_last", api_visibility="private",
        )  # fmt: skip

    @staticmethod
    def update(session: Session) -> list[Any]:
        """All outputs for a finished run: the compressed side first, or the one that there is."""
        reports = _reports(session)
        if not reports:
            hidden = gr.update(visible=False)
            return [DENSE if session.results else EMPTY, hidden, hidden, gr.skip(), None, ""]
        side: Side = "compressed" if "compressed" in reports else "full"
        shown = gr.update(visible=True)
        return [experts_html(reports), shown, shown, gr.update(value=side), *ExpertsPanel.draw(session, side)]

    @staticmethod
    def draw(session: Session, side: Side) -> list[Any]:
        """Figure and table of one side."""
        reports = _reports(session)
        if side not in reports:
            return [gr.skip()] * 2
        most = max(load for report in reports.values() for layer in report.layers for load in layer)
        return [plots.as_plot(plots.expert_load(reports[side], most)), plots.expert_table(reports[side])]


def _reports(session: Session) -> dict[Side, ExpertReport]:
    return {side: result.expert_report for side, result in session.results.items() if result.expert_report is not None}


def experts_html(reports: dict[Side, ExpertReport]) -> str:
    """A row a run: pairs computed, and the shares skipped of those that the checkpoint's own top-k would have made."""
    rows = []
    for side, report in reports.items():
        cells = [
            f"{count(report.pairs_computed)} of {count(report.pairs_full)}",
            percent(report.skipped_share),
            percent(report.visual.skipped_share),
            percent(report.text.skipped_share),
        ]
        rows.append(
            f'<tr data-side="{side}" data-computed="{report.pairs_computed}" data-full="{report.pairs_full}">'
            f'<th scope="row">{SIDE_NAMES[side]}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}'
            f'<td class="note">{_how(report)}</td></tr>'
        )
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">Run</th>'
        '<th scope="col">Pairs computed</th><th scope="col">Skipped</th><th scope="col">Of visual tokens</th>'
        '<th scope="col">Of text tokens</th><th scope="col" class="note">How</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="hint">A pair is one token in one expert of one layer, over prompt and answer. Layers and experts'
        " are counted from 1; both runs have the same colours.</p>"
    )


def _how(report: ExpertReport) -> str:
    parts = [f"{report.top_k} of {report.experts} experts a token"]
    if report.top_k != report.own_top_k:
        parts[0] += f" instead of {report.own_top_k}"
    if report.method != OFF:
        parts.append(f"then the method {escape(report.method)}")
    if report.calibrated is not None:
        parts.append("calibrated" if report.calibrated else "not calibrated")
    return ", ".join(parts)
