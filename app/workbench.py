"""The page: lays the panels out and connects them to the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app import runs, tenants
from app.api.gate import names_loopback
from app.observed import WorkbenchEngine
from app.options import PageOptions
from app.panels.answers import answers_html, verdict_html, wrong_html
from app.panels.ask import MOST_REPEATS, AskPanel, frame_sampling
from app.panels.caches import ANY_SCOPE, CachesPanel
from app.panels.device import DevicePanel
from app.panels.divergence import DivergencePanel
from app.panels.experts import ExpertsPanel
from app.panels.export import ExportLine
from app.panels.fidelity import FidelityPanel
from app.panels.header import TITLE, draw_header
from app.panels.heatmap import OPACITY, HeatmapPanel
from app.panels.history import HistoryPanel, is_visitor, new_visitor
from app.panels.judge_tab import JudgeTab
from app.panels.kv import KVPanel
from app.panels.precision import PrecisionPanel
from app.panels.settings import SettingsPanel
from app.panels.sweep import SweepPanel
from app.panels.waterfall import WaterfallPanel
from app.plots.heatmap import VIEWS
from app.report import Report
from app.session import Phase, Session, Tickets
from app.turnstile import PAGE, Turnstile
from engines.cache.scope import Scope
from engines.config import SamplingConfig
from engines.media import MIB, MediaLimits
from engines.results import RunRequest

log = logging.getLogger(__name__)

SAMPLES = Path(__file__).resolve().parent.parent / "assets" / "samples"
# Uploaded and made files are deleted when they are this old, looked at this often.
FILE_AGE_S, CLEAN_EVERY_S = 6 * 3600, 900


class Workbench:
    """The handlers of the page. Everything about a visitor is in the Session that Gradio hands in."""

    def __init__(
        self,
        engine: WorkbenchEngine,
        limits: MediaLimits,
        turnstile: Turnstile | None = None,
        *,
        alone: bool = False,
        options: PageOptions | None = None,
    ) -> None:
        """`alone`: all visitors are one person, who may find in the caches what any of them left there."""
        self.options = options or PageOptions()
        self.engine = engine
        self.alone = alone
        self.limits = limits
        self.tickets = Tickets()
        self.lines = [self.tickets]  # of everything on the page that asks for the engine
        # Gradio's queue keeps the page's own visitors in order; here they take turns with the endpoint. And Gradio
        # lets the next run start when a page is closed, which can be before the engine has let go of the last.
        self.turnstile = turnstile or Turnstile()

    def draw(self) -> None:
        self.session = gr.State(Session(), time_to_live=3600)
        self.ticket = gr.State(0)
        self.page_px = gr.Number(visible=False)
        capabilities = self.engine.capabilities()
        draw_header(capabilities)
        with gr.Tabs(elem_id="tabs") as self.tabs:
            with gr.Tab("Compare", id="compare"), gr.Column(elem_id="layout"):
                self.ask = AskPanel(self.limits, SAMPLES, capabilities.is_demo, self.session)
                self.settings = SettingsPanel(capabilities, self.options.settings)
                with gr.Column(elem_id="results"):
                    with gr.Column(elem_classes="card", elem_id="answers-card"):
                        # Gradio writes the position in the queue here.
                        self.queue = gr.HTML("", elem_id="queue-status")
                        self.verdict = gr.HTML(verdict_html(Session()))
                        self.answers = gr.HTML(answers_html(Session(), self.settings.controls), elem_id="answers")
                        self.export = ExportLine(
                            self.session, capabilities, self.settings.controls, self.options.signing_key
                        )
                    self.divergence = DivergencePanel(self.session, SAMPLES)
                    self.waterfall = WaterfallPanel()
                    self.heatmap = HeatmapPanel(self.session)
                    self.fidelity = FidelityPanel(self.session)
                    self.experts = ExpertsPanel(self.session, capabilities.own_top_k is not None, SAMPLES)
                    self.precision = PrecisionPanel(self.session, SAMPLES)
                    self.kv = KVPanel()
                    self.caches = CachesPanel()
                    self.device = DevicePanel()
            with gr.Tab("Sweep", id="sweep"):
                self.sweep = SweepPanel(self.session, SAMPLES, capabilities, self.settings, self.options.sweeps)
            with gr.Tab("Judge", id="judge"):
                self.judge = JudgeTab(self.session, SAMPLES)
            with gr.Tab("History", id="history") as self.history_tab:
                self.history = HistoryPanel(self.session, self.options.history, capabilities)
        self.lines += [
            self.experts.curve.tickets,
            self.precision.tickets,
            self.divergence.tickets,
            self.sweep.tickets,
            *self.judge.tickets,
        ]
        self._connect()

    def _connect(self) -> None:
        ask = self.ask
        self.settings.connect_presets(self.session, ask.previewed)
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        state: list[gr.blocks.Block] = [
            self.verdict, self.answers, ask.run, ask.stop, ask.leave, *self.export.outputs,
        ]  # fmt: skip
        drawn: list[gr.blocks.Block] = [
            *state, *self.divergence.outputs, *self.waterfall.outputs, *self.heatmap.outputs, *self.fidelity.outputs,
            *self.experts.outputs, *self.precision.outputs, *self.kv.outputs, *self.caches.outputs,
            *self.device.outputs,
        ]  # fmt: skip
        # Queued, because Gradio looks for changed states only after events of the queue; it never waits there.
        gr.on(
            [ask.run.click, ask.question.submit],
            self.begin,
            inputs=[self.session, *ask.inputs, *self.settings.inputs],
            outputs=[self.ticket, *state],
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
        )
        run = self.ticket.change(
            self.run,
            inputs=[self.session, self.ticket, *self.heatmap.inputs],
            outputs=[*drawn, self.queue],
            concurrency_id="engine",
            concurrency_limit=1,
            trigger_mode="multiple",
            show_progress="minimal",
            show_progress_on=self.queue,
            api_visibility="private",
        )  # fmt: skip
        # A run in progress ends by itself at the next token; only one that still waits is taken out of the queue,
        # because a cancelled event frees its place in the queue before the engine is free.
        ask.stop.click(self.stop, inputs=self.session, outputs=state, **quiet)
        ask.leave.click(self.leave, inputs=self.session, outputs=[*state, self.queue], cancels=[run], **quiet)
        self.waterfall.trace.connect(self.export.trace, [self.session], self.waterfall.said)
        self.reopened = [self.tabs, ask.question, *self.settings.outputs, *drawn]
        self.history.connect(self.history_tab, self._owner, self.reopen, self.reopened)
        self.experts.curve.connect(self.engine, self.turnstile, self.limits)
        self.precision.connect(self.engine, self.turnstile, self.limits)
        self.device.connect(self.engine)
        self.divergence.connect(self.engine, self.turnstile, self.limits)
        self.sweep.connect(self.engine, self.turnstile, self.limits, self.tabs, self.ask)
        self.judge.connect(self.engine, self.turnstile, self.limits, self.settings)
        for button, clear in (
            (self.caches.clear_encoder, self.clear_encoder_cache),
            (self.caches.clear_prefix, self.clear_prefix_cache),
        ):
            button.click(
                clear,
                inputs=[self.session, self.caches.shared],
                outputs=self.caches.outputs,
                concurrency_id="engine",
                concurrency_limit=1,
                show_progress="minimal",
                api_visibility="private",
            )

    def begin(self, request: gr.Request, session: Session, *values: Any) -> dict[Any, Any]:
        """Check what was asked and take a place in the queue, or say in one sentence what is missing."""
        before = len(self.ask.inputs)
        asked, switches = values[:before], values[before:]
        visitor = str(request.session_hash)
        if session.active and self.tickets.get(visitor, session.ticket) is not None:
            return {self.answers: gr.skip()}
        try:
            compressed = self.settings.config(switches)
            files, question, warm_up, repeats, *rest = asked
            asked_for = self._request(files, question, warm_up, *rest)
            asked_for = replace(asked_for, scope=self._scope(session, request))
            ticket = self.tickets.issue(visitor, asked_for, compressed, repeat_count(repeats))
        except ValueError as error:
            session.begin(0)
            session.fail(str(error))
            return self._state(session)
        session.begin(ticket.number, ticket.repeats, session.answer_to(asked_for))
        session.asked = (replace(asked_for, cancel=None), compressed)
        return {self.ticket: ticket.number, **self._state(session)}

    def _request(self, files: list[str] | None, question: str, warm_up: bool, *values: Any) -> RunRequest:
        if not (question or "").strip():
            raise ValueError("The question is empty; type one and run again.")
        frames, numbers = values[: len(self.ask.frames)], values[len(self.ask.frames) :]
        chosen: dict[str, Any] = {}
        for control, value in zip(self.ask.sampling_controls, numbers, strict=True):
            if value is None:
                raise ValueError(f"{control.label} is empty; fill it in under Sampling.")
            chosen[control.path[-1]] = int(value) if control.whole else round(float(value), 6)
        return RunRequest(
            question=question.strip(),
            media=tuple(Path(file) for file in files or ()),
            sampling=SamplingConfig(**chosen),
            frames=frame_sampling(*frames),
            limits=self.limits,
            warm_up=bool(warm_up),
            cancel=threading.Event(),
        )

    def run(
        self, session: Session, number: int, view: str, opacity: float, request: gr.Request
    ) -> Iterator[dict[Any, Any]]:
        """Stream both answers, then draw what was measured."""
        visitor = str(request.session_hash)
        ticket = self.tickets.get(visitor, number)
        if ticket is None:  # left the queue, or asked again since
            yield {self.queue: ""}
            return
        try:
            with self.turnstile.turn(PAGE, ticket.cancel) as mine:
                if mine:
                    # Out of the queue: from here on Stop ends the run instead of leaving the queue.
                    session.sides["full"].phase = Phase.PREPARING
                    session.sides["full"].stage = "preparing"
                    yield self._state(session)
                    for _ in runs.stream(self.engine, session, ticket):
                        yield {self.answers: answers_html(session, self.settings.controls)}
                else:
                    session.stop()
        finally:
            self.tickets.drop(visitor, number)
        yield {
            **self._drawn(session, view, opacity),
            self.queue: "",
            self.export.said: wrong_html(self.history.keep(session, self._owner(session, request))),
        }

    def reopen(self, session: Session, report: Report) -> tuple[str, list[Any]]:
        """Show a kept comparison; a sentence where its settings cannot be put into the switches here."""
        report.show(session)
        values: dict[Any, Any] = {self.tabs: gr.update(selected="compare"), self.ask.question: report.question}
        said = ""
        try:
            loaded = self.settings.load(report.comparison.compressed.config)
            values |= dict(zip(self.settings.outputs, loaded, strict=True))
        except ValueError as error:
            said = f"Opened, but the switches stay as they were. {error}"
        values |= self._drawn(session, VIEWS[0], OPACITY)
        return said, [values.get(output, gr.skip()) for output in self.reopened]

    def _drawn(self, session: Session, view: str, opacity: float) -> dict[Any, Any]:
        """All of the Compare tab that comes of a run."""
        return {
            **self._state(session),
            **dict(zip(self.caches.outputs, self._caches(session), strict=True)),
            **dict(zip(self.divergence.outputs, self.divergence.update(session), strict=True)),
            **dict(zip(self.waterfall.outputs, self.waterfall.update(session), strict=True)),
            **dict(zip(self.heatmap.outputs, self.heatmap.update(session, view, opacity), strict=True)),
            **dict(zip(self.fidelity.outputs, self.fidelity.update(session), strict=True)),
            **dict(zip(self.experts.outputs, self.experts.update(session), strict=True)),
            **dict(zip(self.precision.outputs, self.precision.update(session), strict=True)),
            **dict(zip(self.kv.outputs, self.kv.update(session), strict=True)),
            **dict(zip(self.device.outputs, self.device.update(session), strict=True)),
        }

    def stop(self, session: Session, request: gr.Request) -> dict[Any, Any]:
        """Tell the engine to end; the run itself then shows what it has."""
        self.tickets.stop(str(request.session_hash))
        session.stopping = session.active
        return self._state(session)

    def leave(self, session: Session, request: gr.Request) -> dict[Any, Any]:
        """Give the place in the queue up."""
        visitor = str(request.session_hash)
        self.tickets.stop(visitor)
        self.tickets.drop(visitor, session.ticket)
        session.stop()
        return {**self._state(session), self.queue: ""}

    def clear_encoder_cache(self, session: Session, shared: str, request: gr.Request) -> list[Any]:
        return self._clear("encoder", session, shared, request)

    def clear_prefix_cache(self, session: Session, shared: str, request: gr.Request) -> list[Any]:
        return self._clear("prefix", session, shared, request)

    def _clear(self, level: str, session: Session, shared: str, request: gr.Request) -> list[Any]:
        """Forget what the visitor's own runs left there, or what of it was shared at one scope."""
        scope = None if shared == ANY_SCOPE else shared
        with self.turnstile.turn(PAGE):
            self.engine.clear_caches(level, self._scope(session, request).tenant, scope)
        return self._caches(session)

    def _caches(self, session: Session) -> list[Any]:
        return self.caches.update(session, self.engine.cache_totals())

    def _scope(self, session: Session, request: gr.Request) -> Scope:
        """Whose a run of this visitor is, as far as the caches are concerned."""
        return tenants.of_visitor(session.name, request.username, alone=self._alone(request))

    def _owner(self, session: Session, request: gr.Request) -> str:
        """Whose history this visitor sees."""
        return tenants.owner_of(session.visitor or session.name, request.username, alone=self._alone(request))

    def _alone(self, request: gr.Request) -> bool:
        # By another name than this machine's own, a proxy may have let anybody in.
        return self.alone and names_loopback(request.headers.get("host"))

    @staticmethod
    def recognise(session: Session, visitor: Any) -> str:
        """Who the browser says it is, or a new name for it. A made-up name has no history to find."""
        session.visitor = visitor if is_visitor(visitor) else new_visitor()
        return session.visitor

    def opened(self, session: Session, page_px: float | None) -> list[Any]:
        session.page_px = int(page_px or session.page_px)
        return self._caches(session)

    def closed(self, request: gr.Request) -> None:
        """The visitor has gone: nobody reads the answer any more."""
        self.tickets.stop(str(request.session_hash))
        self.experts.curve.closed(str(request.session_hash))
        self.precision.closed(str(request.session_hash))
        self.divergence.closed(str(request.session_hash))
        self.sweep.closed(str(request.session_hash))
        self.judge.closed(str(request.session_hash))

    def waiting(self) -> int:
        """Runs that were asked for and have not begun, in Gradio's queue and in the line for the engine."""
        wanted = sum(line.pending() for line in self.lines)
        return max(0, wanted - self.turnstile.places(PAGE)) + self.turnstile.waiting

    def _state(self, session: Session) -> dict[Any, Any]:
        """How things stand: verdict, answers, and which buttons can be pressed."""
        queued = session.sides["full"].phase == Phase.QUEUED
        return {
            self.verdict: verdict_html(session),
            self.answers: answers_html(session, self.settings.controls),
            self.ask.run: gr.update(interactive=not session.active),
            self.ask.stop: gr.update(visible=not queued, interactive=session.active and not session.stopping),
            self.ask.leave: gr.update(visible=queued),
            **dict(zip(self.export.outputs, self.export.update(session), strict=True)),
        }


