"""Runs from the page: what is streamed, what a failure becomes, and that visitors are kept apart."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import controls, runs
from app.panels.answers import answers_html, verdict_html
from app.panels.caches import ANY_SCOPE
from app.session import Phase, Session, Tickets
from app.workbench import Workbench, build, repeat_count
from engines.config import CompressionConfig
from engines.media import MediaError, MediaLimits
from engines.results import EngineError, RunRequest
from tests.app.fake import FakeEngine
from tests.app.test_controls import METHODS


def ticket_for(tickets: Tickets, session: Session, visitor: str = "a", config: CompressionConfig | None = None) -> Any:
    request = RunRequest("What?", (Path("photo.png"),), cancel=threading.Event())
    ticket = tickets.issue(visitor, request, config or controls.recommended())
    session.begin(ticket.number)
    return ticket


def test_a_run_streams_and_ends_with_both_answers() -> None:
    engine, session = FakeEngine(), Session()
    ticket = ticket_for(Tickets(), session)
    seen = [
        (session.sides["full"].phase, session.sides["compressed"].phase, session.sides["full"].text)
        for _ in runs.stream(engine, session, ticket)
    ]
    assert (Phase.PREPARING, Phase.QUEUED, "") in seen
    assert (Phase.RUNNING, Phase.QUEUED, "A") in seen
    assert seen[-1] == (Phase.DONE, Phase.DONE, "A red circle")
    assert session.comparison is not None
    assert [config for _, config in engine.seen] == [CompressionConfig.full(), ticket.compressed]
    assert session.pictures[0, 0].url.startswith("data:image/jpeg;base64,")
    assert engine.open_runs == 0


def test_repeats_measure_and_leave_the_first_answers() -> None:
    engine, session, tickets = FakeEngine(), Session(), Tickets()
    request = RunRequest("What?", (Path("photo.png"),), cancel=threading.Event())
    ticket = tickets.issue("a", request, controls.recommended(), repeats=3)
    session.begin(ticket.number, ticket.repeats)
    said = set()
    for _ in runs.stream(engine, session, ticket):
        if session.repeat:
            assert session.active, "Stop stays usable"
            said.add(verdict_html(session))
    assert len(engine.seen) == 6
    assert any("pair 2 of 3" in text for text in said)
    assert not session.active
    assert session.comparison is not None
    assert len(session.comparison.pairs) == 3
    switches = controls.make_controls(engine.capabilities(), METHODS)
    assert "Medians of 3 pairs" in answers_html(session, switches)


def test_stop_in_a_repeat_keeps_both_answers() -> None:
    session, tickets = Session(), Tickets()
    request = RunRequest("What?", (Path("photo.png"),), cancel=threading.Event())
    ticket = tickets.issue("a", request, controls.recommended(), repeats=5)
    session.begin(ticket.number, ticket.repeats)
    for _ in runs.stream(FakeEngine(), session, ticket):
        if session.repeat == 2:
            ticket.cancel.set()
    assert not session.active
    assert session.comparison is not None
    assert len(session.comparison.pairs) == 2
    assert [view.phase for view in session.sides.values()] == [Phase.DONE, Phase.DONE]


@pytest.mark.parametrize("value", [None, 0, 12])
def test_repeats_out_of_range_get_a_sentence(value: int | None) -> None:
    with pytest.raises(ValueError, match="from 1 to 11"):
        repeat_count(value)


def test_updates_are_throttled() -> None:
    session = Session()
    ticket = ticket_for(Tickets(), session)
    standing_still = list(runs.stream(FakeEngine(), session, ticket, clock=lambda: 0.0))
    # a stage or two and the first token of each side, but not every token
    assert len(standing_still) < 16


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EngineError("The prompt is too long."), "The prompt is too long."),
        (MediaError("clip.mp4 is a text."), "clip.mp4 is a text."),
        (ValueError("pruning.keep_ratio is 7."), "pruning.keep_ratio is 7."),
        (RuntimeError("secret path /srv"), runs.SURPRISE),
    ],
)
def test_failures_become_sentences(error: Exception, said: str, caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    ticket = ticket_for(Tickets(), session)
    engine = FakeEngine(fail=error)
    list(runs.stream(engine, session, ticket))
    assert session.error == said
    assert session.sides["full"].phase == Phase.DONE, "the answer that was there stays"
    assert session.sides["compressed"].phase == Phase.FAILED
    assert engine.open_runs == 0
    assert ("secret path" in caplog.text) is (said == runs.SURPRISE)


def test_a_failure_of_the_first_side_leaves_the_second_not_run() -> None:
    session = Session()
    list(runs.stream(FakeEngine(fail_full=MediaError("Bad.")), session, ticket_for(Tickets(), session)))
    assert [view.phase for view in session.sides.values()] == [Phase.FAILED, Phase.NOT_RUN]


def test_stop_keeps_the_partial_answer() -> None:
    engine, session = FakeEngine(), Session()
    ticket = ticket_for(Tickets(), session)
    for _ in runs.stream(engine, session, ticket):
        if session.sides["full"].text:
            ticket.cancel.set()
    assert session.stopped
    assert session.sides["full"].phase == Phase.STOPPED
    assert session.sides["full"].text.startswith("A")
    assert session.sides["compressed"].phase == Phase.NOT_RUN
    assert not session.active


def test_closing_the_stream_ends_the_run() -> None:
    engine, session = FakeEngine(), Session()
    stream = runs.stream(engine, session, ticket_for(Tickets(), session))
    next(stream)
    assert engine.open_runs == 1
    stream.close()  # type: ignore[attr-defined]
    assert engine.open_runs == 0


def test_a_newer_run_of_the_same_visitor_ends_the_older() -> None:
    tickets, session = Tickets(), Session()
    first = ticket_for(tickets, session)
    second = ticket_for(tickets, session)
    assert first.cancel.is_set()
    assert not second.cancel.is_set()
    assert tickets.get("a", first.number) is None
    assert tickets.get("a", second.number) is second


def test_visitors_do_not_see_each_other() -> None:
    tickets = Tickets()
    start = Session()
    one, other = copy.deepcopy(start), copy.deepcopy(start)  # as Gradio makes them
    ticket = ticket_for(tickets, one, "one")
    list(runs.stream(FakeEngine(), one, ticket))
    assert one.results
    assert one.pictures
    assert not other.results
    assert not other.pictures
    assert tickets.get("other", ticket.number) is None
    tickets.stop("other")
    assert not ticket.cancel.is_set()


# ---- the handlers of the page ----


@pytest.fixture
def page() -> Workbench:
    workbench = Workbench(FakeEngine(), MediaLimits())
    with gr.Blocks():
        workbench.draw()
    return workbench


def visitor(name: str = "a") -> Any:
    return SimpleNamespace(session_hash=name, username=None, headers={"host": "localhost:7860"})


def ask(
    page: Workbench, session: Session, question: str = "What?", files: list[str] | None = None, **changed: Any
) -> Any:
    """Press Run with the page's own start values."""
    values = [component.value for component in page.ask.inputs]
    values[0], values[1] = files, question
    switches = [component.value for component in page.settings.inputs]
    for name, value in changed.items():
        switches[[control.path[-1] for control in page.settings.controls].index(name)] = value
    return page.begin(visitor(), session, *values, *switches)


