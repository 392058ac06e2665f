"""Prefill speed against the share of pairs skipped, measured on the visitor's last request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.observed import WorkbenchEngine
from app.panels.on_demand import NO_SAMPLE, OnDemandPanel
from app.session import Session
from app.turnstile import PAGE, Turnstile
from app.words import escape
from engines.experts.curve import PAIRS, Curve, measure_curve
from engines.media import MediaLimits
from engines.results import EngineError

HINT = (
    '<p class="hint">Runs the prefill of your last request, or of a sample before there is one, at several shares of'
    " skipped pairs, each beside a prefill that skips nothing; with the compressed side's method, or at random where"
    " it skips nothing. Others who use this server get their turns in between.</p>"
)


class CurvePanel(OnDemandPanel):
    """Draws its own controls; `connect` lets them measure."""

    def __init__(self, session: gr.State, has_experts: bool, samples: Path) -> None:
        super().__init__(session, samples)
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
        self.connect_buttons(self.start, self.stop, self.measure, self.outputs, "curve")

    def measure(self, session: Session, request: gr.Request) -> Iterator[list[Any]]:
        """Measure pair by pair, each in a turn of its own, and draw what is known so far."""
        visitor = str(request.session_hash)
        curve: Curve | None = None
        asked = self.asked(session)
        if asked is None:
            yield self._shown(None, NO_SAMPLE, busy=False)
            return
        wanted, compressed = asked
        ticket = self.tickets.issue(visitor, replace(wanted, warm_up=True), compressed)
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
