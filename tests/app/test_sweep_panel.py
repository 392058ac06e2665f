"""The Sweep tab without a browser: what it runs, keeps, shows, finds and loads, and for whom."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from PIL import Image

from app import plots
from app.panels import sweep
from app.panels.sweep import SweepPanel
from app.panels.sweep_form import SLOTS
from app.panels.sweep_results import Shown
from app.session import Session
from app.turnstile import PAGE
from app.workbench import SAMPLES, Workbench
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.results import Event, Finished, RunRequest
from engines.sweep.front import COSTS, QUALITIES, pareto_front
from tests.app.fake import FakeEngine, result

RIGHT_OF_TEN = {1.0: 10, 0.75: 10, 0.5: 9, 0.25: 5}


class Graded(FakeEngine):
    """Faster and worse with fewer tokens: of ten questions, named 0 to 9, so many are right."""

    def _run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        ratio = config.pruning.keep_ratio
        right = int(request.question) < RIGHT_OF_TEN[ratio]
        found = result(config, "red" if right else "blue")
        yield Finished(replace(found, ttft_s=0.1 + ratio / 10, trace=replace(found.trace, total_s=1 + ratio)))


@pytest.fixture
def own_set(tmp_path: Path) -> list[Path]:
    """Ten good rows and one of each kind of bad one, as they come from the browser: all side by side."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture at all")
    # A header that claims a picture of a gigabyte, and no picture behind it.
    (tmp_path / "huge.bmp").write_bytes(b"BM" + (1 << 30).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
        + (40).to_bytes(4, "little") + (20000).to_bytes(4, "little") * 2 + b"\1\0\x18\0" + bytes(24))  # fmt: skip
    rows: list[Any] = [
        {
            "media": "good.png",
            "question": str(number),
            "answer": "red",
            "category": "even" if number % 2 == 0 else "odd",
        }
        for number in range(10)
    ]
    rows += [
        {"media": "gone.png", "question": "?"}, {"media": "bad.png", "question": "?"}, {"media": "good.png"},
        {"media": 7, "question": "?"}, {"media": "huge.bmp", "question": "?"},
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [tmp_path / name for name in ("rows.jsonl", "good.png", "bad.png", "huge.bmp")]


def tab(engine: FakeEngine) -> SweepPanel:
    workbench = Workbench(engine, MediaLimits())
    with gr.Blocks():
        workbench.draw()
    return workbench.sweep


def visitor(name: str = "a") -> Any:
    return SimpleNamespace(session_hash=name, username=None)


def known(name: str) -> Session:
    """A session of a browser that has been here."""
    session = Session()
    session.visitor = name * 32
    return session


def values(panel: SweepPanel, own: list[Path], **axes: str) -> list[Any]:
    """The floor, the Compare tab, the form with these axes, and the switches."""
    form = panel.form
    chosen = [*axes.items(), *[("", "")] * SLOTS][:SLOTS]
    given = dict(zip(form.inputs, [one.value for one in form.inputs], strict=True))
    given |= {
        form.source: "files",
        form.every: 1,
        form.files: [str(path) for path in own],
        form.timed: 2,
        form.repeats: 2,
    }
    given |= dict(zip(form.names, [name.replace("__", ".") for name, _ in chosen], strict=True))
    given |= dict(zip(form.values, [text for _, text in chosen], strict=True))
    compare = [None, "", "frames per second", 1.0, 8, 16]
    assert len(compare) == panel._compare
    return [97, *compare, *given.values(), *panel.settings._start]


def shown(panel: SweepPanel, session: Session) -> Shown:
    found = panel.results.shown(session)
    assert found is not None
    return found


RATIOS = {"pruning__keep_ratio": "1, 0.75, 0.5, 0.25"}


def test_a_sweep_of_an_own_set_lists_its_broken_rows_and_a_point_loads_into_the_switches(own_set: list[Path]) -> None:
    panel, session = tab(Graded()), known("a")
    *_, last = panel.measure(visitor(), session, *values(panel, own_set, **RATIOS))
    text = last[panel.outputs.index(panel.text)]
    assert "Done: 3 points and the full model on your own set, 10 questions" in text
    assert 'data-left-out="5"' in text
    for place in range(11, 16):
        assert f"line {place}:" in text
    assert last[0]["interactive"] is True
    assert panel.tickets.pending() == 0
    assert panel.turnstile.waiting == 0
    found = shown(panel, session)
    by_settings = {point.settings: point for point in found.view.points}
    assert {settings: point.score.right for settings, point in by_settings.items() if point.score} == {
        (): 10, ("pruning.keep_ratio=0.75",): 10, ("pruning.keep_ratio=0.5",): 9, ("pruning.keep_ratio=0.25",): 5
    }  # fmt: skip
    # The full model is beaten: just as right at 0.75, and slower.
    assert [point.settings for point in found.front] == [
        (f"pruning.keep_ratio={ratio}",) for ratio in ("0.25", "0.5", "0.75")
    ]
    drawn = panel.results.choose(session, "pruning.keep_ratio=0.5")
    assert drawn[panel.results._drawn.index(panel.results.load)]["interactive"] is True
    assert "category: even" in drawn[panel.results._drawn.index(panel.results.detail)]
    said, tabs, *switches = panel.results.take_over(session)
    assert "Loaded" in said
    assert tabs["selected"] == "compare"
    assert panel.settings.config(switches[: len(panel.settings.inputs)]).pruning.keep_ratio == 0.5


def test_a_stopped_sweep_goes_on_after_a_reload_and_nobody_else_sees_it(
    own_set: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "TELL_S", 0)
    engine = Graded()
    panel, session = tab(engine), known("a")
    wanted = values(panel, own_set, **RATIOS)
    for update in panel.measure(visitor(), session, *wanted):
        if "7 of 48 runs" in str(update[5]):
            panel.end(visitor())
    done = shown(panel, session).view.done
    assert 0 < done < 48
    runs = len(engine.seen)
    # Somebody else, by browser or by login.
    for other, request in ((known("b"), visitor("b")), (known("a"), SimpleNamespace(session_hash="c", username="x"))):
        panel.restore(other, request)
        assert panel.results.shown(other) is None
    again = known("a")
    update = panel.restore(again, visitor("d"))
    assert f"Stopped after {done} of 48 runs" in update[5]
    assert update[panel.outputs.index(panel.resume)]["visible"] is True
    # Its files are asked for again, in words; then it does what was missing and nothing twice.
    *_, update = panel.go_on(visitor("d"), again, *values(panel, [], **RATIOS))
    assert "No set is uploaded" in update[5]
    *_, update = panel.go_on(visitor("d"), again, *values(panel, own_set, experts__top_k="1"))
    assert "Done: 3 points" in update[5]
    # Each timed question at every repeat once, the rest once.
    assert len(engine.seen) - runs == 48 - done
    whole = tab(Graded())
    undisturbed = known("e")
    list(whole.measure(visitor(), undisturbed, *wanted))
    assert shown(whole, undisturbed).view.points == shown(panel, again).view.points
    panel.forget(again, visitor("d"))
    panel.restore(fresh := known("a"), visitor("f"))
    assert panel.results.shown(fresh) is None


def test_others_get_their_turn_between_two_runs(own_set: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "TELL_S", 0)
    engine = Graded()
    panel = tab(engine)
    updates = panel.measure(visitor(), known("a"), *values(panel, own_set, **RATIOS))
    for _ in range(3):
        next(updates)
        with panel.turnstile.turn(PAGE) as mine:
            assert mine
            assert engine.open_runs == 0
    panel.closed("a")
    assert "Stopped" in list(updates)[-1][5]


def test_the_search_tries_one_setting_and_find_for_me_chooses_among_points(own_set: list[Path]) -> None:
    panel, session = tab(Graded()), known("a")
    wanted = values(panel, own_set, **RATIOS)
    *_, last = panel.search(visitor(), session, 85, *wanted[1:])
    assert "Fastest with 85 % of the full model" in last[5]
    assert shown(panel, session).chosen == ("pruning.keep_ratio=0.5",)
    *_, last = panel.search(visitor(), session, 85, *values(panel, own_set, **RATIOS, experts__top_k="4, 1")[1:])
    assert "tries one setting" in last[5]
    list(panel.measure(visitor(), session, *wanted))
    for floor, settings in ((50, "0.25"), (90, "0.5"), (91, "0.75")):
        assert f"pruning.keep_ratio={settings}" in panel.results.pick(session, floor)[0]
        assert shown(panel, session).chosen == (f"pruning.keep_ratio={settings}",)
    shown(panel, session).quality = "kl"
    assert "no share" in panel.results.pick(session, 90)[0]


def test_what_it_cannot_do_gets_a_sentence(own_set: list[Path]) -> None:
    panel = tab(Graded())
    for given, sentence in (
        (values(panel, [], **RATIOS), "No set is uploaded"),
        (values(panel, own_set), "Choose at least one setting"),
        (values(panel, own_set, pruning__keep_ratio="2"), "out of range"),
        (values(panel, own_set, pruning__keep_ratio="many"), "not a number"),
        (values(panel, [*own_set, own_set[0]], **RATIOS), "Two files are called rows.jsonl"),
    ):
        session = known("a")
        *_, last = panel.measure(visitor(), session, *given)
        assert sentence in last[5]
        assert last[0]["interactive"] is True
    assert "no sweep" in next(panel.go_on(visitor(), known("b"), *values(panel, own_set)))[5]
    assert "start one first" in panel.results.pick(known("c"), 97)[0]
    assert "Choose a point" in panel.results.take_over(known("c"))[0]


def test_the_form_says_how_large_a_sweep_is_before_it_starts(own_set: list[Path]) -> None:
    panel = tab(Graded())
    given = values(panel, own_set, **RATIOS, experts__top_k="4, 2, 1", kv__bits="0, 8, 4")[1 + panel._compare :]
    wanted = panel._wanted(given)
    assert "36 points" in panel.form.size_words(wanted)
    fewer = replace(wanted, most_points=7, source="stills", every=12)
    assert fewer.points() == fewer.points()
    assert "7 points, drawn at random from 36 combinations, 100 questions" in panel.form.size_words(fewer)
    idle = panel._wanted(values(panel, own_set, pruning__method="mmr, random")[1 + panel._compare :])
    assert "changes nothing" in panel.form.size_words(idle)


def test_figure_table_and_files_hold_the_same_points(own_set: list[Path]) -> None:
    panel, session = tab(Graded()), known("a")
    list(panel.measure(visitor(), session, *values(panel, own_set, **RATIOS)))
    points = shown(panel, session).view.points
    front = pareto_front(points, COSTS["total"], QUALITIES["accuracy"])
    figure = plots.sweep_front(points, "total", "accuracy", front[1].settings)
    traces = {trace.name: trace for trace in figure.data}
    assert list(traces["Pareto front"].y) == [0.5, 0.9, 1.0]
    assert list(traces["Pareto front"].x) == [1250.0, 1500.0, 1750.0]
    assert "lines" in traces["Pareto front"].mode
    assert list(traces["Full model"].x) == [2000.0]
    assert list(traces["Chosen"].y) == [0.9]
    assert "pruning.keep_ratio=0.5" in traces["Pareto front"].customdata[1][0]
    # Told apart by shape, not by colour alone.
    assert len({trace.marker.symbol for trace in figure.data[:3]}) == 3
    table = plots.sweep_table(points, "total", "accuracy")
    assert table.count('data-front="true"') == len(front)
    assert table.count("<tr data-front") == len(points) == 4
    # Nothing measured: nothing drawn, and no number in its place.
    assert all(not trace.x for trace in plots.sweep_front(points, "total", "kl").data)
    _, content = panel.results.to_csv(session)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert (rows[0]["settings"], rows[0]["front"], rows[0]["kl_nats"]) == ("full model", "False", "")
    assert [float(row["accuracy"]) for row in rows] == [1.0, 1.0, 0.9, 0.5]
    _, content = panel.results.to_json(session)
    kept = json.loads(content)
    assert kept["front"]["points"] == [list(point.settings) for point in front]
    assert len(kept["set"]["problems"]) == 5
    assert str(own_set[0].parent) not in content.decode()


def test_samples_of_the_compare_tab_are_asked_its_question(own_set: list[Path]) -> None:
    engine = FakeEngine()
    panel, session = tab(engine), known("a")
    given = values(panel, [], **RATIOS)
    given[1:3] = [[str(SAMPLES / "scene_colour.png")], " What? "]
    given[1 + panel._compare + panel.form.inputs.index(panel.form.source)] = "upload"
    *_, last = panel.measure(visitor(), session, *given)
    assert "1 question" in last[5]
    assert {request.question for request, _ in engine.seen} == {"What?"}
    # Without right answers the points are judged by the full model's.
    assert shown(panel, session).quality == "agreement"
