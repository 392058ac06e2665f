"""What is taken away: complete, readable without a network, and the same after a round trip."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import threading
from pathlib import Path

import pytest

from app import controls, runs
from app.report import Report, make
from app.report.files import to_json, to_trace
from app.session import Session, Tickets
from engines.compare import FIGURES
from engines.config import CompressionConfig
from engines.results import RunRequest
from engines.signing import SignatureError, verify
from tests.app.fake import FakeEngine, capabilities
from tests.app.test_controls import METHODS

KEY = b"sixteen bytes and more"
CONTROLS = controls.make_controls(capabilities(), METHODS)
EVIL = "</script><script>alert(1)</script> & co"


def finished(question: str = "What is <b>red</b>?", repeats: int = 1, right: str | None = "A red circle") -> Session:
    session, tickets = Session(), Tickets()
    request = RunRequest(question, (Path("secret/place/photo.png"),), cancel=threading.Event())
    ticket = tickets.issue("a", request, controls.recommended(), repeats)
    session.begin(ticket.number, repeats, right)
    session.asked = (request, ticket.compressed)
    list(runs.stream(FakeEngine(), session, ticket))
    return session


def report_of(session: Session) -> Report:
    return Report.of(session, capabilities())


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(finished(EVIL, repeats=3))


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return make(report, "html", lambda: CONTROLS).decode()


def test_without_a_finished_run_there_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="run one first"):
        report_of(Session())


def test_the_html_says_everything(report: Report, page: str) -> None:
    assert report.digest in page
    assert report.device in page
    assert report.made_at in page
    assert "--set pruning.keep_ratio=0.5" in page
    assert "Medians of 3 pairs" in page
    assert '<mark class="differs">blue</mark>' in page
    assert "Right answer" in page
    assert "photo.png: &lt;i&gt;turned&lt;/i&gt;" in page, "warnings"
    assert all(version in page for version in report.versions.values())
    for card in ("answers", "settings-used", "waterfall", "heatmap", "experts", "precision", "caches", "notes"):
        assert f'<section class="card" id="{card}">' in page
    assert page.count('<div class="plot"') == page.count("<summary>As a table</summary>") >= 4


def test_the_html_needs_no_network_and_runs_nothing_that_was_typed(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["']?(?!data:)""", page)
    assert not re.findall(r"url\((?!['\"]?data:)", page)
    assert "https:" not in page
    assert "<script>alert" not in page
    assert page.count("</script>") == page.count("<script"), "no text ends the element that holds it"
    assert "secret/place" not in page, "media go by name"


def test_pictures_are_embedded_smaller_than_what_the_page_shows(report: Report) -> None:
    assert report.pictures
    assert all(max(picture.width, picture.height) <= 512 for picture in report.pictures.values())
    small = Report.of(finished(), capabilities(), longest_px=40)
    assert [max(picture.width, picture.height) for picture in small.pictures.values()] == [40]


def test_json_round_trip_keeps_all_that_is_shown(report: Report) -> None:
    values = json.loads(to_json(report.to_dict()))
    again = Report.from_dict(values)
    assert again.comparison.medians("full") == report.comparison.medians("full")
    assert again.comparison.ranges() == report.comparison.ranges()
    assert again.comparison.pairs[0] == report.comparison.pairs[0]
    assert again.to_dict() == report.to_dict()
    assert make(again, "html", lambda: CONTROLS) == make(report, "html", lambda: CONTROLS)


def test_what_another_version_wrote_is_refused(report: Report) -> None:
    values = json.loads(to_json(report.to_dict()))
    with pytest.raises(ValueError, match="another version"):
        Report.from_dict({**values, "schema_version": 99})
    with pytest.raises(ValueError, match="damaged"):
        Report.from_dict({**values, "frames": {"fps": "many"}})


def test_csv_has_a_row_for_every_run() -> None:
    report = report_of(finished("=1+1", repeats=2))
    rows = list(csv.DictReader(io.StringIO(make(report, "csv", tuple).decode())))
    assert [(row["pair"], row["side"]) for row in rows] == [
        (pair, side) for pair in ("1", "2") for side in ("full", "compressed")
    ]
    assert set(FIGURES) < set(rows[0])
    assert float(rows[0]["ttft"]) == 0.5
    assert rows[0]["peak_memory"] == "", "not measured is empty and not 0"
    assert CompressionConfig.full().with_settings(rows[1]["settings"].split()) == controls.recommended()
    assert rows[0]["question"] == "'=1+1", "no spreadsheet takes it for a formula"


def test_the_trace_holds_both_sides_of_every_pair(report: Report) -> None:
    events = json.loads(to_trace(report))["traceEvents"]
    runs_of = {(event["pid"], event["tid"]) for event in events if event["name"] == "run"}
    assert runs_of == {(pid, tid) for pid in (1, 2) for tid in (1, 2, 3)}
    prefill = [event["dur"] for event in events if event["name"] == "prefill"]
    assert prefill == pytest.approx([100_000.0] * 6)


@pytest.mark.parametrize("kind", ["html", "json"])
def test_a_signed_report_shows_any_change(report: Report, kind: str) -> None:
    signed = make(report, kind, lambda: CONTROLS, KEY)
    verify(signed, KEY)
    assert KEY not in signed
    draw = random.Random(1)
    for place in draw.sample(range(len(signed)), 12):
        changed = signed[:place] + bytes([signed[place] ^ draw.randrange(1, 256)]) + signed[place + 1 :]
        with pytest.raises(SignatureError):
            verify(changed, KEY)