def test_pressing_run_takes_a_ticket_with_what_the_page_shows(page: Workbench) -> None:
    session = Session()
    updates = ask(page, session, " What? ", ["/tmp/photo.png"], keep_ratio=0.25)
    ticket = page.tickets.get("a", updates[page.ticket])
    assert ticket is not None
    assert ticket.request.question == "What?"
    assert ticket.request.media == (Path("/tmp/photo.png"),)
    assert ticket.request.warm_up is True
    assert ticket.compressed.pruning.keep_ratio == 0.25
    assert session.sides["full"].phase == Phase.QUEUED
    assert "Waiting for the engine" in updates[page.verdict]


@pytest.mark.parametrize(
    ("question", "changed", "said"),
    [
        ("", {}, "The question is empty"),
        ("   ", {}, "The question is empty"),
        ("?", {"keep_ratio": None}, "Keep ratio"),
    ],
)
def test_what_is_missing_is_said_without_a_run(page: Workbench, question: str, changed: dict, said: str) -> None:
    session = Session()
    updates = ask(page, session, question, **changed)
    assert page.ticket not in updates
    assert said in updates[page.verdict]


def test_a_run_fills_every_panel(page: Workbench) -> None:
    session = Session()
    number = ask(page, session, files=["/tmp/photo.png"])[page.ticket]
    updates: dict = {}
    for update in page.run(session, number, "score", 0.5, visitor()):
        updates.update(update)
    assert "A red circle" in re_tags(updates[page.answers])
    assert updates[page.waterfall.plot]["visible"] is True
    assert updates[page.heatmap.plot].type == "plotly"
    assert "this run, compressed" in updates[page.caches.table]
    assert updates[page.ask.run]["interactive"] is True
    assert page.tickets.get("a", number) is None, "nothing is kept of a run that ended"


