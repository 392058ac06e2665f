"""Where the compressed model leaves the full one: measured on demand, along the full model's answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.observed import WorkbenchEngine
from app.panels.heatmap import over_picture
from app.panels.on_demand import OnDemandPanel
from app.plots.divergence import differs, share, visible
from app.plots.figure import SIDE_NAMES
from app.session import Session
from app.turnstile import PAGE, Turnstile
from app.words import escape, percent, plural
from engines.compare import SideEvent
from engines.divergence import as_it_ran
from engines.divergence_report import DivergenceReport, TokenDivergence, VisualAttention
from engines.media import MediaLimits
from engines.results import EngineError, TokenReady

HINT = (
    '<p class="hint">Runs both models once more along the full model\'s answer and compares their predictions before'
    " every token. Caches are off, and the time is not comparable with that of a run.</p>"
)
NO_RUN = "Run a comparison first; its question and its full answer are measured."
KEPT = "This is a kept comparison without its media. Ask its question again to measure it."
LEGEND = "Attention of the full model (of all on visual tokens)"
ELSEWHERE = "The question has no image or video, so there is nothing to look at."
UNSEEN = "No layer of this model has full attention, so where it looked is not known."
# Progress is drawn no more often.
DRAW_EVERY_S = 0.3


class DivergencePanel(OnDemandPanel):
    """`update` empties it for another run; `connect` lets its button measure."""

    def __init__(self, session: gr.State, samples: Path) -> None:
        super().__init__(session, samples)
        with gr.Column(elem_id="divergence", elem_classes="card"):
            gr.HTML("<h2>Where the answers part</h2>", elem_classes="card-title")
            with gr.Row(elem_classes="buttons"):
                self.start = gr.Button("Measure divergence", size="sm", elem_id="measure-divergence", min_width=170)
                self.stop = gr.Button("Stop", size="sm", elem_id="stop-divergence", min_width=90, interactive=False)
            self.text = gr.HTML(HINT, elem_id="divergence-text")
            with gr.Column(visible=False, elem_id="divergence-body") as self.body:
                self.plot = gr.Plot(show_label=False, container=False, elem_id="divergence-plot")
                self.strip = gr.HighlightedText(
                    label="The full model's answer; choose a token",
                    color_map={"≠": "#d1495b", "≈": "#14a08f"},
                    combine_adjacent=False,
                    show_inline_category=True,
                    elem_id="divergence-strip",
                )
                self.choice = gr.Dropdown(label="Token", elem_id="divergence-token", filterable=True)
                self.token = gr.HTML(elem_id="divergence-detail")
                self.looked = gr.Plot(show_label=False, container=False, visible=False, elem_id="divergence-looked")
                with gr.Accordion("As a table", open=False, elem_classes="inner"):
                    self.table = gr.HTML(elem_id="divergence-table")
        self._chosen: list[gr.blocks.Block] = [self.plot, self.token, self.looked]
        self.outputs: list[gr.blocks.Block] = [
            self.start, self.stop, self.text, self.body, self.strip, self.choice, self.table, *self._chosen,
        ]  # fmt: skip

    def connect(self, engine: WorkbenchEngine, turnstile: Turnstile, limits: MediaLimits) -> None:
        self.engine, self.turnstile, self.limits = engine, turnstile, limits
        self.connect_buttons(self.start, self.stop, self.measure, self.outputs, "divergence")
        quiet: dict[str, Any] = {
            "queue": False, "show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private",
        }  # fmt: skip
        self.choice.input(self.choose, [self.session, self.choice], self._chosen, **quiet)
        self.strip.select(self.click, self.session, [self.choice, *self._chosen], **quiet)

    def update(self, session: Session) -> list[Any]:
        """All outputs after a run: what was measured of the one before is gone."""
        if session.divergence is not None:
            return self._shown(session, "", busy=False)
        return [gr.skip(), gr.skip(), HINT, gr.update(visible=False), *[gr.skip()] * 6]

    def measure(self, session: Session, request: gr.Request) -> Iterator[list[Any]]:
        """Take one turn at the engine for both runs, and draw the report."""
        visitor = str(request.session_hash)
        if session.stored is not None or session.comparison is None:
            yield self._shown(session, KEPT if session.stored is not None else NO_RUN, busy=False)
            return
        comparison, asked, shown = session.comparison, self.asked(session), session.ticket
        assert asked is not None
        config = as_it_ran(comparison.compressed)
        ticket = self.tickets.issue(visitor, asked[0], config)
        report, said = None, ""
        try:
            yield self._shown(session, "Waiting for the engine.", busy=True)
            with self.turnstile.turn(PAGE, ticket.cancel) as mine:
                if mine:
                    with closing(self.engine.divergence(ticket.request, config, comparison.full.tokens)) as steps:  # type: ignore[type-var]
                        for step in self._progress(steps, len(comparison.full.tokens)):
                            if isinstance(step, DivergenceReport):
                                report = step
                            else:
                                yield self._shown(session, step, busy=True)
        except (EngineError, ValueError) as error:  # MediaError is a ValueError
            said = str(error)
        finally:
            self.tickets.drop(visitor, ticket.number)
        # A run that was asked for meanwhile has its own answer, to which this does not belong.
        if session.ticket == shown:
            session.divergence = report if report is not None else session.divergence
        yield self._shown(session, said or ("" if report is not None else "Stopped."), busy=False)

    @staticmethod
    def _progress(steps: Iterator[SideEvent | DivergenceReport], length: int) -> Iterator[str | DivergenceReport]:
        counted, drawn_s = dict.fromkeys(SIDE_NAMES, 0), 0.0
        for step in steps:
            if isinstance(step, DivergenceReport):
                yield step
                continue
            counted[step.side] += isinstance(step.event, TokenReady)
            if time.monotonic() - drawn_s >= DRAW_EVERY_S:
                drawn_s = time.monotonic()
                yield f"{SIDE_NAMES[step.side]} model: {counted[step.side]} of {plural(length, 'token')}."

    def choose(self, session: Session, index: int | None) -> list[Any]:
        """Figure, candidates and where the full model looked, of one token."""
        report = session.divergence
        if report is None or index is None or not 0 <= int(index) < len(report.tokens):
            return [gr.skip()] * len(self._chosen)
        index = int(index)
        frame, words = self._looked(session, report.attention, index)
        detail = plots.candidates_table(report.tokens[index]) + words
        return [plots.as_plot(plots.divergence(report, index)), detail, frame]

    def click(self, session: Session, event: gr.SelectData) -> list[Any]:
        index = event.index[0] if isinstance(event.index, list | tuple) else event.index
        return [gr.update(value=index), *self.choose(session, index)]

    def _looked(self, session: Session, attention: VisualAttention | None, index: int) -> tuple[Any, str]:
        if attention is None:
            why = ELSEWHERE if not session.comparison or not session.comparison.full.visual_tokens else UNSEEN
            return gr.update(visible=False), f'<p class="hint">{why}</p>'
        frame = attention.frames(index)[attention.most_missed(index)]
        figure = over_picture(session, frame, legend=LEGEND)
        return gr.update(value=plots.as_plot(figure), visible=True), _looked_html(attention, index, frame.name)

    def _shown(self, session: Session, said: str, *, busy: bool) -> list[Any]:
        state = [gr.update(interactive=not busy), gr.update(interactive=busy)]
        line = f'<p data-busy="{str(busy).lower()}" role="status">{escape(said)}</p>' if said else ""
        report = session.divergence
        if report is None:
            return [*state, (line or "") + HINT, gr.update(visible=False), *[gr.skip()] * 6]
        first = report.first_difference
        chosen = 0 if first is None else first
        return [
            *state,
            line + summary_html(report),
            gr.update(visible=True),
            [(token.text, "≠" if differs(token) else ("≈" if token.kl > 0 else None)) for token in report.tokens],
            gr.update(choices=[(choice_words(token), token.index) for token in report.tokens], value=chosen),
            plots.divergence_table(report),
            *self.choose(session, chosen),
        ]


def choice_words(token: TokenDivergence) -> str:
    mark = ", another token on top" if differs(token) else ""
    return f"{token.index + 1}. {visible(token.text)} (KL {token.kl:.3g}{mark})"


def summary_html(report: DivergenceReport) -> str:
    """The first differing token, the table of divergences, and what was not measured."""
    first = report.first_difference
    if first is None:
        words = "Both models hold the same token most likely before every token of the full answer."
    else:
        token = report.tokens[first]
        other = token.compressed_top[0]
        words = (
            f"The first token where they part is number {first + 1}: the full model says"
            f" <b>{escape(visible(token.full_top[0].text))}</b>, the compressed one"
            f" <b>{escape(visible(other.text))}</b> ({share(other.probability)})."
        )
    short = " Only the first part of the answer was measured, to bound the memory." if report.cut_short else ""
    data = "" if first is None else str(first)
    return f'<p id="divergence-first" data-first="{data}">{words}{short}</p>{plots.summary_table(report)}'


def _looked_html(attention: VisualAttention, index: int, name: str) -> str:
    dropped, on_visual = attention.dropped_share(index), attention.visual_share[index]
    return (
        f'<p id="divergence-dropped" data-share="{dropped:.6g}">Before this token the full model put'
        f" {percent(on_visual)} of its attention on visual tokens, and {percent(dropped)} of that on tokens that the"
        f" compressed model had dropped. Shown is {escape(name)}, where it looked most at dropped ones; means over"
        " layers and heads.</p>"
    )
