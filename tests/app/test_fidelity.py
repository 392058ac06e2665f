"""The panel of the reduced vision tower: what it says, and that figure and table agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app import controls, plots
from app.panels.fidelity import EMPTY, NO_VISUAL, WHOLE, FidelityPanel, fidelity_html
from app.session import Picture, Session
from engines.config import CompressionConfig
from engines.reports import FrameFidelity, VisionReport
from tests.app import fake
from tests.app.test_controls import CONTROLS, METHODS

PICTURE = Picture("data:image/jpeg;base64,", 96, 64)


def frame(name: str = "photo.png", rows: int = 2, columns: int = 3) -> FrameFidelity:
    cells = rows * columns
    return FrameFidelity(
        item=0, name=name, kind="image", frames=(0,), timestamp_s=None, rows=rows, columns=columns,
        similarity=tuple(1 - index / 10 for index in range(cells)),
        overlap=tuple(index / cells for index in range(cells)),
        nearest=min(5, cells - 1),
    )  # fmt: skip


def report(**changed: object) -> VisionReport:
    return replace(VisionReport("merging", 0.5, 2, 4, 6, 3, (frame(),)), **changed)  # type: ignore[arg-type]


def session_with(of_run: VisionReport | None) -> Session:
    session = Session()
    session.sides["compressed"].result = replace(fake.result(), vision_report=of_run)
    session.pictures = {(0, 0): PICTURE}
    return session


@pytest.fixture(scope="module")
def panel() -> FidelityPanel:
    import gradio as gr

    with gr.Blocks():
        return FidelityPanel(gr.State(Session()))


def test_what_was_not_measured_is_not_shown(panel: FidelityPanel) -> None:
    said = [panel.update(session)[0] for session in (Session(), session_with(None), session_with(report(method=None)))]
    assert said == [EMPTY, NO_VISUAL, WHOLE]
    text, body, *_ = panel.update(session_with(report(fidelity=None)))
    assert 'data-computed="3" data-total="6"' in text
    assert "was not measured" in text
    assert body["visible"] is False


def test_figure_table_and_text_show_the_same_values(panel: FidelityPanel) -> None:
    text, body, *_ = panel.update(session_with(report()))
    assert body["visible"] is True
    assert "0.750" in text
    assert "0.500" in text
    figure = plots.fidelity(frame(), PICTURE.url, (96, 64), "similarity")
    assert [list(row) for row in figure.data[0].z] == [[1.0, 0.9, 0.8], [0.7, 0.6, 0.5]]
    assert figure.layout.height
    assert "<td>0.70</td>" in plots.fidelity_table(frame(), "similarity")
    assert "<td>0.83</td>" in plots.fidelity_table(frame(), "overlap")


def test_names_are_escaped_and_a_single_token_has_no_figure() -> None:
    html = fidelity_html(report(fidelity=(frame("<b>.png", 1, 1),)))
    assert "<b>.png" not in html
    assert html.count("<td>—</td>") == 3
    assert "<b>.png" not in plots.fidelity_table(frame("<b>.png"), "overlap")


def test_a_place_beyond_the_pictures_shows_the_last(panel: FidelityPanel) -> None:
    figure, table = panel.draw(session_with(report(fidelity=(frame(), frame("second.png")))), 9, "overlap")
    assert figure.type == "plotly"
    assert "second.png" in table


def test_the_switches_say_what_they_do_and_why_they_are_missing() -> None:
    config = CompressionConfig().with_settings(["vision.keep_ratio=0.5", "vision.after_layer=2"])
    assert controls.summary(config, CONTROLS) == ["vision tower on 50 % of the units after layer 2: Token merging"]
    made = controls.make_controls(fake.capabilities(tower_layers=0), METHODS)
    assert {control.why_not for control in made if control.path[0] == "vision"} == {
        "This model's vision tower cannot be reduced."
    }
    layer = next(control for control in CONTROLS if control.path == controls.AFTER_LAYER)
    assert (layer.low, layer.high) == (1, 3)
    only = next(
        control
        for control in controls.make_controls(fake.capabilities(tower_layers=1), METHODS)
        if control.path == controls.AFTER_LAYER
    )
    assert "there only" in only.why_not
