"""The panel of precisions: bytes by format, errors of layers, and the check of fp16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import controls, plots
from app.panels.precision import EMPTY, NO_SAMPLE, PrecisionPanel
from app.plots.precision import precise_percent
from app.session import Session
from app.turnstile import Turnstile
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.reports import LayerError, MemoryReport, PartWeights, PrecisionReport
from engines.results import EngineError, RunRequest
from tests.app import fake
from tests.app.test_controls import CONTROLS

VISITOR: Any = SimpleNamespace(session_hash="visitor")
ERRORS = (
    LayerError("layers.0.q_proj", "language", "int4", 0.1, 0.08, 8, 1000, 10),
    LayerError("layers.0.<experts>", "experts", "int4", 0.12, 0.12, 0, 3000, 0),
)


def report(*layers: LayerError) -> PrecisionReport:
    return PrecisionReport(layers, True if layers else None, 4096, 8192)


def session_with(*layers: LayerError) -> Session:
    session = Session()
    weights = (
        PartWeights("language", "fp32", {"float32": 1000}, "fp32 matmul"),
        PartWeights("experts", "int4", {"uint8": 750, "bfloat16": 250}, "k", {"_weight_int4pack_mm_for_cpu": 12}),
    )
    session.sides["full"].result = fake.result()
    session.sides["compressed"].result = replace(
        fake.result(), memory=MemoryReport(None, "", weights, 0), precision_report=report(*layers)
    )
    return session


@pytest.fixture
def panel(tmp_path: Path) -> PrecisionPanel:
    with gr.Blocks():
        made = PrecisionPanel(gr.State(Session()), tmp_path)
        made.connect(fake.FakeEngine(), Turnstile(), MediaLimits())
        return made


def test_before_a_run_nothing_is_shown(panel: PrecisionPanel) -> None:
    text, body, *_ = panel.update(Session())
    assert text == EMPTY
    assert body["visible"] is False


def test_bytes_are_shown_by_format_with_the_kernels_that_ran(panel: PrecisionPanel) -> None:
    text, body, *_ = panel.update(session_with())
    assert "fp32 50 %, int4, two in a byte 38 %, bf16 12 %" in text
    assert "int4, two in a byte 75 %, bf16 25 %" in text
    assert "_weight_int4pack_mm_for_cpu × 12" in text
    assert "fp32 matmul" in text
    assert body["visible"] is False


def test_errors_stand_in_text_figure_and_table(panel: PrecisionPanel) -> None:
    text, body, plot, table = panel.update(session_with(*ERRORS))
    assert body["visible"] is True
    assert "2 layers are quantised" in text
    assert "0.25 % more parameters" in text
    assert "<experts>" not in table + str(plot.plot)
    figure = plots.layer_errors(report(*ERRORS))
    assert list(figure.data[0].y) == [0.1, 0.12]
    assert list(figure.data[1].y) == [0.08, 0.12]
    assert figure.layout.height > 0
    assert "<td>10 %</td><td>8 %</td>" in table
    assert "<td>12 %</td><td>off</td>" in table


def check(panel: PrecisionPanel, session: Session) -> list[list[Any]]:
    return list(panel.look(session, VISITOR))


def test_the_check_of_fp16_takes_a_turn_and_shows_what_was_counted(panel: PrecisionPanel) -> None:
    session = Session()
    session.asked = (RunRequest("What?"), CompressionConfig.full())
    *before, last = check(panel, session)
    assert [state[0]["interactive"] for state in before] == [False, False]
    assert last[0]["interactive"] is True
    assert "1 layer would overflow in fp16, the first of them layers.&lt;0&gt;" in last[2]
    assert "0.667 % of 1 500 values would become zero" in last[2].replace("\u2009", " ").replace("\u202f", " ")
    assert "<td>1 %</td><td>2 %</td><td>0 %</td><td>12.5</td>" in last[5]
    assert panel.turnstile.waiting == 0
    assert panel.tickets.pending() == 0


def test_what_cannot_be_checked_is_said(panel: PrecisionPanel) -> None:
    (only,) = check(panel, Session())
    assert NO_SAMPLE in only[2]
    session = Session()
    session.asked = (RunRequest("What?"), CompressionConfig.full())
    panel.engine = fake.FakeEngine(fail=EngineError("No memory."))
    assert "No memory." in check(panel, session)[-1][2]


def test_a_check_that_was_stopped_in_the_line_says_so(panel: PrecisionPanel) -> None:
    session = Session()
    session.asked = (RunRequest("What?"), CompressionConfig.full())
    states = panel.look(session, VISITOR)
    next(states)
    panel.end(VISITOR)
    assert "Stopped." in list(states)[-1][2]


def test_small_shares_are_told_from_none() -> None:
    assert [precise_percent(value) for value in (None, 0.0, 3e-7, 0.00123, 0.5)] == [
        "—", "0 %", "3.0e-05 %", "0.123 %", "50 %",
    ]  # fmt: skip


def test_the_summary_names_what_is_chosen_beside_the_format() -> None:
    config = CompressionConfig.full().with_settings(
        ["precision.all=int4", "precision.group_size=32", "precision.compensation_rank=8"]
    )
    assert controls.summary(config, CONTROLS) == ["int4 throughout", "int4 groups of 32", "compensation of rank 8"]
    unused = CompressionConfig.full().with_settings(["precision.group_size=32", "precision.compensation_rank=8"])
    assert controls.summary(unused, CONTROLS) == []
