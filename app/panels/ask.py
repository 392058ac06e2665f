"""Media and question: the upload, what the model will see of it, the question, and the examples."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.controls import Control, described
from app.panels.examples import ExamplesPanel
from app.pictures import THUMBNAIL_PX, picture_of
from app.session import Session
from app.words import escape, plural, seconds
from engines.config import SamplingConfig
from engines.media import SUFFIXES, FrameSampling, Media, MediaError, MediaLimits, load_media
from engines.presets import Facts

log = logging.getLogger(__name__)

STRIP_FRAMES = 4
MOST_REPEATS = 11
BY_RATE, BY_COUNT = "frames per second", "number of frames"
NO_MEDIA = '<p class="empty">Nothing added yet. You can also ask without an image or video.</p>'
UNKNOWN = '<p class="hint">Filmed or photographed: the demo model knows only drawn scenes; its answer is a guess.</p>'


class AskPanel:
    """Holds what is asked (`inputs`, in a fixed order) and the buttons `run`, `stop` and `leave`."""

    def __init__(self, limits: MediaLimits, samples: Path, is_demo: bool, session: gr.State) -> None:
        self.limits = limits
        with gr.Column(elem_id="ask", elem_classes="card"):
            with gr.Row(elem_id="media-row"):
                self.files = gr.File(
                    label="Images and videos",
                    file_count="multiple",
                    file_types=list(SUFFIXES),
                    height=132,
                    elem_id="files",
                    min_width=240,
                    scale=2,
                )
                with gr.Column(scale=3, min_width=240):
                    self.preview = gr.HTML(NO_MEDIA, elem_id="preview")
            with gr.Row(elem_id="question-row"):
                self.question = gr.Textbox(
                    label="Question",
                    placeholder="What should the model look for? Enter runs, Esc stops.",
                    lines=1,
                    max_lines=4,
                    max_length=20_000,
                    scale=6,
                    elem_id="question",
                    min_width=220,
                )
                self.run = gr.Button("Run", variant="primary", elem_id="run", scale=1, min_width=90)
                self.stop = gr.Button("Stop", elem_id="stop", interactive=False, scale=1, min_width=90)
                self.leave = gr.Button("Leave queue", elem_id="leave", visible=False, scale=1, min_width=90)
            self.examples = ExamplesPanel(samples, is_demo, session, self.files, self.question)
            self._draw_sampling()
        self.previewed = self.files.change(
            self.show_preview,
            inputs=[session, self.files, *self.frames],
            outputs=self.preview,
            concurrency_limit=2,
            show_progress="minimal",
            api_visibility="private",
        )

    @property
    def inputs(self) -> list[gr.components.Component]:
        return [self.files, self.question, self.warm_up, self.repeats, *self.frames, *self.sampling]

    def _draw_sampling(self) -> None:
        with gr.Accordion("Sampling", open=False, elem_id="sampling", elem_classes="inner"):
            with gr.Row():
                self.sampling_controls = tuple(
                    described(("sampling", item.name), item.default, item.metadata, str(item.type))
                    for item in dataclasses.fields(SamplingConfig)
                )
                self.sampling = [_draw_number(control) for control in self.sampling_controls]
            with gr.Row():
                by = gr.Radio(
                    [BY_RATE, BY_COUNT],
                    value=BY_RATE,
                    label="Video frames by",
                    info="Both sides get the same frames.",
                    elem_id="frames-by",
                )
                rate = gr.Number(2.0, label="Frames per second", minimum=0.1, maximum=60, step=0.1, elem_id="fps")
                number = gr.Number(
                    8, label="Number of frames", minimum=1, maximum=64, step=1, precision=0, elem_id="num-frames"
                )
                most = gr.Slider(
                    1, min(64, self.limits.max_frames), value=16, step=1, label="At most", elem_id="max-frames",
                    info="Longer clips are sampled more thinly.",
                )  # fmt: skip
                self.frames = [by, rate, number, most]
            self.warm_up = gr.Checkbox(
                True,
                label="Warm up first",
                info="Runs new shapes once untimed, so that no first-use cost is charged to either side.",
                elem_id="warm-up",
            )
            self.repeats = gr.Slider(
                1,
                MOST_REPEATS,
                value=1,
                step=1,
                label="Repeats",
                info="Pairs of runs, in alternating order; times and ratios are then medians. With a cache on, "
                "later runs find what the first left in it.",
                elem_id="repeats",
            )

    def show_preview(self, session: Session, files: Sequence[str] | None, *frames: Any) -> str:
        """What was decoded from each file, or the sentence that says why it can't be used."""
        session.facts = ()
        if not files:
            return NO_MEDIA
        try:
            sampling = frame_sampling(*frames)
        except ValueError as error:
            return f'<p class="wrong">{escape(str(error))}</p>'
        tiles, facts = "", []
        for file in files:
            tile, media = self._tile(Path(file), sampling)
            tiles += tile
            facts += [Facts.of(media)] if media is not None else []
        session.facts = tuple(facts)
        example = session.example_in(files)
        hint = UNKNOWN if example is not None and example.answer is None else ""
        return f'<div class="strip">{tiles}</div>{hint}'

    def _tile(self, path: Path, sampling: FrameSampling) -> tuple[str, Media | None]:
        """The tile of a file, and what was decoded of it if it could be."""
        try:
            media = load_media(path, limits=self.limits, sampling=sampling)
        except MediaError as error:
            said = f'<figure class="tile bad"><figcaption role="alert">{escape(str(error))}</figcaption></figure>'
            return said, None
        except Exception:
            log.exception("A file could not be shown")
            said = (
                f'<figure class="tile bad"><figcaption>{escape(path.name)} could not be shown; the server log has the'
                " details.</figcaption></figure>"
            )
            return said, None
        return media_tile(media), media


