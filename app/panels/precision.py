"""Where the bytes of the weights are, what quantising cost each layer, and what fp16 would lose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.observed import WorkbenchEngine
from app.panels.on_demand import NO_SAMPLE, OnDemandPanel
from app.plots.figure import SIDE_NAMES
from app.plots.precision import precise_percent
from app.session import Session
from app.turnstile import PAGE, Turnstile
from app.words import count, escape, megabytes, percent
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.reports import CollapseReport, PartWeights, PrecisionReport
from engines.results import EngineError, RunResult

EMPTY = '<p class="empty">After a run: the bytes of each part at each precision, and which kernels multiplied them.</p>'
HINT = (
    '<p class="hint">Runs your last request, or a sample before there is one, on the full model and counts the values'
    " of each layer that fp16 would flush to zero or make infinite.</p>"
)
FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "int4, two in a byte"}
PART_NAMES = {"vision": "Vision tower", "projector": "Projector", "language": "Language model", "experts": "Experts"}


class PrecisionPanel(OnDemandPanel):
    """`update` fills it after a run; `connect` lets its button check fp16."""

    def __init__(self, session: gr.State, samples: Path) -> None:
        super().__init__(session, samples)
        with gr.Column(elem_id="precision", elem_classes="card"):
            gr.HTML("<h2>Precision of the weights</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY, elem_id="precision-text")
            with gr.Column(visible=False, elem_id="precision-errors") as self.body:
                gr.HTML("<h3>Error of each quantised layer</h3>", elem_classes="group-title")
                self.plot = gr.Plot(show_label=False, container=False, elem_id="precision-plot")
                with gr.Accordion("As a table", open=False, elem_classes="inner"):
                    self.table = gr.HTML(elem_id="precision-table")
            gr.HTML("<h3>Would fp16 lose values?</h3>", elem_classes="group-title")
            with gr.Row(elem_classes="buttons"):
                self.check = gr.Button("Check FP16", size="sm", elem_id="check-fp16", min_width=140)
                self.stop = gr.Button("Stop", size="sm", elem_id="stop-fp16", min_width=90, interactive=False)
            self.said = gr.HTML(HINT, elem_id="collapse-text")
            self.chart = gr.Plot(show_label=False, container=False, visible=False, elem_id="collapse-plot")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.list = gr.HTML(elem_id="collapse-table")
        self.outputs: list[gr.blocks.Block] = [self.text, self.body, self.plot, self.table]
        self._checked: list[gr.blocks.Block] = [self.check, self.stop, self.said, self.chart, self.fold, self.list]

    def connect(self, engine: WorkbenchEngine, turnstile: Turnstile, limits: MediaLimits) -> None:
        self.engine, self.turnstile, self.limits = engine, turnstile, limits
        self.connect_buttons(self.check, self.stop, self.look, self._checked, "fp16")

    @staticmethod
    def update(session: Session) -> list[Any]:
        """All outputs for a finished run."""
        results = session.results
        if not results:
            return [EMPTY, gr.update(visible=False), None, ""]
        compressed = results.get("compressed")
        report = compressed.precision_report if compressed is not None else None
        if report is None or not report.layers:
            return [weights_html(results), gr.update(visible=False), None, ""]
        said = weights_html(results) + errors_html(report)
        return [said, gr.update(visible=True), plots.as_plot(plots.layer_errors(report)), plots.error_table(report)]

    def look(self, session: Session, request: gr.Request) -> Iterator[list[Any]]:
        """Take a turn at the engine like any run, and draw what was counted."""
        visitor = str(request.session_hash)
        asked = self.asked(session)
        if asked is None:
            yield _shown(None, NO_SAMPLE, busy=False)
            return
        ticket = self.tickets.issue(visitor, asked[0], CompressionConfig.full())
        report, said = None, ""
        try:
            yield _shown(None, "Waiting for the engine.", busy=True)
            with self.turnstile.turn(PAGE, ticket.cancel) as mine:
                if mine:
                    yield _shown(None, "Running the full model with a look at every layer.", busy=True)
                    report = self.engine.check_fp16(ticket.request)
        except (EngineError, ValueError) as error:  # MediaError is a ValueError
            said = str(error)
        finally:
            self.tickets.drop(visitor, ticket.number)
        yield _shown(report, said or ("Stopped." if report is None else ""), busy=False)


def _shown(report: CollapseReport | None, said: str, *, busy: bool) -> list[Any]:
    state = [gr.update(interactive=not busy), gr.update(interactive=busy)]
    if report is None:
        line = f'<p data-busy="{str(busy).lower()}" role="status">{escape(said)}</p>'
        return [*state, line, *[gr.update()] * 3]
    words = escape(plots.collapse_words(report))
    return [
        *state,
        f'<p data-overflowing="{len(report.overflowing)}" role="status">{words}</p>',
        gr.update(value=plots.as_plot(plots.collapse(report)), visible=True),
        gr.update(visible=True),
        plots.collapse_table(report),
    ]


def weights_html(results: dict[Any, RunResult]) -> str:
    """A row for each part of each run: its precision, its bytes by format from the tensors in use, and the kernels."""
    rows = []
    for side, result in results.items():
        for part in result.memory.weights:
            rows.append(
                f'<tr data-side="{side}" data-part="{part.part}" data-bytes="{part.total_bytes}">'
                f'<th scope="row">{SIDE_NAMES[side]}</th>'
                f'<td class="word">{PART_NAMES.get(part.part, escape(part.part))}</td>'
                f'<td class="word">{escape(part.precision)}</td><td>{megabytes(part.total_bytes)}</td>'
                f'<td class="note">{_formats(part)}</td><td class="note">{_kernels(part)}</td></tr>'
            )
    totals = " · ".join(
        f"{SIDE_NAMES[side]}: {_shares(result)} of {megabytes(result.memory.weight_bytes)}"
        for side, result in results.items()
    )
    return (
        f'<p id="precision-shares">{totals}</p><div class="scroll"><table class="figures"><thead><tr>'
        '<th scope="col">Run</th><th scope="col" class="word">Part</th><th scope="col" class="word">Precision</th>'
        '<th scope="col">Bytes</th>'
        '<th scope="col" class="note">Share by format</th><th scope="col" class="note">Kernels and products that ran'
        f"</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="hint">Bytes are counted from the tensors in use. Norms, routers and embeddings keep their format;'
        " scales are in bf16 or fp32.</p>"
    )


def errors_html(report: PrecisionReport) -> str:
    """What the errors rest on, what the compensation took, and what the pool of weights holds."""
    basis = "activations that were calibrated" if report.calibrated else "weights alone: nothing was calibrated"
    middle = sorted(layer.before for layer in report.layers)[len(report.layers) // 2]
    said = f"{count(len(report.layers))} layers are quantised; the median error of their outputs is "
    said += f"{precise_percent(middle)}, estimated from the {basis}."
    if any(layer.added_parameters for layer in report.layers):
        after = sorted(layer.after for layer in report.layers)[len(report.layers) // 2]
        said += f" With the compensation it is {precise_percent(after)}, for {precise_percent(report.added_share)} more"
        said += " parameters."
    held = f"Weights in memory at all precisions: {megabytes(report.held_bytes)} of at most"
    return f'<p id="precision-errors-text">{said} {held} {megabytes(report.bound_bytes)}.</p>'


def _formats(part: PartWeights) -> str:
    ordered = sorted(part.bytes_by_dtype.items(), key=lambda item: -item[1])
    return ", ".join(f"{FORMATS.get(name, name)} {percent(size / part.total_bytes)}" for name, size in ordered)


def _shares(result: RunResult) -> str:
    """Of all weights: the share of bytes at each format."""
    sums: dict[str, int] = {}
    for part in result.memory.weights:
        for name, size in part.bytes_by_dtype.items():
            sums[name] = sums.get(name, 0) + size
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return ", ".join(f"{FORMATS.get(name, name)} {percent(size / total)}" for name, size in ordered)


def _kernels(part: PartWeights) -> str:
    if not part.ran:
        return escape(part.kernel)
    return ", ".join(f"{escape(name)} × {count(number)}" for name, number in part.ran.items())