def repeat_count(value: float | None) -> int:
    """The slider's value. ValueError with a sentence for an empty field or a number out of its range."""
    if value is None or not 1 <= value <= MOST_REPEATS:
        raise ValueError(f"Repeats must be a whole number from 1 to {MOST_REPEATS}.")
    return int(value)


def build(engine: WorkbenchEngine, *, max_upload_mb: int = 200, limits: MediaLimits | None = None) -> gr.Blocks:
    """The page around an engine. Look and queue size are given when it is launched: see `app/server.py`."""
    return lay_out(Workbench(engine, limits or MediaLimits(max_bytes=max_upload_mb * MIB)))


def lay_out(workbench: Workbench) -> gr.Blocks:
    with gr.Blocks(
        title=TITLE, fill_width=True, delete_cache=(CLEAN_EVERY_S, FILE_AGE_S), analytics_enabled=False
    ) as page:
        workbench.draw()
        page.load(
            workbench.opened,
            inputs=[workbench.session, workbench.page_px],
            outputs=workbench.caches.outputs,
            js="(session, width) => [session, window.innerWidth]",
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
        # Gradio sends the secret to the browser: it keeps nothing from anybody, and must not change with a restart.
        browser = gr.BrowserState(None, storage_key="workbench-visitor", secret="workbench")
        page.load(
            workbench.recognise,
            inputs=[workbench.session, browser],
            outputs=browser,
            show_progress="hidden",
            api_visibility="private",
        ).then(
            workbench.sweep.restore,
            inputs=workbench.session,
            outputs=workbench.sweep.outputs,
            show_progress="hidden",
            api_visibility="private",
        )
        page.unload(workbench.closed)
    return page
