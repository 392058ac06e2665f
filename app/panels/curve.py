"""Prefill speed against the share of pairs skipped, measured on the visitor's last request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.observed import WorkbenchEngine
from app.panels.examples import read_examples
from app.session import Session, Tickets
from app.turnstile import PAGE, Turnstile
from app.words import escape
from engines.config import CompressionConfig
from engines.experts.curve import PAIRS, Curve, measure_curve
from engines.media import MediaLimits
from engines.results import EngineError, RunRequest

HINT = (
    '<p class="hint">Runs the prefill of your last request, or of a sample before there is one, at several shares of'
    " skipped pairs, each beside a prefill that skips nothing; with the compressed side's method, or at random where"
    " it skips nothing. Others who use this server get their turns in between.</p>"
)
NO_SAMPLE = "There is no request and no sample to measure with; ask a question first."
# Measurements under way or in line at a time; each keeps a thread waiting.
MOST_AT_ONCE = 8


class CurvePanel:
    """Draws its own controls; `connect` lets them measure."""

    def __init__(self, session: gr.State, has_experts: bool, samples: Path) -> None:
        self.session = session
        self.samples = samples
        self.tickets = Tickets()
        with gr.Column(visible=has_experts, elem_id="curve"):
            gr.HTML("<h3>Speed against share skipped</h3>", elem_classes="group-title")
            with gr.Row(elem_classes="buttons"):
                self.start = gr.Button("Measure curve", size="sm", elem_id="measure-curve", min_width=140)
                self.stop = gr.Button("Stop", size="sm", elem_id="stop-curve", min_width=90, interactive=False)
            self.text = gr.HTML(HINT, elem_id="curve-text")
            self.plot = gr.Plot(show_label=False, container=False, visible=False, elem_id="curve-plot")
            with gr.Accordion("As a table", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML(elem_id="curve-table")
        self.outputs: list[gr.blocks.Block] = [self.start, self.stop, self.text, self.plot, self.fold, self.table]

    def connect(self, engine: WorkbenchEngine, turnstile: Turnstile, limits: MediaLimits) -> None:
        self.engine, self.turnstile, self.limits = engine, turnstile, limits
        self.start.click(
            self.measure, self.session, self.outputs,
            concurrency_id="curve", concurrency_limit=MOST_AT_ONCE, show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        self.stop.click(self.end, None, self.stop, queue=False, show_progress="hidden", api_visibility="private")

    def measure(self, session: Session, request: gr.Request) -> Iterator[list[Any]]:
        """Measure pair by pair, each in a turn of its own, and draw what is known so far."""
        visitor = str(request.session_hash)
        curve: Curve | None = None
        asked = self._asked(session)
        if asked is None:
            yield self._shown(None, NO_SAMPLE, busy=False)
            return
        ticket = self.tickets.issue(visitor, *asked)
        said = ""
        try:
            yield self._shown(None, "Waiting for the engine.", busy=True)
            with closing(measure_curve(self.engine, ticket.request, ticket.compressed)) as curves:  # type: ignore[type-var]
                while True:
                    with self.turnstile.turn(PAGE, ticket.cancel) as mine:
                        found = next(curves, None) if mine else None
                    if found is None:
                        break
                    curve = found
                    yield self._shown(curve, f"Measured {curve.done} of {curve.total} pairs of runs.", busy=True)
        except (EngineError, ValueError) as error:  # MediaError is a ValueError
            said = str(error)
        finally:
            self.tickets.drop(visitor, ticket.number)
        if not said and (curve is None or curve.done < curve.total):
            said = "Stopped." if curve is None else f"Stopped after {curve.done} of {curve.total} pairs of runs."
        yield self._shown(curve, said, busy=False)

    def end(self, request: gr.Request) -> Any:
        """Tell the measurement to end; it then shows what it has."""
        self.tickets.stop(str(request.session_hash))
        return gr.update(interactive=False)

    def closed(self, visitor: str) -> None:
        self.tickets.stop(visitor)

    def _asked(self, session: Session) -> tuple[RunRequest, CompressionConfig] | None:
        """The last request with its compressed settings, or a sample with everything else off."""
        if session.asked is not None:
            request, config = session.asked
            return replace(request, cancel=threading.Event(), warm_up=True), config
        examples = read_examples(self.samples)
        if not examples:
            return None
        request = RunRequest(
            examples[0].question, (examples[0].path,), limits=self.limits, cancel=threading.Event()
        )  # fmt: skip
        return request, CompressionConfig.full()

    def _shown(self, curve: Curve | None, said: str, *, busy: bool) -> list[Any]:
        state = [gr.update(interactive=not busy), gr.update(interactive=busy)]
        line = f'<p data-busy="{str(busy).lower()}" role="status">{escape(said)}</p>' if said else ""
        if curve is None:
            return [*state, line or HINT, *[gr.update()] * 3]
        done = f'<p class="hint" data-pairs="{curve.done}">{PAIRS} pairs of runs a point, in alternating order.</p>'
        return [
            *state,
            line + done,
            gr.update(value=plots.as_plot(plots.speed_curve(curve)), visible=True),
            gr.update(visible=True),
            plots.speed_table(curve),
        ]
