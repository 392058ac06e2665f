"""The Sweep tab: many settings on one set of questions, judged and timed beside the full model."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.observed import WorkbenchEngine
from app.panels import sweep_words as words
from app.panels.ask import AskPanel, frame_sampling
from app.panels.on_demand import MOST_AT_ONCE, OnDemandPanel
from app.panels.settings import SettingsPanel
from app.panels.sweep_form import HINT, SweepForm, Wanted
from app.panels.sweep_results import NAME, SweepResults
from app.panels.sweep_sets import UPLOAD, Upload, open_source
from app.panels.sweep_view import Drawer, SweepView
from app.session import Session
from app.turnstile import PAGE, Turnstile
from engines.config import CompressionConfig
from engines.media import FrameSampling, MediaLimits
from engines.results import Capabilities, EngineError, RunRequest
from engines.sets import EvalSet
from engines.sweep.find import Found, search, share_of_full
from engines.sweep.front import QUALITIES
from engines.sweep.plan import SweepPlan
from engines.sweep.runner import SweepProgress, check_plan, run_sweep
from engines.sweep.space import grid
from engines.sweep.store import SweepStore

# The page is told how far it is no more often than this.
TELL_S = 0.5
NO_SWEEP = "There is no sweep to go on with; start one."
Advance = Callable[[Collection[int] | None], Iterator[SweepProgress]]


class SweepPanel(OnDemandPanel):
    """Drawn inside its `gr.Tab`; `connect` lets it measure, and `restore` finds the visitor's last sweep again."""

    def __init__(
        self, session: gr.State, samples: Path, capabilities: Capabilities, settings: SettingsPanel, folder: Path | None
    ) -> None:
        """`folder` is where results are kept; None: in one that goes with the server."""
        super().__init__(session, samples)
        self.settings, self.capabilities = settings, capabilities
        self._own_folder = tempfile.TemporaryDirectory(prefix="workbench-sweeps-") if folder is None else None
        self.folder = Path(self._own_folder.name) if self._own_folder is not None else folder
        with gr.Column(elem_classes="cards"):
            with gr.Column(elem_id="sweep", elem_classes="card"):
                gr.HTML("<h2>Try many settings</h2>", elem_classes="card-title")
                self.form = SweepForm(settings.controls)
                with gr.Row(elem_classes="buttons"):
                    self.start = gr.Button(
                        "Start sweep", size="sm", variant="primary", elem_id="sweep-start", min_width=120
                    )
                    self.find = gr.Button("Search one setting", size="sm", elem_id="sweep-find", min_width=150)
                    self.stop = gr.Button("Stop", size="sm", elem_id="sweep-stop", min_width=90, interactive=False)
                    self.resume = gr.Button("Go on", size="sm", elem_id="sweep-resume", min_width=90, visible=False)
                    self.delete = gr.Button(
                        "Delete my sweeps", size="sm", elem_id="sweep-delete", min_width=130, visible=False
                    )
                self.text = gr.HTML(HINT, elem_id="sweep-text")
            self.results = SweepResults(session)
        self.outputs: list[gr.blocks.Block] = [
            self.start, self.find, self.stop, self.resume, self.delete, self.text, *self.results.outputs,
        ]  # fmt: skip

    def connect(
        self, engine: WorkbenchEngine, turnstile: Turnstile, limits: MediaLimits, tabs: gr.Tabs, ask: AskPanel
    ) -> None:
        self.engine, self.turnstile, self.limits = engine, turnstile, limits
        compare = [ask.files, ask.question, *ask.frames]
        self._compare, self._form = len(compare), len(self.form.inputs)
        inputs = [self.session, self.results.floor, *compare, *self.form.inputs, *self.settings.inputs]
        self.connect_buttons(self.start, self.stop, self.measure, self.outputs, NAME, inputs)
        for button, work in ((self.find, self.search), (self.resume, self.go_on)):
            button.click(
                work, inputs, self.outputs,
                concurrency_id=NAME, concurrency_limit=MOST_AT_ONCE, show_progress="hidden", api_visibility="private",
            )  # fmt: skip
        self.delete.click(
            self.forget, self.session, self.outputs, queue=False, show_progress="hidden", api_visibility="private"
        )
        self.form.connect(self.settings.inputs, self._wanted)
        self.results.connect(tabs, self.settings.outputs, self.settings.load)

    # ---- what the buttons do ----

    def measure(self, request: gr.Request, session: Session, _floor: float, *values: Any) -> Iterator[list[Any]]:
        """Run what the form says, from where it ended if it was begun before."""
        yield from self._guarded(request, session, values, None, None)

    def search(self, request: gr.Request, session: Session, floor: float, *values: Any) -> Iterator[list[Any]]:
        """Bisection over the one setting of the form."""
        yield from self._guarded(request, session, values, floor, None)

    def go_on(self, request: gr.Request, session: Session, _floor: float, *values: Any) -> Iterator[list[Any]]:
        """The last sweep, whatever the form says now."""
        shown = self.results.shown(session)
        if shown is None:
            yield self._shown(session, NO_SWEEP, busy=False)
            return
        yield from self._guarded(request, session, values, None, shown.view.plan)

    def forget(self, session: Session, request: gr.Request) -> list[Any]:
        try:
            self._drawer(session, request).forget()
        except ValueError as error:
            return self._shown(session, str(error), busy=False)
        session.judged.pop(NAME, None)
        return self._shown(session, "Deleted.", busy=False)

    def restore(self, session: Session, request: gr.Request) -> list[Any]:
        """When the page is opened: the browser's last sweep."""
        try:
            view = self._drawer(session, request).last()
        except ValueError as error:
            return self._shown(session, str(error), busy=False)
        if view is None:
            return [gr.skip()] * len(self.outputs)
        self.results.begin(session, view)
        return self._shown(session, words.standing(view), busy=False)

    # ---- how ----

    def _guarded(
        self, request: gr.Request, session: Session, values: Sequence[Any], floor: float | None, plan: SweepPlan | None
    ) -> Iterator[list[Any]]:
        """One sweep with its place in line; every failure ends as a sentence."""
        cancel = threading.Event()
        visitor = str(request.session_hash)
        ticket = self.tickets.issue(visitor, RunRequest(NAME, cancel=cancel), CompressionConfig.full())
        said = ""
        try:
            yield self._shown(session, "Looking at the questions.", busy=True)
            with tempfile.TemporaryDirectory(prefix="workbench-sweep-") as folder:
                found, plan, axis = self._begin(values, Path(folder), floor, plan)
                drawer = self._drawer(session, request)
                with drawer.open() as store:
                    self.results.begin(session, SweepView.begin(plan, found))
                    sweep = self._advance(plan, found, store, cancel)
                    if floor is None:
                        yield from self._follow(session, sweep(None), store, drawer)
                    else:
                        said = yield from self._bisect(session, sweep, store, drawer, axis, floor / 100, cancel)
                    drawer.thin_out(store)
            said = said or words.standing(self._view(session))
        except (EngineError, OSError, ValueError) as error:
            said = str(error)
        finally:
            self.tickets.drop(visitor, ticket.number)
        yield self._shown(session, said, busy=False)

    def _begin(
        self, values: Sequence[Any], folder: Path, floor: float | None, plan: SweepPlan | None
    ) -> tuple[EvalSet, SweepPlan, list[int]]:
        """The set, the plan, and with a floor the places of the one axis from the best to the fastest."""
        if plan is not None:
            upload = self._upload(plan.set_source, values)
            found = open_source(plan.set_source, plan.every, folder, upload, self.limits)
            check_plan(plan, found, self.engine)
            return found, plan, []
        wanted = self._wanted(values[self._compare :])
        if floor is not None:
            if len(wanted.space.axes) != 1:
                raise ValueError(
                    "The search tries one setting, its values from the best quality to the fastest: choose none for the"
                    " others, or start the sweep and let Find for me choose among all its points."
                )
            points = grid(wanted.space)
        else:
            points = wanted.points()
        upload = self._upload(wanted.source, values)
        found = open_source(wanted.source, wanted.every, folder, upload, self.limits)
        plan = wanted.plan(self.engine, self.capabilities, found, points)
        return found, plan, plan.places(points)

    def _advance(self, plan: SweepPlan, found: EvalSet, store: SweepStore, cancel: threading.Event) -> Advance:
        def advance(only: Collection[int] | None) -> Iterator[SweepProgress]:
            def turn() -> Any:
                return self.turnstile.turn(PAGE, cancel)

            return run_sweep(self.engine, plan, found, store, cancel, turn, only, self.limits)

        return advance

    def _follow(
        self, session: Session, steps: Iterator[SweepProgress], store: SweepStore, drawer: Drawer
    ) -> Iterator[list[Any]]:
        """Draw new figures as they come, and in between say how far it is."""
        told_s = 0.0
        with closing(steps):  # type: ignore[type-var]
            for step in steps:
                shown = self.results.shown(session)
                assert shown is not None
                if step.points is not None:
                    shown.view = replace(shown.view.after(step), done=store.count(shown.view.plan))
                    drawer.keep(shown.view)
                    yield self._shown(session, words.progress(step), busy=True)
                elif time.monotonic() - told_s >= TELL_S:
                    told_s = time.monotonic()
                    yield self._told(words.progress(step))

    def _bisect(
        self,
        session: Session,
        sweep: Advance,
        store: SweepStore,
        drawer: Drawer,
        axis: list[int],
        floor: float,
        cancel: threading.Event,
    ) -> Generator[list[Any], None, str]:
        """Updates on the way; returns what it found, in words; empty if it was stopped."""
        steps = search(len(axis), floor)
        try:
            place = next(steps)
            while True:
                yield from self._follow(session, sweep({axis[place]}), store, drawer)
                if cancel.is_set():
                    return ""
                view = self._view(session)
                quality = QUALITIES["accuracy" if view.labelled else "agreement"]
                place = steps.send(share_of_full(view.points, view.plan.points[axis[place]], quality))
        except StopIteration as end:
            found: Found = end.value
            shown = self.results.shown(session)
            assert shown is not None
            shown.chosen = None if found.place is None else shown.view.plan.points[axis[found.place]]
            return words.found_words(found, shown.chosen, floor)

    def _view(self, session: Session) -> SweepView:
        shown = self.results.shown(session)
        assert shown is not None
        return shown.view

    def _drawer(self, session: Session, request: gr.Request) -> Drawer:
        assert self.folder is not None
        return Drawer(self.folder, session.visitor or session.name, request.username)

    def _upload(self, source: str, values: Sequence[Any]) -> Upload:
        files, question, *frames = values[: self._compare]
        own = values[self._compare + self.form.inputs.index(self.form.files)] or []
        # Its fields may be empty where nothing of the Compare tab is asked.
        sampling = frame_sampling(*frames) if source == UPLOAD else FrameSampling()
        return Upload(tuple(map(Path, files or ())), question or "", sampling, tuple(map(Path, own)))

    def _wanted(self, values: Sequence[Any]) -> Wanted:
        """From the values of the form and of the switches."""
        return self.form.read(values[: self._form], self.settings.config(values[self._form :]))

    def _told(self, said: str) -> list[Any]:
        return [*[gr.skip()] * 5, words.line(said, True), *[gr.skip()] * len(self.results.outputs)]

    def _shown(self, session: Session, said: str, *, busy: bool) -> list[Any]:
        shown = self.results.shown(session)
        view = None if shown is None else shown.view
        can_go_on = not busy and view is not None and not view.complete
        below = "" if view is None else words.problems(view)
        return [
            gr.update(interactive=not busy),
            gr.update(interactive=not busy),
            gr.update(interactive=busy),
            gr.update(visible=can_go_on),
            gr.update(visible=not busy and view is not None),
            (words.line(said, busy) if said else HINT) + below,
            *self.results.update(session),
        ]
