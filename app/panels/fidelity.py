"""What the reduced vision tower of the compressed run changed, neighbourhood by neighbourhood."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import plots
from app.panels.heatmap import plot_width
from app.plots.fidelity import FIGURES, Figure
from app.session import Session
from app.words import MISSING, count, escape, percent, seconds
from engines.reports import FrameFidelity, VisionReport

EMPTY = (
    '<p class="empty">After a run whose tower keep ratio is below 1: how many units its later layers computed and,'
    " if it is to be measured, how close its features stay.</p>"
)
NO_VISUAL = '<p class="empty">The compressed run saw no image or video, so its vision tower did not run.</p>'
WHOLE = '<p class="empty">The whole vision tower ran: its keep ratio is 1.</p>'


class FidelityPanel:
    """`update` fills it after a run; its own controls redraw it from the visitor's session."""

    def __init__(self, session: gr.State) -> None:
        with gr.Column(elem_id="fidelity", elem_classes="card"):
            gr.HTML("<h2>What the vision tower left out</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY, elem_id="fidelity-text")
            with gr.Column(visible=False, elem_id="fidelity-body") as self.body:
                with gr.Row():
                    self.frame = gr.Slider(
                        1, 2, value=1, step=1, label="Image or frame group", visible=False, elem_id="fidelity-frame"
                    )
                    self.shown = gr.Radio(
                        [(label, name) for name, label in FIGURES.items()],
                        value="similarity",
                        label="Show",
                        elem_id="fidelity-shown",
                    )
                self.plot = gr.Plot(show_label=False, container=False, elem_id="fidelity-plot")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML()
        drawn = [self.plot, self.table]
        self.outputs: list[gr.blocks.Block] = [self.text, self.body, self.fold, self.frame, self.shown, *drawn]
        gr.on(
            [self.frame.input, self.shown.input], self.draw, [session, self.frame, self.shown], drawn,
            queue=False, show_progress="hidden", trigger_mode="always_last", api_visibility="private",
        )  # fmt: skip

    def update(self, session: Session) -> list[Any]:
        """All outputs for a finished run, at the similarity in the first picture."""
        hidden = gr.update(visible=False)
        result = session.results.get("compressed")
        if result is None:
            return [EMPTY, hidden, hidden, hidden, gr.skip(), None, ""]
        report = result.vision_report
        if report is None or report.method is None:
            return [NO_VISUAL if report is None else WHOLE, hidden, hidden, hidden, gr.skip(), None, ""]
        frames = report.fidelity or ()
        if not frames:
            return [fidelity_html(report), hidden, hidden, hidden, gr.skip(), None, ""]
        slider = gr.update(
            minimum=1, maximum=max(2, len(frames)), value=1, visible=len(frames) > 1,
            label=f"Image or frame group (of {len(frames)})",
        )  # fmt: skip
        visible = gr.update(visible=True)
        shown = gr.update(value="similarity")
        return [fidelity_html(report), visible, visible, slider, shown, *self.draw(session, 1, "similarity")]

    @staticmethod
    def draw(session: Session, place: float, shown: Figure) -> list[Any]:
        """Figure and table of one picture."""
        result = session.results.get("compressed")
        report = result.vision_report if result is not None else None
        if report is None or not report.fidelity:
            return [gr.skip()] * 2
        frame = report.fidelity[min(max(int(place), 1), len(report.fidelity)) - 1]
        picture = session.pictures.get((frame.item, frame.frames[0]))
        size = (picture.width, picture.height) if picture is not None else (frame.columns * 32, frame.rows * 32)
        figure = plots.fidelity(
            frame, picture.url if picture is not None else None, size, shown, plot_width(session.page_px)
        )
        return [plots.as_plot(figure), plots.fidelity_table(frame, shown)]


def fidelity_html(report: VisionReport) -> str:
    """What was left out, and a row a picture where the fidelity was measured."""
    said = (
        f'<p id="tower-units" data-computed="{report.units_after}" data-total="{report.units_before}"><b>After layer'
        f" {report.after_layer} of {report.layers} the tower computed {count(report.units_after)} of"
        f" {count(report.units_before)} units ({percent(report.achieved_keep_ratio)})</b>, chosen by the method"
        f" {escape(str(report.method))}. The language model gets all {count(report.units_before)} visual tokens.</p>"
    )
    if report.fidelity is None:
        return said + (
            '<p class="hint">How close they stay was not measured; switch on "Measure neighbourhood fidelity".</p>'
        )
    rows = "".join(_row(place, frame) for place, frame in enumerate(report.fidelity, start=1))
    return (
        f'{said}<div class="scroll"><table class="figures"><thead><tr><th scope="col">Picture</th>'
        '<th scope="col">Mean similarity</th><th scope="col">Lowest</th><th scope="col">Same nearest tokens</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
        '<p class="hint">Both towers are compared before any visual token is pruned. Similarity is the cosine between'
        " the features of each 3 x 3 neighbourhood, less their mean: 1 is unchanged. Same nearest tokens: of each"
        f" token's {report.fidelity[0].nearest or 'few'} most similar tokens, the share that stayed the same.</p>"
    )


def _row(place: int, frame: FrameFidelity) -> str:
    at = f", {seconds(frame.timestamp_s)}" if frame.timestamp_s is not None else ""
    if frame.nearest:
        cells = [f"{frame.mean_similarity:.3f}", f"{min(frame.similarity):.3f}", percent(frame.mean_overlap)]
    else:
        cells = [MISSING] * 3
    return (
        f'<tr><th scope="row">{place}. {escape(frame.name)}{at}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}'
        "</tr>"
    )