def test_a_run_with_an_old_ticket_does_nothing(page: Workbench) -> None:
    session = Session()
    assert list(page.run(session, 99, "score", 0.5, visitor())) == [{page.queue: ""}]
    assert page.engine.seen == []  # type: ignore[attr-defined]


def test_stop_and_leave(page: Workbench) -> None:
    session = Session()
    number = ask(page, session)[page.ticket]
    ticket = page.tickets.get("a", number)
    assert ticket is not None
    updates = page.stop(session, visitor("b"))
    assert not ticket.cancel.is_set(), "another visitor cannot stop it"
    updates = page.leave(session, visitor())
    assert ticket.cancel.is_set()
    assert "Stopped before there was an answer" in updates[page.verdict]
    assert page.tickets.get("a", number) is None


def test_closing_the_page_stops_the_run(page: Workbench) -> None:
    session = Session()
    ticket = page.tickets.get("a", ask(page, session)[page.ticket])
    page.closed(visitor())
    assert ticket is not None
    assert ticket.cancel.is_set()


def test_clearing_a_cache_is_for_ones_own_entries(page: Workbench) -> None:
    session = Session()
    page.clear_encoder_cache(session, ANY_SCOPE, visitor())
    page.clear_prefix_cache(session, "session", visitor("b"))
    mine = f"visitor {session.name}"
    assert page.engine.cleared == [("encoder", mine, None), ("prefix", mine, "session")]  # type: ignore[attr-defined]


def test_a_bad_file_has_its_sentence_in_the_preview(page: Workbench, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("hello")
    frames = [component.value for component in page.ask.frames]
    html = page.ask.show_preview(Session(), [str(bad)], *frames)
    assert "notes.mp4" in html
    assert str(tmp_path) not in html
    assert "Nothing added" in page.ask.show_preview(Session(), None, *frames)
    assert "is empty" in page.ask.show_preview(Session(), [str(bad)], frames[0], None, *frames[2:])


def test_events_that_use_the_engine_share_one_queue() -> None:
    page = build(FakeEngine())
    shared = [fn for fn in page.fns.values() if fn.concurrency_id == "engine"]
    assert {fn.name for fn in shared} == {"run", "clear_encoder_cache", "clear_prefix_cache"}
    assert all(fn.concurrency_limit == 1 for fn in shared)


def test_choosing_a_method_shows_its_own_parameters(page: Workbench) -> None:
    for section, methods in page.settings.methods.items():
        options = [control for control in page.settings.controls if control.method and control.path[0] == section]
        for method in methods:
            updates = page.settings._show_method(section, method.name)
            assert [update["visible"] for update in updates[1:]] == [option.method == method.name for option in options]
            assert method.help in updates[0]["info"]


def re_tags(html: str) -> str:
    import re

    return re.sub(r"</?mark[^>]*>", "", html)
