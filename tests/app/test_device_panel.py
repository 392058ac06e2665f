"""The Device card: what is read now, what was read during the runs, and where the weights lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.panels.device import DevicePanel, placement_html, reading_html, runs_html, value_words
from app.session import Session
from engines.compare import Comparison
from engines.device.report import QUANTITIES, DeviceReading, DeviceReport, GaugeReport, PlacedPart, Placement
from tests.app.fake import FakeEngine, result


def report(power_w: float | None, energy_j: float | None) -> DeviceReport:
    gauges = tuple(
        GaugeReport(one.name, power_w, power_w, power_w and power_w + 2)
        if one.name == "power_w" and power_w is not None
        else GaugeReport(one.name, None, None, None, "There is no sensor.")
        for one in QUANTITIES
    )
    return DeviceReport(
        "GPU through a double", 4, 2.0, gauges, energy_j, "readings of the power", energy_j and energy_j / 4
    )


def session_of(full: DeviceReport, compressed: DeviceReport) -> Session:
    session = Session()
    results = [replace(result(), device_report=one) for one in (full, compressed)]
    session.comparison = Comparison(*results)
    for side, one in zip(("full", "compressed"), results, strict=True):
        session.sides[side].result = one  # type: ignore[index]
    return session


def test_a_reading_that_is_missing_is_never_a_number() -> None:
    shown = reading_html(FakeEngine().read_device())
    assert "50 %" in shown
    assert "of 8" in shown  # GiB in all
    power = shown.partition('data-reading="power_w"')[2].partition("</tr>")[0]
    assert "not available" in power
    assert "The double reads no power." in power


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("power_w", 12.34, "12.3 W"),
        ("temperature_c", 61.4, "61 °C"),
        ("clock_mhz", 1300.0, "1 300 MHz"),
        ("utilisation", 0.25, "25 %"),
    ],
)
def test_units(name: str, value: float, words: str) -> None:
    assert value_words(name, value).replace("\u202f", " ").replace("\u00a0", " ") == words


def test_after_the_runs_both_sides_stand_side_by_side_with_the_ratio_of_energy() -> None:
    shown = runs_html(session_of(report(10.0, 8.0), report(8.0, 4.0)))
    assert "10.0 W (12.0 W)" in shown
    assert "8.0 W (10.0 W)" in shown
    assert "2 J" in shown
    assert "0.5" in shown.partition("Energy per token")[2].partition("</th>")[0]
    assert "There is no sensor." in shown


def test_energy_that_was_not_measured_has_a_reason_and_no_ratio() -> None:
    shown = runs_html(session_of(report(None, None), report(None, None)))
    assert "Energy is not known" in shown
    assert "ratio" not in shown.partition("Energy per token")[2].partition("</th>")[0]


def test_before_a_run_nothing_is_shown() -> None:
    assert 'class="empty"' in runs_html(Session())


def test_names_from_a_device_are_escaped() -> None:
    assert "<b>" not in reading_html(DeviceReading.nothing("<b>GPU", "<b>broken"))
    assert "<b>" not in placement_html(Placement((PlacedPart("<b>", "<b>", 1),), split=False, note="<b>"))


def test_the_bytes_of_the_parts_add_up() -> None:
    parts = (PlacedPart("vision", "GPU", 10 << 20), PlacedPart("experts", "GPU", 20 << 20))
    shown = placement_html(Placement((*parts, PlacedPart("experts", "machine memory", 5 << 20)), split=True))
    assert "30" in shown.partition('data-place="GPU"')[2].partition("</tr>")[0]
    assert "5" in shown.partition('data-place="machine memory"')[2].partition("</tr>")[0]


def test_opened_it_reads_the_engine() -> None:
    panel = DevicePanel.__new__(DevicePanel)
    panel.engine = FakeEngine()
    _timer, reading, places = panel.opened()
    assert "CPU through a double" in reading
    assert "machine memory" in places
