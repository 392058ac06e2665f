"""Which visual tokens the compressed run kept, over what the model saw."""

from __future__ import annotations

from typing import Any

import gradio as gr
import plotly.graph_objects as go

from app import plots
from app.plots.heatmap import SCORE, VIEWS, View
from app.session import Session
from app.words import count, escape, percent, seconds
from engines.reports import FramePruning, PruneReport
from engines.results import RunResult

OPACITY = 0.65
EMPTY = '<p class="empty">After a run with an image or a video: which visual tokens the compressed side kept.</p>'
NO_VISUAL = '<p class="empty">The compressed run saw no image or video, so there are no visual tokens to show.</p>'


class HeatmapPanel:
    """`update` fills it after a run; its own controls redraw it from the visitor's session."""

    def __init__(self, session: gr.State) -> None:
        with gr.Column(elem_id="heatmap", elem_classes="card"):
            gr.HTML("<h2>What the language model saw</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY, elem_id="heatmap-text")
            with gr.Row(visible=False, elem_id="heatmap-body") as self.body:
                with gr.Column(scale=3, min_width=280):
                    self.plot = gr.Plot(show_label=False, container=False, elem_id="heatmap-plot")
                with gr.Column(scale=1, min_width=220, elem_id="heatmap-controls"):
                    self.item = gr.Dropdown(label="Image or video", visible=False, elem_id="heatmap-item")
                    self.frame = gr.Slider(
                        1, 2, value=1, step=1, label="Frame group", visible=False, elem_id="heatmap-frame"
                    )
                    self.view = gr.Radio(
                        [("Score", "score"), ("Kept and dropped", "kept")],
                        value=VIEWS[0],
                        label="View",
                        elem_id="heatmap-view",
                    )
                    self.opacity = gr.Slider(
                        0, 1, value=OPACITY, step=0.05, label="Opacity", info="Of the cells over the picture.",
                        elem_id="heatmap-opacity",
                    )  # fmt: skip
                    self.detail = gr.HTML(elem_id="heatmap-detail")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML()
        controls = [self.item, self.frame, self.view, self.opacity]
        drawn = [self.plot, self.detail, self.table]
        self.inputs: list[gr.components.Component] = [self.view, self.opacity]
        self.outputs: list[gr.blocks.Block] = [self.text, self.body, self.fold, self.item, self.frame, *drawn]
        quiet: dict[str, Any] = {
            "queue": False, "show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private",
        }  # fmt: skip
        self.item.input(self.choose_item, [session, *controls], [self.frame, *drawn], **quiet)
        gr.on([self.frame.input, self.view.input, self.opacity.input], self.draw, [session, *controls], drawn, **quiet)

    def update(self, session: Session, view: str, opacity: float) -> list[Any]:
        """All outputs for a finished run, at the first frame of the first item."""
        report = session.report
        if report is None or not report.frames:
            text = EMPTY if report is None else NO_VISUAL
            hidden = gr.update(visible=False)
            return [text, hidden, hidden, hidden, hidden, None, "", ""]
        items = {frame.item: frame.name for frame in report.frames}
        first = min(items)
        names = [(f"{place}. {name}", item) for place, (item, name) in enumerate(sorted(items.items()), start=1)]
        return [
            count_html(report) + attention_html(session.sides["compressed"].result),
            gr.update(visible=True),
            gr.update(visible=True),
            gr.update(choices=names, value=first, visible=len(items) > 1),
            _frame_slider(report, first),
            *self.draw(session, first, 1, view, opacity),
        ]

    def choose_item(self, session: Session, item: int, _frame: float, view: str, opacity: float) -> list[Any]:
        if session.report is None:
            return [gr.skip()] * 4
        return [_frame_slider(session.report, item), *self.draw(session, item, 1, view, opacity)]

    @staticmethod
    def draw(session: Session, item: int | None, frame: float, view: str, opacity: float) -> list[Any]:
        """Figure, what it shows in words, table."""
        report = session.report
        frames = _of_item(report, item) if report is not None else []
        if not frames:
            return [gr.skip()] * 3
        shown = frames[min(max(int(frame), 1), len(frames)) - 1]
        figure = over_picture(session, shown, "kept" if view == "kept" else "score", opacity)
        return [plots.as_plot(figure), detail_html(shown), plots.heatmap_table(shown)]


def over_picture(
    session: Session, frame: FramePruning, view: View = "score", opacity: float = OPACITY, legend: str = SCORE
) -> go.Figure:
    """The cells of an image or frame group over what the model saw of it, as wide as the visitor's page has room."""
    picture = session.pictures.get((frame.item, frame.frames[0]))
    size = (picture.width, picture.height) if picture is not None else (frame.columns * 32, frame.rows * 32)
    url = picture.url if picture is not None else None
    return plots.heatmap(frame, url, size, view, opacity, plot_width(session.page_px), legend)


def plot_width(page_px: int) -> int:
    """Room for the picture, by the layout in style.css: beside its controls, or above them on a phone."""
    if page_px <= 900:
        return max(240, page_px - 54)
    return round((min(page_px, 1520) - 48 - 364 - 34 - 14) * 0.75)


def count_html(report: PruneReport) -> str:
    """How many tokens were kept of how many, where the others were dropped, and why there may be no scores."""
    why = ""
    if report.method is None:
        why = " Pruning is off (keep ratio 1), so every token was kept."
    elif all(frame.scores is None for frame in report.frames):
        why = f" The method {escape(report.method)} gives no scores, so kept and dropped cells are shown."
    if report.layer is not None:
        why += f" Pruned after layer {report.layer} of the language model; the layers up to it saw every token."
    if report.adaptation is not None:
        why += f" {escape(report.adaptation.sentence)}"
    asked = f", asked for {percent(report.asked_keep_ratio)}" if report.method is not None else ""
    return (
        f'<p id="kept-count" data-kept="{report.tokens_after}" data-total="{report.tokens_before}"><b>Kept'
        f" {count(report.tokens_after)} of {count(report.tokens_before)} visual tokens"
        f" ({percent(report.achieved_keep_ratio)})</b>{asked}.{why}</p>"
    )


def attention_html(result: RunResult | None) -> str:
    """What the cross-modal mask kept, where it was on."""
    report = result.attention_report if result is not None else None
    if report is None:
        return ""
    parts = [
        f"{percent(pairs.share)} of the pairs of a {one} token with a {other} one"
        for pairs, one, other in ((report.text, "text", "visual"), (report.visual, "visual", "text"))
        if pairs.share is not None
    ]
    kept = " and ".join(parts) or "no pairs, since there were none"
    return f'<p id="cross-modal">Cross-modal mask: attention used {kept}, over all heads, layers and steps.</p>'


def detail_html(frame: FramePruning) -> str:
    """Which frame this is, and its own count."""
    lines = [f"<b>{escape(frame.name)}</b>"]
    if frame.kind == "video":
        numbers = sorted({number + 1 for number in frame.frames})
        shown = f"Frame {numbers[0]}" if len(numbers) == 1 else f"Frames {numbers[0]} to {numbers[-1]}"
        at = f", at {seconds(frame.timestamp_s)}" if frame.timestamp_s is not None else ""
        lines.append(f"{shown} of those sampled{at}; the first is shown.")
    lines.append(
        f"{count(sum(frame.kept))} of {count(len(frame.kept))} cells kept, in {frame.rows} rows and {frame.columns}"
        " columns."
    )
    return '<p class="hint">' + "<br>".join(lines) + "</p>"


def _of_item(report: PruneReport, item: int | None) -> list[FramePruning]:
    wanted = item if item is not None else min((frame.item for frame in report.frames), default=0)
    return [frame for frame in report.frames if frame.item == wanted]


def _frame_slider(report: PruneReport, item: int) -> Any:
    groups = len(_of_item(report, item))
    return gr.update(minimum=1, maximum=max(2, groups), value=1, visible=groups > 1, label=f"Frame group (of {groups})")
