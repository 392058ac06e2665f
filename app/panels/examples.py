"""What a visitor can start from: the samples and, for the demo model, scenes drawn on the spot."""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from app.pictures import picture_of
from app.session import Example, Session
from engines.demo.samples import new_example
from engines.media import FrameSampling, MediaError, load_media

log = logging.getLogger(__name__)

NEW_KINDS = {"image": "New scene", "video": "New clip"}


def read_examples(folder: Path) -> list[Example]:
    """The samples listed in samples.json; none when the list is not there."""
    index = folder / "samples.json"
    if not index.is_file():
        return []
    return [
        Example(folder / entry["file"], entry["question"], entry["answer"])
        for entry in json.loads(index.read_text(encoding="utf-8"))
        if (folder / entry["file"]).is_file()
    ]


class ExamplesPanel:
    """A button for each example. What is taken goes into the upload and the question, its right answer into the
    visitor's session and not to the browser."""

    def __init__(self, samples: Path, is_demo: bool, session: gr.State, files: gr.File, question: gr.Textbox) -> None:
        self.is_demo = is_demo
        self.files = files
        examples = read_examples(samples)
        taken: dict[str, Any] = {
            "inputs": session, "outputs": [files, question], "show_progress": "hidden", "api_visibility": "private",
        }  # fmt: skip
        with gr.Row(elem_id="examples", visible=is_demo or bool(examples)):
            gr.HTML("<h3>Examples</h3>" + _example_style(examples), elem_classes="group-title", min_width=0)
            for kind, label in NEW_KINDS.items() if is_demo else ():
                button = gr.Button(label, size="sm", elem_id=f"new-{kind}", elem_classes=["example", "new"])
                # One at a time: drawing takes the processor from a run that is being measured.
                button.click(partial(self.draw, kind), concurrency_id="draw", concurrency_limit=1, **taken)
            for index, example in enumerate(examples):
                button = gr.Button(example.question, size="sm", elem_id=f"example-{index}", elem_classes="example")
                button.click(partial(self.take, example), queue=False, **taken)

    def take(self, example: Example, session: Session) -> tuple[list[str], str]:
        """Fill the fields. Gradio serves only what lies in its cache, and deletes it there when it is old."""
        path = str(self.files.move_resource_to_block_cache(example.path))
        # Only the demo model is taught to answer in the words of the right answers.
        session.example = replace(example, path=Path(path)) if self.is_demo else None
        return [path], example.question

    def draw(self, kind: str, session: Session) -> tuple[list[str], str]:
        """Take a scene that nobody has seen before."""
        with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
            drawn = new_example(Path(folder), kind, secrets.randbits(32))
            return self.take(Example(drawn.path, drawn.question, drawn.answer), session)


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
