"""The preset on the page: suggested with its reason, applied by one click, never by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.controls import summary
from app.panels.heatmap import attention_html, count_html
from app.panels.presets import PresetLine, suggestion_html
from app.panels.settings import SettingsPanel
from app.session import Session
from app.workbench import Workbench
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.presets import Facts, preset
from engines.reports import Adaptation, AttentionReport, PairsKept, Reading
from tests.app import fake

PHOTO = Facts("image", 1200, 800, 1, None, 0.1)


@pytest.fixture
def page() -> Workbench:
    workbench = Workbench(fake.FakeEngine(), MediaLimits())
    with gr.Blocks():
        workbench.draw()
    return workbench


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> tuple[SettingsPanel, PresetLine, dict[str, Any]]:
    """The panel in a page of its own, and its two handlers by name."""
    with gr.Blocks() as blocks:
        panel = SettingsPanel(fake.capabilities())
        session, button = gr.State(Session()), gr.Button()
        panel.connect_presets(session, button.click(lambda: None))
    by_target = {target: function.fn for function in blocks.fns.values() for target in function.targets}
    handlers = {
        "apply": by_target[panel.preset.apply._id, "click"],
        "other": by_target[panel.preset.other._id, "input"],
    }
    return panel, panel.preset, handlers


def start_values(panel: SettingsPanel) -> list[Any]:
    return list(panel._start)


def test_the_upload_suggests_and_applies_nothing(page: Workbench, media_files: dict[str, Path]) -> None:
    session = Session()
    frames = ("frames per second", 2.0, 8, 16)
    page.ask.show_preview(session, [str(media_files["clip"]), str(media_files["wide"])], *frames)
    assert [facts.kind for facts in session.facts] == ["video", "image"]
    text, button = page.settings.preset.update(session)
    assert 'data-scene="video"' in text
    assert "Suggested: <b>Video question answering</b>, keep ratio 80 %. 16 frames at 8 frames a second" in text
    assert button["visible"] is True
    page.ask.show_preview(session, None, *frames)
    text, button = page.settings.preset.update(session)
    assert "Add an image or a video" in text
    assert button["visible"] is False


def test_a_file_that_cannot_be_read_suggests_nothing(page: Workbench, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_text("no picture")
    session = Session(facts=(PHOTO,))
    page.ask.show_preview(session, [str(bad)], "frames per second", 2.0, 8, 16)
    assert session.suggestion is None


def test_one_click_puts_it_into_the_switches(take: Any) -> None:
    panel, _, handlers = take
    values = start_values(panel)
    names = [control.name for control in panel.controls]
    values[names.index("experts.top_k")] = 2
    shown = handlers["apply"](Session(facts=(PHOTO,)), *values)
    config = panel.config(shown[: len(panel.controls)])
    expected = preset("photo", [PHOTO])
    assert config.pruning == expected.apply(CompressionConfig.full()).pruning
    assert config.experts.top_k == 2
    assert config.cache.encoder  # as the page starts: not the preset's business
    assert all(update == gr.skip() for update in handlers["apply"](Session(), *values))


def test_an_empty_field_does_not_stand_in_the_way(take: Any) -> None:
    panel, _, handlers = take
    values = start_values(panel)
    values[[control.name for control in panel.controls].index("pruning.keep_ratio")] = None
    shown = handlers["apply"](Session(facts=(PHOTO,)), *values)
    assert panel.config(shown[: len(panel.controls)]).pruning.keep_ratio == 0.5


def test_another_preset_can_be_taken_and_says_so(take: Any) -> None:
    panel, _, handlers = take
    choice, text, *shown = handlers["other"](Session(facts=(PHOTO,)), "document", *start_values(panel))
    assert choice == ""
    assert "Applied: <b>Scanned document</b>" in text
    assert panel.config(shown[: len(panel.controls)]).pruning.method == "max_min"
    assert all(update == gr.skip() for update in handlers["other"](Session(), "", *start_values(panel))[1:])


def test_reasons_are_escaped() -> None:
    assert "<b>General photo</b>" in suggestion_html(preset("photo"))
    assert suggestion_html(None).startswith('<p class="hint">')


# ---- what the page says of the mask and of the adapted ratio ----


def test_switches_are_named_in_the_summary(take: Any) -> None:
    panel, _, _ = take
    config = CompressionConfig.full().with_settings(
        ["attention.cross_modal=true", "attention.visual_top_k=0", "pruning.adaptive=true"]
    )
    assert summary(config, panel.controls) == [
        "keep ratio follows the device",
        "cross-modal mask: 12 visual keys per text token, all text keys per visual token",
    ]
    values = panel._show(config)
    assert panel.config(values[: len(panel.controls)]) == config


def test_the_heatmap_says_what_the_mask_kept() -> None:
    result = fake.result()
    assert attention_html(result) == ""
    assert attention_html(None) == ""
    object.__setattr__(result, "attention_report", AttentionReport(12, 24, PairsKept(1, 4), PairsKept(0, 0)))
    html = attention_html(result)
    assert "25 % of the pairs of a text token with a visual one" in html
    assert "of a visual token" not in html


def test_the_heatmap_says_how_the_ratio_followed_the_device() -> None:
    reading = Reading(0.9, "memory in use", 0.5, None, "CPU utilisation")
    report = fake.result().prune_report
    object.__setattr__(report, "adaptation", Adaptation(reading, 1.0, 0.36, 0.36, True, "Memory is <b>short</b>."))
    assert "Memory is &lt;b&gt;short&lt;/b&gt;." in count_html(report)
