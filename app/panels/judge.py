"""The Judge tab: a set of questions, and what its cards share that put it to the full and the compressed model."""

from __future__ import annotations

import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from app.observed import WorkbenchEngine
from app.panels.on_demand import OnDemandPanel
from app.panels.settings import SettingsPanel
from app.session import Session
from app.turnstile import PAGE, Turnstile
from app.words import count, escape, plural, seconds
from engines.config import CompressionConfig
from engines.demo import benchmark
from engines.evaluation import Item
from engines.judge.ask import Asker
from engines.media import MediaLimits
from engines.results import EngineError, RunRequest

SETS = {
    "Stills and clips (1 500 questions)": "all",
    "Stills (1 200 questions)": "stills",
    "Clips (300 questions)": "clips",
}
FEWEST, MOST = 10, 300
# Plots are drawn anew no more often than this.
DRAW_EVERY_S = 2.0
COMPRESSED = (
    '<p class="hint">Questions with known answers, drawn for the bundled demo checkpoint and spread evenly over the'
    " set. Compressed is what the switches of the Compare tab say when a measurement starts. Others who use this"
    " server get their turns in between.</p>"
)


class SetChooser:
    """Which questions the cards ask, and how many."""

    def __init__(self) -> None:
        with gr.Column(elem_id="judge-set", elem_classes="card"):
            gr.HTML("<h2>Questions to judge by</h2>", elem_classes="card-title")
            with gr.Row():
                self.name = gr.Dropdown(list(SETS.items()), value="all", label="Set", elem_id="judge-set-name")
                self.questions = gr.Slider(
                    FEWEST, MOST, value=60, step=10, label="Questions", elem_id="judge-set-questions"
                )
            gr.HTML(COMPRESSED)
        self.inputs: list[gr.components.Component] = [self.name, self.questions]

    @staticmethod
    def items(name: str, questions: float | None, folder: Path) -> tuple[Iterator[Item], int]:
        """The questions and how many they are; ValueError with a sentence for what the controls do not offer."""
        if name not in SETS.values():
            raise ValueError("Choose a set of questions first.")
        if questions is None or not FEWEST <= questions <= MOST:
            raise ValueError(f"The number of questions must be from {FEWEST} to {MOST}.")
        every = max(1, round(benchmark.size(name) / questions))
        return benchmark.items(name, folder, every), benchmark.size(name, every)


class JudgePanel(OnDemandPanel):
    """One card. A kind of it draws itself, says how to measure and how to show what is known so far."""

    name: str
    """Of its line in Gradio's queue, and of its buttons."""
    hint: str
    start: gr.Button
    stop: gr.Button
    text: gr.HTML
    outputs: list[gr.blocks.Block]
    """Start, stop and text come first."""
    extra: tuple[gr.components.Component, ...] = ()
    """Its own controls."""

    def connect(
        self,
        engine: WorkbenchEngine,
        turnstile: Turnstile,
        limits: MediaLimits,
        chooser: SetChooser,
        settings: SettingsPanel,
    ) -> None:
        self.engine, self.turnstile, self.limits, self.settings = engine, turnstile, limits, settings
        inputs = [self.session, *chooser.inputs, *self.extra, *settings.inputs]
        self.connect_buttons(self.start, self.stop, self.measure, self.outputs, self.name, inputs)

    def draw_buttons(self, label: str) -> None:
        with gr.Row(elem_classes="buttons"):
            self.start = gr.Button(label, size="sm", elem_id=f"measure-{self.name}", min_width=150)
            self.stop = gr.Button("Stop", size="sm", elem_id=f"stop-{self.name}", min_width=90, interactive=False)
        self.text = gr.HTML(f'<p class="hint">{self.hint}</p>', elem_id=f"{self.name}-text")

    @abstractmethod
    def begin(self, asker: Asker, items: Iterator[Item], config: CompressionConfig, extra: tuple[Any, ...]) -> Any:
        """A generator that does one question a step and gives what is known so far, with `done` and `problems`."""

    @abstractmethod
    def drawn(self, found: Any, session: Session) -> tuple[str, list[Any]]:
        """In words (HTML), and the outputs after start, stop and text."""

    def measure(
        self, request: gr.Request, session: Session, name: str, questions: float, *values: Any
    ) -> Iterator[list[Any]]:
        """Question by question, each in a turn of its own; draw what is known so far, and say how long it will take."""
        visitor, extra = str(request.session_hash), values[: len(self.extra)]
        found, said, ended = None, "", False
        try:
            config = self.settings.config(values[len(self.extra) :])
            self.engine.check(config)
            cancel = threading.Event()
            ticket = self.tickets.issue(visitor, RunRequest(self.name, cancel=cancel), config)
        except (EngineError, ValueError) as error:
            yield self._shown(None, str(error), session, busy=False)
            return
        try:
            yield self._shown(None, "Waiting for the engine.", session, busy=True)
            with tempfile.TemporaryDirectory(prefix="workbench-judge-") as folder:
                items, total = SetChooser.items(name, questions, Path(folder))
                began_s = drawn_s = time.monotonic()
                steps = self.begin(Asker(self.engine, self.limits, cancel), items, config, extra)
                with closing(steps):
                    for number in range(1, total + 2):
                        with self.turnstile.turn(PAGE, cancel) as mine:
                            step = next(steps, None) if mine else None
                        if step is None:
                            break
                        found, now_s = step, time.monotonic()
                        if number == 1 or now_s - drawn_s >= DRAW_EVERY_S:
                            left_s = (now_s - began_s) / number * (total - number)
                            line = f"{plural(number, 'question')} of {count(total)}, about {seconds(left_s)} left."
                            yield self._shown(found, line, session, busy=True)
                            drawn_s = time.monotonic()
                ended = not cancel.is_set()
        except (EngineError, ValueError) as error:
            said = str(error)
        finally:
            self.tickets.drop(visitor, ticket.number)
        if not said and not ended:
            said = "Stopped." if found is None else f"Stopped after {plural(found.done, 'question')}."
        yield self._shown(found, said, session, busy=False)

    def _shown(self, found: Any, said: str, session: Session, *, busy: bool) -> list[Any]:
        state = [gr.update(interactive=not busy), gr.update(interactive=busy)]
        line = f'<p data-busy="{str(busy).lower()}" role="status">{escape(said)}</p>' if said else ""
        if found is None:
            return [*state, line, *[gr.update()] * (len(self.outputs) - 3)]
        words, drawn = self.drawn(found, session)
        return [*state, line + words + problems_html(found.problems), *drawn]


def problems_html(problems: tuple[Any, ...]) -> str:
    """Questions that could not be asked."""
    if not problems:
        return ""
    rows = "".join(f"<li>{escape(one.question)}: {escape(one.reason)}</li>" for one in problems[:20])
    more = f"<li>and {count(len(problems) - 20)} more</li>" if len(problems) > 20 else ""
    return f'<p class="hint">{plural(len(problems), "question")} could not be asked:</p><ul>{rows}{more}</ul>'
