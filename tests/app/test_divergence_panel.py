"""The card that says where the answers part: what it measures, for whom, and what it shows of each token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import plots
from app.panels.divergence import HINT, KEPT, NO_RUN, DivergencePanel
from app.plots.divergence import share, visible
from app.session import Session
from app.turnstile import Turnstile
from engines.compare import Comparison
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.results import EngineError, RunRequest
from tests.app import fake

VISITOR: Any = SimpleNamespace(session_hash="a")


@pytest.fixture
def panel() -> DivergencePanel:
    with gr.Blocks():
        panel = DivergencePanel(gr.State(Session()), Path("nowhere"))
    panel.engine, panel.turnstile, panel.limits = fake.FakeEngine(), Turnstile(), MediaLimits()
    return panel


def asked() -> Session:
    session = Session()
    session.asked = (RunRequest("What?"), CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5"]))
    session.comparison = Comparison(fake.result(), fake.result(session.asked[1]))
    return session


def shown(panel: DivergencePanel, values: list[Any]) -> dict[str, Any]:
    names = ("start", "stop", "text", "body", "strip", "choice", "table", "plot", "token", "looked")
    assert len(values) == len(panel.outputs) == len(names)
    return dict(zip(names, values, strict=True))


def test_it_measures_the_run_that_is_shown_and_begins_at_the_first_token_that_differs(panel: DivergencePanel) -> None:
    session = asked()
    *before, last = (shown(panel, values) for values in panel.measure(session, VISITOR))
    assert [one["stop"]["interactive"] for one in before] == [True] * len(before)
    assert last["start"]["interactive"] is True
    assert last["body"]["visible"] is True
    assert 'data-first="1"' in last["text"]
    assert "number 2: the full model says <b>·red</b>, the compressed one <b>·blue</b> (70.0 %)" in last["text"]
    assert [mark for _, mark in last["strip"]] == [None, "≠", "≈"]
    assert last["choice"]["value"] == 1
    assert last["table"].count("data-token=") == 3
    assert session.divergence is not None
    assert session.divergence.config.pruning.keep_ratio == 0.5
    assert panel.tickets.pending() == 0
    assert panel.turnstile.waiting == 0


def test_a_token_shows_its_candidates_and_where_the_full_model_looked(panel: DivergencePanel) -> None:
    session = asked()
    session.divergence = fake.divergence_report()
    for index, dropped in ((0, 0), (1, 1), (2, 1)):
        figure, detail, looked = panel.choose(session, index)
        assert f'data-share="{dropped}"' in detail
        assert figure == plots.as_plot(plots.divergence(session.divergence, index))
        assert looked["visible"] is True
    assert "<b>red" not in panel.choose(session, 1)[1]
    assert panel.choose(session, None) == [gr.skip()] * 3
    assert panel.choose(session, 99) == [gr.skip()] * 3
    event: Any = SimpleNamespace(index=2)
    assert panel.click(session, event)[0]["value"] == 2


def test_without_a_picture_or_without_full_attention_it_says_why_there_is_no_map(panel: DivergencePanel) -> None:
    session = asked()
    session.divergence = dataclasses.replace(fake.divergence_report(), attention=None)
    *_, detail, looked = panel.choose(session, 0)
    assert "No layer of this model has full attention" in detail
    assert looked["visible"] is False
    assert session.comparison is not None
    blind = dataclasses.replace(session.comparison.full, visual_tokens=0)
    session.comparison = Comparison(blind, blind)
    assert "no image or video" in panel.choose(session, 0)[1]


def test_what_it_cannot_measure_gets_a_sentence(panel: DivergencePanel) -> None:
    (only,) = panel.measure(Session(), VISITOR)
    assert NO_RUN in shown(panel, only)["text"]
    session = asked()
    session.stored = object()  # type: ignore[assignment]
    (only,) = panel.measure(session, VISITOR)
    assert KEPT in shown(panel, only)["text"]
    session = asked()
    panel.engine = fake.FakeEngine(fail=EngineError("No <memory>."))
    *_, last = panel.measure(session, VISITOR)
    assert "No &lt;memory&gt;." in shown(panel, last)["text"]
    assert session.divergence is None
    assert panel.tickets.pending() == 0


def test_stop_in_the_line_and_on_the_way(panel: DivergencePanel) -> None:
    for steps in (1, 2):
        states = panel.measure(asked(), VISITOR)
        for _ in range(steps):
            next(states)
        panel.end(VISITOR)
        last = shown(panel, list(states)[-1])
        assert "Stopped." in last["text"]
        assert last["body"]["visible"] is False
        assert panel.turnstile.waiting == 0


def test_a_run_that_was_asked_for_meanwhile_does_not_get_the_old_figures(panel: DivergencePanel) -> None:
    session = asked()
    states = panel.measure(session, VISITOR)
    next(states)
    session.begin(7)
    list(states)
    assert session.divergence is None
    assert shown(panel, panel.update(session))["text"] == HINT


def test_a_cut_answer_and_one_without_a_difference_say_so(panel: DivergencePanel) -> None:
    session = asked()
    session.divergence = fake.divergence_report(cut_short=True)
    assert "Only the first part" in shown(panel, panel.update(session))["text"]
    same = tuple(dataclasses.replace(token, same_top=True) for token in session.divergence.tokens)
    session.divergence = dataclasses.replace(session.divergence, tokens=same)
    last = shown(panel, panel.update(session))
    assert "before every token" in last["text"]
    assert last["choice"]["value"] == 0


def test_spaces_are_seen_and_small_shares_told_from_none() -> None:
    assert [visible(text) for text in (" a", "\n", "")] == ["·a", "↵", "∅"]
    assert [share(value) for value in (0.0, 2e-6, 0.0123, 1.0)] == ["0.0 %", "2e-06", "1.2 %", "100.0 %"]
