"""The preset that fits what was uploaded: shown with its reason, and put into the switches only when asked to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from app.session import Session
from app.words import escape, percent
from engines.config import CompressionConfig
from engines.presets import SCENES, Preset, preset

OTHER = "Another preset"


class PresetLine:
    """Draws the suggestion and two ways to take one: the one suggested, or another by name."""

    def __init__(self) -> None:
        self.text = gr.HTML(suggestion_html(None), elem_id="preset-text")
        with gr.Row(elem_classes="buttons"):
            self.apply = gr.Button("Apply suggestion", size="sm", elem_id="preset-apply", visible=False, min_width=100)
            self.other = gr.Dropdown(
                [(OTHER, ""), *((preset(scene).label, scene) for scene in SCENES)],
                value="",
                show_label=False,
                container=False,
                elem_id="preset-other",
                min_width=150,
            )
        self.outputs: list[gr.components.Component] = [self.text, self.apply]

    def connect(
        self,
        session: gr.State,
        inputs: Sequence[gr.components.Component],
        outputs: Sequence[gr.components.Component],
        read: Callable[[Sequence[Any]], CompressionConfig],
        show: Callable[[CompressionConfig], list[Any]],
    ) -> None:
        """`read` turns the values of `inputs` into settings, `show` settings into those of `outputs`."""
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

        def take(found: Preset | None, values: Sequence[Any]) -> list[Any]:
            if found is None:
                return [gr.skip()] * len(outputs)
            try:
                config = read(values)
            except ValueError:
                # A field is empty or out of range: there is nothing to keep of what cannot be used.
                config = CompressionConfig.full()
            return show(found.apply(config))

        def take_other(session: Session, scene: str, *values: Any) -> list[Any]:
            found = preset(scene, session.facts) if scene in SCENES else None
            return ["", suggestion_html(found, suggested=False) if found else gr.skip(), *take(found, values)]

        self.apply.click(
            lambda session, *values: take(session.suggestion, values),
            inputs=[session, *inputs],
            outputs=list(outputs),
            **quiet,
        )
        self.other.input(
            take_other, inputs=[session, self.other, *inputs], outputs=[self.other, self.text, *outputs], **quiet
        )

    @staticmethod
    def update(session: Session) -> list[Any]:
        """The outputs for what was uploaded."""
        return [suggestion_html(session.suggestion), gr.update(visible=session.suggestion is not None)]


def suggestion_html(found: Preset | None, suggested: bool = True) -> str:
    """What is suggested or was taken, and why."""
    if found is None:
        return '<p class="hint">Add an image or a video, and a preset for it is suggested here.</p>'
    word = "Suggested" if suggested else "Applied"
    return (
        f'<p class="hint" data-scene="{found.scene}">{word}: <b>{escape(found.label)}</b>, keep ratio '
        f"{percent(found.keep_ratio)}. {escape(found.reason)} A rule of thumb; every switch stays yours.</p>"
    )