def media_tile(media: Media) -> str:
    """A few of the decoded frames and what is known about the file."""
    step = max(1, -(-media.n_frames // STRIP_FRAMES))
    shown = range(0, media.n_frames, step)
    images = "".join(
        f'<img src="{picture_of(media.frames[index], THUMBNAIL_PX).url}" alt="{_alt(media, index)}">' for index in shown
    )
    facts = [f"{media.width} x {media.height}"]
    if media.kind == "video":
        facts.append(plural(media.n_frames, "frame") + " sampled")
        if media.duration_s is not None:
            facts.append(seconds(media.duration_s))
    notes = "".join(f"<small>{escape(note)}</small>" for note in media.notes)
    return (
        f'<figure class="tile {media.kind}"><div class="frames">{images}</div><figcaption><b>{escape(media.name)}</b>'
        f"<small>{' · '.join(facts)}</small>{notes}</figcaption></figure>"
    )


def _alt(media: Media, index: int) -> str:
    at = f" at {media.timestamps_s[index]:.1f} s" if media.kind == "video" else ""
    return escape(f"{media.name}{at}")


def frame_sampling(by: str, rate: float | None, number: int | None, most: float) -> FrameSampling:
    """The four controls as a FrameSampling. ValueError with a sentence for a field left empty."""
    chosen = rate if by == BY_RATE else number
    if chosen is None:
        raise ValueError(f"The {by} for videos is empty; fill it in under Sampling.")
    if by == BY_RATE:
        return FrameSampling(fps=float(chosen), num_frames=None, max_frames=int(most))
    return FrameSampling(fps=None, num_frames=int(chosen), max_frames=int(most))


def _draw_number(control: Control) -> gr.components.Component:
    common: dict[str, Any] = {
        "label": control.label,
        "info": control.help,
        "value": control.default,
        "elem_id": f"set-{control.path[-1].replace('_', '-')}",
        "min_width": 190,
    }
    # A slider over two billion seeds would be of no use.
    if control.high > 100_000:
        return gr.Number(minimum=control.low, maximum=control.high, step=control.step, precision=0, **common)
    return gr.Slider(control.low, control.high, step=control.step, **common)
