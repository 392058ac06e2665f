"""The Judge tab as a whole: one set of questions and the cards that ask it."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.observed import WorkbenchEngine
from app.panels.judge import JudgePanel, SetChooser
from app.panels.robustness import RobustnessPanel
from app.panels.settings import SettingsPanel
from app.session import Tickets
from app.turnstile import Turnstile
from engines.media import MediaLimits


class JudgeTab:
    """Drawn inside its `gr.Tab`; `connect` lets its cards measure with the switches of the Compare tab."""

    def __init__(self, session: gr.State, samples: Path) -> None:
        with gr.Column(elem_classes="cards"):
            self.chooser = SetChooser()
            self.cards: list[JudgePanel] = [RobustnessPanel(session, samples)]

    @property
    def tickets(self) -> list[Tickets]:
        return [card.tickets for card in self.cards]

    def connect(
        self, engine: WorkbenchEngine, turnstile: Turnstile, limits: MediaLimits, settings: SettingsPanel
    ) -> None:
        for card in self.cards:
            card.connect(engine, turnstile, limits, self.chooser, settings)

    def closed(self, visitor: str) -> None:
        for card in self.cards:
            card.closed(visitor)
