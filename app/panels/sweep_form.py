"""What a sweep is to try and to ask: the controls, and the plan that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app.controls import Control
from app.panels.sweep_sets import FILES, SETS, UPLOAD
from app.panels.sweep_space import axes_of, axis_label, default_values, idle_groups, make_space
from app.words import count, escape, plural
from engines.config import CompressionConfig
from engines.demo import benchmark
from engines.results import Capabilities
from engines.sets import EvalSet
from engines.sweep.plan import SweepPlan, make_plan
from engines.sweep.space import Checker, Point, Space, check_points, grid, sample

SLOTS, OPEN_SLOTS = 4, 2
FIRST = ("pruning.keep_ratio", "experts.top_k")
MOST_POINTS, MOST_TIMED, MOST_REPEATS = 200, 50, 20
HINT = (
    '<p class="hint">Every combination of the values is asked every question, beside the full model; where there are'
    " more of them than points, some are drawn at random. Results are kept run by run: a sweep that was stopped goes on"
    " where it ended, after a reload of the page too. Others who use this server get their turns in between.</p>"
)
OWN_HINT = (
    '<p class="hint">A row names media, question, and optionally answer and category; media are named by their file'
    " name alone. Media without such a file are each asked to be described. Rows that cannot be asked are listed, the"
    " rest is run.</p>"
)
SPACED = "Write a number from {low} to {high} for {name}."


@dataclass(frozen=True)
class Wanted:
    """What the controls say. `axes`: control and the values as they were written."""

    source: str
    every: float | None
    axes: tuple[tuple[Control, str | None], ...]
    most_points: float | None
    base: CompressionConfig
    options: dict[str, Any] = field(default_factory=dict)
    """timed_items, repeats and measure_kl of the plan."""

    @property
    def space(self) -> Space:
        return make_space(self.axes, self.base)

    def points(self) -> tuple[Point, ...]:
        """All combinations, or as many of them as were asked for, drawn at random and always the same."""
        space, most = self.space, _whole("the number of points", self.most_points, 1, MOST_POINTS)
        return grid(space) if space.size <= most else sample(space, most, seed=0)

    def plan(self, engine: Checker, capabilities: Capabilities, found: EvalSet, points: Sequence[Point]) -> SweepPlan:
        check_points(engine, points)
        every = 1 if self.source == UPLOAD else int(self.every or 1)
        return make_plan(points, found, capabilities, self.source, every=every, **self.options)


class SweepForm:
    """Draws the controls; `inputs` are read by `read`, in their order."""

    def __init__(self, controls: Sequence[Control]) -> None:
        self.axes = axes_of(controls)
        labels = [(axis_label(control, controls), name) for name, control in self.axes.items()]
        with gr.Row():
            self.source = gr.Dropdown(
                list(SETS.items()), value="all", label="Questions", elem_id="sweep-set", min_width=260
            )
            self.every = gr.Number(30, label="Every Nth question", precision=0, minimum=1, elem_id="sweep-every")
            self.most = gr.Number(
                60, label="Points at most", precision=0, minimum=1, maximum=MOST_POINTS, elem_id="sweep-points"
            )
        with gr.Column(visible=False) as self.own:
            self.files = gr.File(label="Set and media", file_count="multiple", elem_id="sweep-files", height=150)
            gr.HTML(OWN_HINT)
        gr.HTML("<h3>Settings to try</h3>", elem_classes="group-title")
        self.names: list[gr.Dropdown] = []
        self.values: list[gr.Textbox] = []
        self._draw_slots(labels, 0, OPEN_SLOTS)
        with gr.Accordion("Two more settings", open=False, elem_classes="inner"):
            self._draw_slots(labels, OPEN_SLOTS, SLOTS)
        self.keep = gr.Checkbox(
            False, label="Everything else as the switches on the Compare tab", elem_id="sweep-keep",
            info="Otherwise everything else is as in the full model. Caches are off in either case.",
        )  # fmt: skip
        with gr.Accordion("Timing and divergence", open=False, elem_classes="inner"):
            with gr.Row():
                self.timed = gr.Slider(
                    0, MOST_TIMED, value=10, step=1, label="Timed questions", elem_id="sweep-timed",
                    info="Latency is measured on so many, spread evenly; the others are asked for quality alone.",
                )  # fmt: skip
                self.repeats = gr.Slider(
                    1, MOST_REPEATS, value=3, step=1, label="Timed runs of each", elem_id="sweep-repeats",
                    info="Of a point on a timed question, the points in turn.",
                )  # fmt: skip
            self.kl = gr.Checkbox(
                False, label="Measure divergence", elem_id="sweep-kl",
                info="Along the full model's answers; costs about one more run a question.",
            )  # fmt: skip
        self.size = gr.HTML(elem_id="sweep-size")
        self.inputs: list[gr.components.Component] = [
            self.source, self.every, self.most, self.files, self.keep, self.timed, self.repeats, self.kl,
            *self.names, *self.values,
        ]  # fmt: skip

    def _draw_slots(self, labels: list[tuple[str, str]], first: int, end: int) -> None:
        for slot in range(first, end):
            name = FIRST[slot] if slot < len(FIRST) and FIRST[slot] in self.axes else None
            with gr.Row():
                self.names.append(
                    gr.Dropdown(
                        [("none", ""), *labels], value=name or "", label=f"Setting {slot + 1}", min_width=220,
                        elem_id=f"sweep-axis-{slot + 1}",
                    )
                )  # fmt: skip
                self.values.append(
                    gr.Textbox(
                        default_values(self.axes[name]) if name else "", label="Values, separated by commas",
                        max_length=500, min_width=180, elem_id=f"sweep-values-{slot + 1}",
                    )
                )  # fmt: skip

    def connect(self, settings: Sequence[gr.components.Component], read: Any) -> None:
        """`read` gives what `read` below does, from the values of the form and of the switches."""
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        for name, values in zip(self.names, self.values, strict=True):
            name.input(lambda chosen: default_values(self.axes[chosen]) if chosen else "", name, values, **quiet)
        self.source.change(self._show_source, self.source, [self.own, self.every], **quiet)

        def size(*given: Any) -> str:
            try:
                return self.size_words(read(given))
            except ValueError as error:
                return f'<p class="hint wrong">{escape(str(error))}</p>'

        looked_at = (*self.names, *self.values, self.every, self.most, self.source, self.keep)
        gr.on(
            [one.change for one in looked_at],  # type: ignore[attr-defined]
            size, [*self.inputs, *settings], self.size, trigger_mode="always_last", **quiet,
        )  # fmt: skip

    @staticmethod
    def _show_source(source: str) -> list[Any]:
        return [gr.update(visible=source == FILES), gr.update(interactive=source != UPLOAD)]

    def read(self, values: Sequence[Any], base: CompressionConfig) -> Wanted:
        """ValueError, with one sentence, for what the controls do not offer. `base`: the switches."""
        source, every, most, _, keep, timed, repeats, kl, *axes = values
        names, texts = axes[:SLOTS], axes[SLOTS:]
        chosen = tuple((self.axes[name], text) for name, text in zip(names, texts, strict=True) if name in self.axes)
        if len({control.path for control, _ in chosen}) < len(chosen):
            raise ValueError("A setting is chosen twice; write all of its values on one line.")
        options = {
            "timed_items": _whole("timed questions", timed, 0, MOST_TIMED),
            "repeats": _whole("timed runs of each", repeats, 1, MOST_REPEATS),
            "measure_kl": bool(kl),
        }
        return Wanted(source, every, chosen, most, base if keep else CompressionConfig.full(), options)

    def size_words(self, wanted: Wanted) -> str:
        """How large the sweep would be, and what in it would change nothing."""
        points = wanted.points()
        size = wanted.space.size
        drawn = f", drawn at random from {count(size)} combinations" if len(points) < size else ""
        asked = ""
        if wanted.source in benchmark.SETS and wanted.every and wanted.every >= 1:
            asked = f", {plural(benchmark.size(wanted.source, int(wanted.every)), 'question')}"
        idle = idle_groups(points)
        warning = f" Nothing switches {', '.join(idle)} on, so varying it changes nothing." if idle else ""
        return f'<p class="hint" data-points="{len(points)}">{plural(len(points), "point")}{drawn}{asked}.{warning}</p>'


def _whole(name: str, value: float | None, low: int, high: int) -> int:
    if value is None or value != int(value) or not low <= value <= high:
        raise ValueError(SPACED.format(low=low, high=high, name=name))
    return int(value)
