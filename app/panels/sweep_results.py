"""What a sweep found: the front, one of its points to take over, and everything as a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from app import plots
from app.cli.sweep_table import as_json
from app.panels.answers import wrong_html
from app.panels.download import Download, Made
from app.panels.sweep_view import SweepView
from app.panels.sweep_words import SAME_QUESTIONS
from app.plots.sweep import COST_NAMES, QUALITY_NAMES, categories_table, cost_words, quality_words, settings_words
from app.session import Session
from app.words import count, escape, percent, plural
from engines.config import CompressionConfig
from engines.evaluation import Score
from engines.sets import EvalSet
from engines.sweep.find import pick
from engines.sweep.front import COSTS, QUALITIES, pareto_front
from engines.sweep.medians import Median
from engines.sweep.results import PointResult
from engines.sweep.space import Point, config_of

NAME = "sweep"
FULL = "full"
NONE_YET = "There is no sweep yet; start one first."


@dataclass
class Shown:
    """What one visitor looks at. Kept in the session, so that a sweep under way draws it as it is chosen now."""

    view: SweepView
    cost: str = "total"
    quality: str = "accuracy"
    chosen: Point | None = None

    @property
    def front(self) -> tuple[PointResult, ...]:
        return pareto_front(self.view.points, COSTS[self.cost], QUALITIES[self.quality])

    @property
    def point(self) -> PointResult | None:
        """The chosen one, if it was measured."""
        return next((point for point in self.view.points if point.settings == self.chosen), None)


class SweepResults:
    """Draws itself; `outputs` are filled by `update`."""

    def __init__(self, session: gr.State) -> None:
        self.session = session
        with gr.Column(visible=False, elem_id="sweep-results", elem_classes="card") as self.body:
            gr.HTML("<h2>Cost against quality</h2>", elem_classes="card-title")
            with gr.Row():
                self.cost = gr.Dropdown(
                    [(name, key) for key, name in COST_NAMES.items()], value="total", label="Cost",
                    elem_id="sweep-cost",
                )  # fmt: skip
                self.quality = gr.Dropdown(
                    [(name, key) for key, name in QUALITY_NAMES.items()], value="accuracy", label="Quality",
                    elem_id="sweep-quality",
                )  # fmt: skip
            self.plot = gr.Plot(show_label=False, container=False, elem_id="sweep-plot")
            self.points = gr.Radio([], label="Points of the front, cheapest first", elem_id="sweep-front")
            with gr.Row(elem_classes="buttons"):
                self.load = gr.Button(
                    "Load into the switches", size="sm", elem_id="sweep-load", min_width=160, interactive=False
                )
                self.floor = gr.Slider(
                    50, 100, value=97, step=0.5, label="Quality floor, % of the full model's", elem_id="sweep-floor",
                    min_width=220,
                )  # fmt: skip
                self.find = gr.Button("Find for me", size="sm", elem_id="sweep-pick", min_width=120)
            self.said = gr.HTML(elem_id="sweep-said")
            self.detail = gr.HTML(elem_id="sweep-detail")
            with gr.Accordion("As a table", open=False, elem_classes="inner"):
                self.table = gr.HTML(elem_id="sweep-table")
            with gr.Row(elem_classes="buttons"):
                self.csv = Download("CSV", "sweep-csv", scale=0)
                self.json = Download("JSON", "sweep-json", scale=0)
        self._drawn: list[gr.blocks.Block] = [self.plot, self.points, self.load, self.detail, self.table]
        self.outputs: list[gr.blocks.Block] = [self.body, self.cost, self.quality, *self._drawn]

    def connect(
        self, tabs: gr.Tabs, switches: Sequence[gr.blocks.Block], load: Callable[[CompressionConfig], list[Any]]
    ) -> None:
        """`load` gives the values of `switches` for a configuration; ValueError where they cannot show it."""
        self._load, self._switches = load, len(switches)
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        looks = [self.session, self.cost, self.quality]
        for choice in (self.cost, self.quality):
            choice.input(self.look, looks, self._drawn, **quiet)
        self.points.input(self.choose, [self.session, self.points], self._drawn, **quiet)
        self.find.click(self.pick, [self.session, self.floor], [self.said, *self._drawn], **quiet)
        self.load.click(self.take_over, self.session, [self.said, tabs, *switches], **quiet)
        self.csv.connect(self.to_csv, [self.session], self.said)
        self.json.connect(self.to_json, [self.session], self.said)

    def begin(self, session: Session, view: SweepView) -> None:
        """Look at this sweep from now on; one that goes on is looked at as before."""
        shown = self.shown(session)
        if shown is not None and shown.view.plan == view.plan:
            shown.view = replace(view, points=view.points or shown.view.points, done=view.done or shown.view.done)
        else:
            session.judged[NAME] = Shown(view)

    @staticmethod
    def shown(session: Session) -> Shown | None:
        found = session.judged.get(NAME)
        return found if isinstance(found, Shown) else None

    def update(self, session: Session) -> list[Any]:
        """All of the card; hidden before the first figures."""
        shown = self.shown(session)
        if shown is None or not shown.view.points:
            return [gr.update(visible=False), *[gr.skip()] * (len(self.outputs) - 1)]
        if shown.quality == "accuracy" and not shown.view.labelled:
            shown.quality = "agreement"
        return [gr.update(visible=True), shown.cost, shown.quality, *self._draw(shown)]

    def look(self, session: Session, cost: str, quality: str) -> list[Any]:
        shown = self.shown(session)
        if shown is None or cost not in COSTS or quality not in QUALITIES:
            return [gr.skip()] * len(self._drawn)
        shown.cost, shown.quality = cost, quality
        return self._draw(shown)

    def choose(self, session: Session, key: str | None) -> list[Any]:
        shown = self.shown(session)
        if shown is None:
            return [gr.skip()] * len(self._drawn)
        known = {_key(point.settings): point.settings for point in shown.view.points}
        shown.chosen = known.get(key or "", shown.chosen)
        return self._draw(shown)

    def pick(self, session: Session, floor: float | None) -> list[Any]:
        """Choose the cheapest of the measured points that keeps the floor."""
        nothing = [gr.skip()] * len(self._drawn)
        shown = self.shown(session)
        if shown is None:
            return [wrong_html(NONE_YET), *nothing]
        if shown.quality == "kl":
            return [wrong_html("A divergence is no share of the full model's; choose another quality."), *nothing]
        try:
            found = pick(shown.view.points, COSTS[shown.cost], QUALITIES[shown.quality], (floor or 0) / 100)
        except ValueError as error:
            return [wrong_html(str(error)), *nothing]
        if found is None:
            return [wrong_html(f"No measured point keeps {floor:g} % of the full model's quality."), *nothing]
        shown.chosen = found.settings
        words = (
            f"Cheapest of {plural(len(shown.view.points), 'measured point')} that keep {floor:g} % of the full model's"
            f" {QUALITY_NAMES[shown.quality].lower()}: {settings_words(found.settings)}. {SAME_QUESTIONS}"
        )
        return [_said(words), *self._draw(shown)]

    def take_over(self, session: Session) -> list[Any]:
        """Put the chosen point into the switches of the Compare tab and go there."""
        nothing = [gr.skip()] * (1 + self._switches)
        shown = self.shown(session)
        if shown is None or shown.chosen is None:
            return [wrong_html("Choose a point first."), *nothing]
        try:
            values = self._load(config_of(shown.chosen))
        except ValueError as error:
            return [wrong_html(str(error)), *nothing]
        return [_said("Loaded into the switches of the Compare tab."), gr.update(selected="compare"), *values]

    def to_csv(self, session: Session) -> Made:
        shown = self._needed(session)
        front = {point.settings for point in shown.front}
        rows = [_row(point, point.settings in front) for point in shown.view.points]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return "sweep.csv", text.getvalue().encode()

    def to_json(self, session: Session) -> Made:
        """As `launch.py sweep --json` prints it."""
        shown = self._needed(session)
        view = shown.view
        found = EvalSet(
            view.set_name, (), view.plan.items, view.problems, view.labelled, view.plan.set_fingerprint, view.note
        )
        values = as_json(view.plan, found, view.points, shown.cost, shown.quality, None)
        return "sweep.json", json.dumps(values, indent=2, ensure_ascii=False).encode()

    def _needed(self, session: Session) -> Shown:
        shown = self.shown(session)
        if shown is None or not shown.view.points:
            raise ValueError(NONE_YET)
        return shown

    def _draw(self, shown: Shown) -> list[Any]:
        front = shown.front
        choices = [(_line(point, shown), _key(point.settings)) for point in front]
        chosen = shown.point
        if chosen is not None and chosen not in front:
            # Found for the visitor, or on the front of other figures.
            choices.append((_line(chosen, shown), _key(chosen.settings)))
        value = None if chosen is None else _key(chosen.settings)
        figure = plots.sweep_front(shown.view.points, shown.cost, shown.quality, shown.chosen)
        return [
            plots.as_plot(figure),
            gr.update(choices=choices, value=value),
            gr.update(interactive=chosen is not None),
            _detail(shown),
            plots.sweep_table(shown.view.points, shown.cost, shown.quality),
        ]


def _key(settings: Point) -> str:
    return " ".join(settings) or FULL


def _line(point: PointResult, shown: Shown) -> str:
    return f"{settings_words(point.settings)}: {quality_words(point, shown.quality)}, {cost_words(point, shown.cost)}"


def _detail(shown: Shown) -> str:
    point, cost, quality = shown.point, COSTS[shown.cost], QUALITIES[shown.quality]
    unplotted = sum(cost(one) is None or quality(one) is None for one in shown.view.points)
    lines = ""
    if unplotted:
        lines = f'<p class="hint">{plural(unplotted, "point")} without one of these figures: it was not measured.</p>'
    if point is None:
        return lines + '<p class="hint">Choose a point to see it by category and to load it.</p>'
    failed = f" {plural(point.failed, 'question')} failed: {' '.join(point.errors)}" if point.failed else ""
    warm = " Timed with its caches filled." if point.warm else ""
    kept = "" if point.keep_ratio is None else f" {percent(point.keep_ratio)} of the visual tokens kept."
    return (
        f"{lines}<p><b>{escape(settings_words(point.settings))}</b>: {count(point.asked)} questions.{kept}{warm}"
        f"{escape(failed)}</p>{categories_table(point)}"
    )


def _row(point: PointResult, on_front: bool) -> dict[str, Any]:
    """Flat, empty where nothing was measured."""
    values: dict[str, Any] = {"settings": settings_words(point.settings), "front": on_front}
    for name, score in (("accuracy", point.score), ("agreement", point.agreement)):
        values |= _bounded(name, score.accuracy if score else None, score)
    values["kl_nats"] = point.kl
    for name in ("ttft_s", "total_s", "ttft_ratio", "total_ratio"):
        median = getattr(point, name)
        values |= _bounded(name, median.value if median else None, median)
    for name in ("weight_bytes", "kv_bytes", "peak_bytes", "keep_ratio", "asked", "failed", "warm"):
        values[name] = getattr(point, name)
    return values


def _bounded(name: str, value: float | None, of: Score | Median | None) -> dict[str, float | None]:
    low, high = (None, None) if of is None else (of.low, of.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _said(words: str) -> str:
    return f'<p class="hint" role="status">{escape(words)}</p>'
