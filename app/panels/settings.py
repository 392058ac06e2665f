"""The live switches of the compressed side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from app import controls
from app.controls import KV, METHOD, PRECISION, Control
from app.panels.presets import PresetLine
from app.panels.settings_file import SettingsFileLine
from app.words import escape
from engines.config import PARTS, CompressionConfig
from engines.results import Capabilities

MIXED = "mixed"
GROUPS = {
    "pruning": "Visual tokens",
    "attention": "Attention",
    "vision": "Vision tower",
    "experts": "Experts",
    "precision": "Precision",
    "kv": "KV cache",
    "modality": "Media",
    "cache": "Cache",
}


class SettingsPanel:
    """Draws every control and knows how to read them. `inputs` are the components, in the order of `controls`."""

    def __init__(self, capabilities: Capabilities, start: CompressionConfig | None = None) -> None:
        """`start` is where the switches stand when the page is opened; recommended ones by default."""
        self.methods = controls.methods_of(capabilities)
        self.controls = controls.make_controls(capabilities, self.methods)
        self.inputs: list[gr.components.Component] = []
        self._start = controls.to_values(self.controls, start or controls.recommended())

        with gr.Accordion("Compressed side", open=True, elem_id="settings", elem_classes="card"):
            self.summary = gr.HTML(self.describe(*self._start), elem_id="settings-summary")
            with gr.Row(elem_classes="buttons"):
                recommended = gr.Button("Recommended", size="sm", elem_id="recommended", min_width=100)
                full = gr.Button("Reset to full", size="sm", elem_id="reset", min_width=100)
            self.file = SettingsFileLine()
            self.preset = PresetLine()
            # In the order of the controls, which is the order in which the components' values come back.
            for section in dict.fromkeys(control.path[0] for control in self.controls):
                gr.HTML(f"<h3>{GROUPS[section]}</h3>", elem_classes="group-title")
                if section == PRECISION:
                    self._draw_precision()
                elif section == KV:
                    self._draw_kv()
                else:
                    self._draw_section(section)

        for button, config in ((recommended, controls.recommended()), (full, CompressionConfig.full())):
            button.click(
                lambda config=config: self._show(config),
                outputs=[*self.inputs, self._all],
                queue=False,
                show_progress="hidden",
                api_visibility="private",
            )
        self.file.connect(self.inputs, self.outputs, self.config, self.load)
        gr.on(
            [component.change for component in self.inputs],  # type: ignore[attr-defined]
            self.describe,
            inputs=self.inputs,
            outputs=self.summary,
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )
        for section in self.methods:
            method = self.inputs[self.controls.index(self._method(section))]
            method.change(  # type: ignore[attr-defined]
                lambda name, section=section: self._show_method(section, name),
                inputs=method,
                outputs=[method, *(self.inputs[self.controls.index(option)] for option in self._options(section))],
                queue=False,
                show_progress="hidden",
                api_visibility="private",
            )

    def connect_presets(self, session: gr.State, ready: Dependency) -> None:
        """Show the preset for the visitor's media when `ready`, and let it be taken."""
        ready.then(
            self.preset.update,
            inputs=session,
            outputs=self.preset.outputs,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
        self.preset.connect(session, self.inputs, [*self.inputs, self._all], self.config, self._show)

    @property
    def outputs(self) -> list[gr.components.Component]:
        """What `load` fills."""
        return [*self.inputs, self._all]

    def load(self, config: CompressionConfig) -> list[Any]:
        """All switches as a configuration has them. ValueError with a sentence where they cannot be."""
        lost = controls.lost(self.controls, config)
        if lost:
            raise ValueError(" ".join(lost))
        return self._show(config)

    def config(self, values: Sequence[Any]) -> CompressionConfig:
        """The configuration shown; ValueError with a sentence where it cannot be used."""
        return controls.to_config(self.controls, values)

    def describe(self, *values: Any) -> str:
        """What differs from the full model, in one line."""
        try:
            found = controls.summary(self.config(values), self.controls)
        except ValueError as error:
            return f'<p class="summary wrong">{escape(str(error))}</p>'
        if not found:
            return '<p class="summary">All off: the same as the full model.</p>'
        return (
            '<p class="summary">' + "".join(f'<span class="chip on">{escape(part)}</span>' for part in found) + "</p>"
        )

    def _draw_section(self, section: str) -> None:
        for control, value in zip(self.controls, self._start, strict=True):
            if control.path[0] == section:
                self.inputs.append(self._draw(control, value))

    def _draw_kv(self) -> None:
        """The bits, and the rest folded away."""
        bits, *others = [
            (control, value) for control, value in zip(self.controls, self._start, strict=True) if control.path[0] == KV
        ]
        self.inputs.append(self._draw(*bits))
        with gr.Accordion("Blocks, and which tokens stay", open=False, elem_classes="inner"):
            self.inputs += [self._draw(control, value) for control, value in others]

    def _draw_precision(self) -> None:
        mine = [control for control in self.controls if control.path[0] == PRECISION]
        shown = dict(zip(self.controls, self._start, strict=True))
        parts, others = ([one for one in mine if (one.path[1] in PARTS) is is_part] for is_part in (True, False))
        values = [shown[control] for control in parts]
        shared = [choice for choice in parts[0].choices if all(choice in part.choices for part in parts)]
        missing = {reason for part in parts if (reason := part.help.partition(" is not available: ")[2])}
        self._all = gr.Dropdown(
            [*shared, ("different by part", MIXED)],
            value=_common(values),
            label="All parts",
            info="Number format of the weights. native is as the checkpoint was loaded."
            + "".join(f" Some are not available: {reason}" for reason in sorted(missing)),
            elem_id="set-precision-all",
        )
        with gr.Accordion("Part by part", open=False, elem_classes="inner"):
            drawn = [self._draw(control, value) for control, value in zip(parts, values, strict=True)]
        with gr.Accordion("int8 and int4", open=False, elem_classes="inner"):
            self.inputs += [*drawn, *(self._draw(control, shown[control]) for control in others)]
        # `input` and not `change`: only what the visitor chooses may set the others, or the two would chase each other.
        self._all.input(
            lambda choice: [gr.skip()] * len(drawn) if choice == MIXED else [choice] * len(drawn),
            inputs=self._all,
            outputs=drawn,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
        gr.on(
            [component.input for component in drawn],  # type: ignore[attr-defined]
            lambda *chosen: _common(chosen),
            inputs=drawn,
            outputs=self._all,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )

    def _draw(self, control: Control, value: Any) -> gr.components.Component:
        common: dict[str, Any] = {
            "label": control.label,
            "info": control.why_not or control.help,
            "value": value,
            "interactive": not control.why_not,
            "elem_id": f"set-{control.name.replace('.', '-')}",
        }
        if control.path[1] == METHOD and not control.why_not:
            common["info"] = self._method_help(control, value)
        if control.method:
            common["visible"] = control.method == self._start[self.controls.index(self._method(control.path[0]))]
        if control.kind == "switch":
            return gr.Checkbox(**common)
        if control.kind == "choice":
            return gr.Dropdown(list(control.choices), **common)
        return gr.Slider(control.low, control.high, step=control.step, **common)

    def _method(self, section: str) -> Control:
        return next(control for control in self.controls if control.path == (section, METHOD))

    def _options(self, section: str) -> list[Control]:
        return [control for control in self.controls if control.method and control.path[0] == section]

    def _method_help(self, control: Control, name: str) -> str:
        # The control's own help carries the reasons why other methods are missing.
        reasons = control.help.partition(". ")[2]
        chosen = next(method for method in self.methods[control.path[0]] if method.name == name)
        return " ".join(part for part in (chosen.help, reasons) if part)

    def _show_method(self, section: str, name: str) -> list[Any]:
        updates = [gr.update(visible=option.method == name) for option in self._options(section)]
        return [gr.update(info=self._method_help(self._method(section), name)), *updates]

    def _show(self, config: CompressionConfig) -> list[Any]:
        return [*controls.to_values(self.controls, config), _common(list(config.precision.parts.values()))]


def _common(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else MIXED
