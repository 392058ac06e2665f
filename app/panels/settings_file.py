"""The switches to a file and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.panels.answers import wrong_html
from app.panels.download import Download
from app.words import escape
from engines import settings_file
from engines.config import CompressionConfig

NAME = "settings.json"


class SettingsFileLine:
    """Two buttons, and a line that says what came of a file."""

    def __init__(self) -> None:
        with gr.Row(elem_classes="buttons"):
            self.save = Download("Save settings", "save-settings")
            self.load = gr.UploadButton(
                "Load settings", size="sm", elem_id="load-settings", file_types=[".json"], min_width=110
            )
        self.said = gr.HTML(elem_id="settings-file-text")

    def connect(
        self,
        inputs: Sequence[gr.components.Component],
        outputs: Sequence[gr.components.Component],
        read: Callable[[Sequence[Any]], CompressionConfig],
        show: Callable[[CompressionConfig], list[Any]],
    ) -> None:
        """`read` turns the values of `inputs` into settings, `show` settings into those of `outputs`."""

        def load(file: str | None) -> list[Any]:
            nothing = [gr.skip()] * len(outputs)
            if file is None:
                return ["", *nothing]
            name = Path(file).name
            try:
                values = show(settings_file.read(Path(file), name))
            except ValueError as error:
                return [wrong_html(str(error)), *nothing]
            return [f'<p class="hint" role="status">Loaded {escape(name)}.</p>', *values]

        self.save.connect(lambda *values: (NAME, settings_file.to_text(read(values)).encode()), inputs, self.said)
        self.load.upload(
            load, self.load, [self.said, *outputs], queue=False, show_progress="hidden", api_visibility="private"
        )
