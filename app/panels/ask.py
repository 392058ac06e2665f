"""Media and question: the upload, what the model will see of it, the question, and the examples."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app.controls import Control, described
from app.pictures import THUMBNAIL_PX, picture_of
from app.words import escape, plural, seconds
from engines.config import SamplingConfig
from engines.media import SUFFIXES, FrameSampling, Media, MediaError, MediaLimits, load_media

log = logging.getLogger(__name__)

STRIP_FRAMES = 4
MOST_REPEATS = 11
BY_RATE, BY_COUNT = "frames per second", "number of frames"
NO_MEDIA = '<p class="empty">Nothing added yet. You can also ask without an image or video.</p>'


@dataclass(frozen=True)
class Example:
    """A sample file with a question that its scene answers."""

    path: Path
    question: str


def read_examples(folder: Path) -> list[Example]:
    """The samples listed in samples.json; none when the list is not there."""
    index = folder / "samples.json"
    if not index.is_file():
        return []
    entries = json.loads(index.read_text(encoding="utf-8"))
    return [
        Example(folder / entry["file"], entry["question"]) for entry in entries if (folder / entry["file"]).is_file()
    ]


class AskPanel:
    """Holds what is asked (`inputs`, in a fixed order) and the buttons `run`, `stop` and `leave`."""

    def __init__(self, limits: MediaLimits, samples: Path) -> None:
        self.limits = limits
        self._samples = tempfile.TemporaryDirectory(prefix="workbench-")
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
            self._draw_examples(read_examples(samples))
            self._draw_sampling()
        self.files.change(
            self.show_preview,
            inputs=[self.files, *self.frames],
            outputs=self.preview,
            concurrency_limit=2,
            show_progress="minimal",
            api_visibility="private",
        )

    @property
    def inputs(self) -> list[gr.components.Component]:
        return [self.files, self.question, self.warm_up, self.repeats, *self.frames, *self.sampling]

    def _copy(self, path: Path) -> str:
        """The sample under the temporary folder, since Gradio serves nothing from elsewhere; gone with the process."""
        return str(shutil.copy(path, self._samples.name))

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
                info="Pairs of runs, in alternating order; times and ratios are then medians. With the encoder cache "
                "on, later runs find the media encoded.",
                elem_id="repeats",
            )

    def _draw_examples(self, examples: Sequence[Example]) -> None:
        if not examples:
            return
        with gr.Row(elem_id="examples"):
            gr.HTML("<h3>Examples</h3>" + _example_style(examples), elem_classes="group-title", min_width=0)
            for index, example in enumerate(examples):
                button = gr.Button(example.question, size="sm", elem_id=f"example-{index}", elem_classes="example")
                path = self._copy(example.path)
                button.click(
                    lambda path=path, question=example.question: ([path], question),
                    outputs=[self.files, self.question],
                    queue=False,
                    show_progress="hidden",
                    api_visibility="private",
                )

    def show_preview(self, files: Sequence[str] | None, *frames: Any) -> str:
        """What was decoded from each file, or the sentence that says why it can't be used."""
        if not files:
            return NO_MEDIA
        try:
            sampling = frame_sampling(*frames)
        except ValueError as error:
            return f'<p class="wrong">{escape(str(error))}</p>'
        return '<div class="strip">' + "".join(self._tile(Path(file), sampling) for file in files) + "</div>"

    def _tile(self, path: Path, sampling: FrameSampling) -> str:
        try:
            media = load_media(path, limits=self.limits, sampling=sampling)
        except MediaError as error:
            return f'<figure class="tile bad"><figcaption role="alert">{escape(str(error))}</figcaption></figure>'
        except Exception:
            log.exception("A file could not be shown")
            return (
                f'<figure class="tile bad"><figcaption>{escape(path.name)} could not be shown; the server log has the'
                " details.</figcaption></figure>"
            )
        return media_tile(media)


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


def _example_style(examples: Sequence[Example]) -> str:
    """A thumbnail for each example's button, as its background: no file is served for it."""
    rules = []
    for index, example in enumerate(examples):
        try:
            media = load_media(example.path, sampling=FrameSampling(fps=None, num_frames=1))
        except MediaError as error:
            log.warning("Sample left without a picture: %s", error)
            continue
        rules.append(f'#example-{index}::before{{background-image:url("{picture_of(media.frames[0], 96).url}")}}')
    return f"<style>{''.join(rules)}</style>"
