"""Accuracy on ever poorer pictures, with and without compression."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from app import plots
from app.panels.judge import JudgePanel
from app.plots.figure import SIDE_NAMES
from app.plots.robustness import ALL, points_words
from app.session import Session
from app.words import plural
from engines.compare import SIDES
from engines.config import CompressionConfig
from engines.evaluation import Item
from engines.judge import robustness
from engines.judge.ask import Asker
from engines.judge.robustness import Robustness


class RobustnessPanel(JudgePanel):
    name = "robustness"
    hint = (
        "Asks every question on the clean pictures, with noise (half Gaussian, half salt and pepper) at four levels,"
        " and seen from aside at four, of the full and of the compressed model: 18 runs a question."
    )

    def __init__(self, session: gr.State, samples: Path) -> None:
        super().__init__(session, samples)
        with gr.Column(elem_id="robustness", elem_classes="card"):
            gr.HTML("<h2>Robustness to noise and perspective</h2>", elem_classes="card-title")
            self.draw_buttons("Measure robustness")
            with gr.Column(visible=False) as self.body:
                self.category = gr.Dropdown([ALL], value=ALL, label="Show", elem_id="robustness-category")
                self.plot = gr.Plot(show_label=False, container=False, elem_id="robustness-plot")
                with gr.Accordion("As a table", open=False, elem_classes="inner"):
                    self.table = gr.HTML(elem_id="robustness-table")
        self.outputs = [self.start, self.stop, self.text, self.body, self.category, self.plot, self.table]
        self.category.input(
            self.show, [session, self.category], self.plot,
            queue=False, show_progress="hidden", api_visibility="private",
        )  # fmt: skip

    def begin(
        self, asker: Asker, items: Iterator[Item], config: CompressionConfig, extra: tuple[Any, ...]
    ) -> Iterator[Robustness]:
        return robustness.measure(asker, items, config)

    def drawn(self, found: Robustness, session: Session) -> tuple[str, list[Any]]:
        session.judged[self.name] = found
        return robustness_words(found), [
            gr.update(visible=True),
            gr.update(choices=[ALL, *found.categories], value=ALL),
            plots.as_plot(plots.robustness(found)),
            plots.robustness_table(found),
        ]

    def show(self, session: Session, category: str) -> Any:
        found = session.judged.get(self.name)
        return plots.as_plot(plots.robustness(found, category)) if isinstance(found, Robustness) else gr.skip()


def robustness_words(found: Robustness) -> str:
    """The largest loss of each side under each kind, in words."""
    if not found.done:
        return "<p>No question has a right answer, so there is no accuracy to measure.</p>"
    parts = []
    for side in SIDES:
        losses = []
        for kind in ("noise", "perspective"):
            levels = [level for level in found.levels if (level.side, level.rung.kind) == (side, kind)]
            known = [(level.points, level.rung.label) for level in levels if level.points is not None]
            if known:
                points, label = min(known)
                losses.append(f"{points_words(points)} points at the worst {kind} level ({label})")
        parts.append(f"{SIDE_NAMES[side]}: {' and '.join(losses)}")
    left_out = f" {plural(found.unlabelled, 'question')} without a right answer left out." if found.unlabelled else ""
    return f'<p data-questions="{found.done}">{". ".join(parts)}. {plural(found.done, "question")}.{left_out}</p>'
