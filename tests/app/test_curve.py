"""Measuring the curve from the page: its line, its end, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import plots
from app.panels.curve import CurvePanel
from app.session import Session
from app.turnstile import PAGE, Turnstile
from app.workbench import SAMPLES, Workbench
from engines.config import CompressionConfig
from engines.experts.curve import Curve, CurvePoint
from engines.media import MediaLimits
from engines.results import EngineError, RunRequest
from tests.app.fake import FakeEngine

RANDOM = CompressionConfig.full().with_settings(["experts.method=random"])
POINTS = (
    CurvePoint({"skip": 0.5}, 0.5, (100.0, 110.0, 90.0), (150.0, 220.0, 180.0)),
    CurvePoint({"skip": 0.25}, 0.25, (100.0, 100.0), (120.0, 120.0)),
)


def panel_with(engine: FakeEngine, samples: Path = SAMPLES) -> CurvePanel:
    with gr.Blocks():
        panel = CurvePanel(gr.State(Session()), True, samples)
        panel.connect(engine, Turnstile(), MediaLimits())
    return panel


def visitor(name: str = "a") -> Any:
    return SimpleNamespace(session_hash=name)


def session_that_asked() -> Session:
    session = Session()
    session.asked = (RunRequest("What?", (Path("photo.png"),)), RANDOM)
    return session


def test_it_measures_the_last_request_and_frees_its_buttons() -> None:
    engine = FakeEngine()
    panel = panel_with(engine)
    updates = list(panel.measure(session_that_asked(), visitor()))
    assert {request.question for request, _ in engine.seen} == {"What?"}
    assert len(engine.seen) == 2 * 3 * 4
    assert "Waiting" in updates[0][2]
    assert "Measured 1 of 12" in updates[1][2]
    start, stop, text, plot, fold, table = updates[-1]
    assert (start["interactive"], stop["interactive"]) == (True, False)
    assert "Stopped" not in text
    assert plot["visible"]
    assert fold["visible"]
    assert "nothing skipped" in table
    assert panel.tickets.pending() == 0
    assert panel.turnstile.waiting == 0


def test_without_a_request_it_takes_a_sample_and_without_samples_a_sentence(tmp_path: Path) -> None:
    engine = FakeEngine()
    list(panel_with(engine).measure(Session(), visitor()))
    assert {request.media[0].parent for request, _ in engine.seen} == {SAMPLES}
    (update,) = panel_with(engine, tmp_path).measure(Session(), visitor())
    assert "no sample" in update[2]


def test_stop_ends_it_with_what_it_has() -> None:
    panel = panel_with(FakeEngine())
    last: list[Any] = []
    for update in panel.measure(session_that_asked(), visitor()):
        last = update
        panel.end(visitor("someone else"))
        if "Measured 2" in update[2]:
            panel.end(visitor())
    assert "Stopped after 2 of 12" in last[2]
    assert last[0]["interactive"] is True
    assert last[3]["visible"] is True


def test_a_failure_becomes_a_sentence() -> None:
    panel = panel_with(FakeEngine(fail_full=EngineError("The <prompt> is too long."), fail=EngineError("No.")))
    *_, last = panel.measure(session_that_asked(), visitor())
    assert "The &lt;prompt&gt; is too long." in last[2]
    assert last[0]["interactive"] is True
    assert panel.turnstile.waiting == 0


def test_others_get_their_turn_between_two_pairs() -> None:
    """Two visitors never run at once, and a run need not wait for the whole curve."""
    engine = FakeEngine()
    panel = panel_with(engine)
    updates = panel.measure(session_that_asked(), visitor())
    next(updates)
    for pairs in range(1, 4):
        next(updates)
        assert len(engine.seen) == 2 * pairs
        with panel.turnstile.turn(PAGE) as mine:
            assert mine
            assert engine.open_runs == 0


def test_closing_the_page_ends_the_measurement() -> None:
    workbench = Workbench(FakeEngine(), MediaLimits())
    with gr.Blocks():
        workbench.draw()
    curve = workbench.experts.curve
    updates = curve.measure(session_that_asked(), visitor())
    next(updates)
    assert workbench.waiting() == 1
    workbench.closed(visitor())
    assert "Stopped" in list(updates)[-1][2]
    assert workbench.waiting() == 0


@pytest.mark.parametrize("points", [POINTS, POINTS[:1]])
def test_figure_and_table_hold_the_same_medians(points: tuple[CurvePoint, ...]) -> None:
    curve = Curve("random", 1031, points, 5, 12)
    trace = plots.speed_curve(curve).data[0]
    assert list(trace.x) == [0.0, *sorted(point.skipped for point in points)]
    assert trace.y[-1] == 180.0
    assert (trace.error_y.array[-1], trace.error_y.arrayminus[-1]) == (40.0, 30.0)
    table = plots.speed_table(curve)
    assert "2.00x (1.50 to 2.00)" in table
    assert table.count("<tr data-share") == len(points) + 1
    assert "skip 0.5" in table
