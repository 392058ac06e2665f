"""The History tab without a browser: what a visitor keeps is theirs alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import tenants
from app.options import PageOptions
from app.panels.history import GONE, is_visitor, new_visitor
from app.session import Session
from app.workbench import Workbench
from engines.history import HistoryStore
from engines.media import MediaLimits
from tests.app.fake import FakeEngine
from tests.app.test_report import finished


def request(login: str | None = None) -> Any:
    return SimpleNamespace(session_hash="a", username=login, headers={"host": "workbench.example"})


def named(visitor: str) -> Session:
    session = finished()
    session.visitor = visitor * 32
    return session


@pytest.fixture
def workbench(tmp_path: Path) -> Workbench:
    workbench = Workbench(
        FakeEngine(), MediaLimits(), alone=True, options=PageOptions(history=HistoryStore(tmp_path / "history.sqlite"))
    )
    with gr.Blocks():
        workbench.draw()
    return workbench


def test_through_a_proxy_nobody_finds_anothers_comparison(workbench: Workbench) -> None:
    panel, mine = workbench.history, named("a")
    assert panel.keep(mine, workbench._owner(mine, request())) == ""
    listed = panel.refresh(mine, "", request())
    ((_, number),) = listed[1 + panel.outputs.index(panel.list)]["choices"]
    for other, asking in ((named("b"), request()), (named("a"), request("login"))):
        assert "Nothing is kept yet" in panel.refresh(other, "", asking)[1]
        assert GONE in panel.open_one(other, [number], asking)[0]
        assert GONE in panel.show_two(other, [number, number + 1], asking)[0]
        assert "Deleted 0" in panel.remove(other, "", [number], asking)[0]
    said, *values = panel.open_one(named("a"), [number], request())
    assert said == ""
    assert values[workbench.reopened.index(workbench.ask.question)] == "What is <b>red</b>?"
    assert "Deleted 1" in panel.remove(mine, "", [number], request())[0]


def test_only_finished_comparisons_are_kept_and_each_once(workbench: Workbench) -> None:
    panel, session = workbench.history, named("a")
    owner = workbench._owner(session, request())
    assert panel.keep(Session(), owner) == ""
    panel.keep(session, owner)
    session.stored = object()  # type: ignore[assignment]  # it was opened from the history
    panel.keep(session, owner)
    assert panel.store is not None
    assert panel.store.count(owner, "comparison") == 1


def test_all_are_one_person_only_on_a_machine_of_ones_own() -> None:
    assert tenants.owner_of("a", None, alone=True) == tenants.owner_of("b", None, alone=True)
    owners = {tenants.owner_of(*who, alone=False) for who in (("a", None), ("b", None), ("a", "x"), ("a", "y"))}
    assert len(owners) >= 3


def test_a_browsers_name_cannot_be_made_up() -> None:
    assert is_visitor(new_visitor())
    assert new_visitor() != new_visitor()
    for bad in (None, 7, "", "a" * 31, "g" * 32, "../" * 11):
        assert not is_visitor(bad)
