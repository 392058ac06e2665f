"""The device: what it reads now, what it did during the last runs, and where the weights lie."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.observed import WorkbenchEngine
from app.panels.answers import TITLES
from app.session import Session
from app.words import MISSING, count, escape, megabytes, percent, ratio
from engines.compare import SIDES
from engines.device.report import QUANTITIES, DeviceReading, DeviceReport, GaugeReport, Placement
from engines.results import RunResult

# While the panel is open, and only then.
EVERY_S = 2.0
EMPTY = '<p class="empty">Readings appear while this is open.</p>'
NO_RUN = '<p class="empty">After a run: mean and highest readings of both sides, and the energy of a token.</p>'


class DevicePanel:
    """`update` fills it after a run; `connect` lets it read the device while it is open."""

    def __init__(self) -> None:
        with gr.Accordion("Device", open=False, elem_id="device", elem_classes="card") as self.fold:
            self.now = gr.HTML(EMPTY, elem_id="device-now")
            gr.HTML("<h3>During the last runs</h3>", elem_classes="group-title")
            self.during = gr.HTML(NO_RUN, elem_id="device-during")
            gr.HTML("<h3>Where the weights are</h3>", elem_classes="group-title")
            self.places = gr.HTML(elem_id="device-places")
        self.timer = gr.Timer(EVERY_S, active=False)
        self.outputs: list[gr.blocks.Block] = [self.during]

    def connect(self, engine: WorkbenchEngine) -> None:
        self.engine = engine
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        self.fold.expand(self.opened, None, [self.timer, self.now, self.places], **quiet)
        self.fold.collapse(lambda: gr.Timer(active=False), None, self.timer, **quiet)
        self.timer.tick(self.tick, None, self.now, **quiet)

    def opened(self) -> list[Any]:
        return [gr.Timer(active=True), self.tick(), placement_html(self.engine.placement())]

    def tick(self) -> str:
        return reading_html(self.engine.read_device())

    @staticmethod
    def update(session: Session) -> list[Any]:
        """All outputs for finished runs."""
        return [runs_html(session)]


def value_words(name: str, value: float | None) -> str:
    """A reading in its unit."""
    if value is None:
        return MISSING
    if name == "power_w":
        return f"{value:.1f} W"
    if name == "temperature_c":
        return f"{value:.0f} °C"
    if name == "clock_mhz":
        return f"{count(round(value))} MHz"
    return percent(value) if name == "utilisation" else megabytes(int(value))


def reading_html(reading: DeviceReading) -> str:
    rows = []
    for quantity in QUANTITIES:
        value, reason = reading.values.get(quantity.name), reading.missing.get(quantity.name, "")
        total = ""
        if quantity.name == "memory_bytes" and value is not None and reading.memory_total_bytes is not None:
            total = f" of {megabytes(reading.memory_total_bytes)}"
        shown = "not available" if value is None else value_words(quantity.name, value) + total
        rows.append(
            f'<tr data-reading="{quantity.name}"><th scope="row">{quantity.label}</th><td>{shown}</td>'
            f'<td class="note">{escape(reason)}</td></tr>'
        )
    source = f"{escape(reading.source)}. " if reading.source else ""
    return (
        '<div class="scroll"><table class="figures readings"><thead><tr><th scope="col">Reading</th>'
        '<th scope="col">Now</th><th scope="col"></th></tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="hint">{source}Of the whole device, other programs'
        f" included; read every {EVERY_S:g} s while this is open.</p>"
    )


def runs_html(session: Session) -> str:
    """A row a quantity, a column a side: the mean of the readings, and the highest."""
    reports = {side: report for side in SIDES if (report := _report(session.results.get(side))) is not None}
    if not reports:
        return NO_RUN
    head = "".join(f'<th scope="col">{TITLES[side]}</th>' for side in reports)
    rows: list[str] = []
    reasons: dict[str, None] = {}
    for quantity in QUANTITIES:
        gauges = {side: _gauge(report, quantity.name) for side, report in reports.items()}
        reasons |= {f"{quantity.label}: {gauge.reason}": None for gauge in gauges.values() if gauge.mean is None}
        cells = "".join(f"<td>{_span_words(gauge)}</td>" for gauge in gauges.values())
        rows.append(f'<tr data-reading="{quantity.name}"><th scope="row">{quantity.label}</th>{cells}</tr>')
    for label, name in (("Energy", "energy_j"), ("Energy per token", "energy_per_token_j")):
        cells = "".join(f"<td>{_joules(getattr(report, name))}</td>" for report in reports.values())
        rows.append(f'<tr data-reading="{name}"><th scope="row">{label}{_ratio(session, name)}</th>{cells}</tr>')
    sources = {report.energy_source: None for report in reports.values()}
    measured = any(report.energy_j is not None for report in reports.values())
    said = [f"Energy {'by ' if measured else 'is not known: '}{source}" for source in sources if source]
    notes = "".join(f"<br>{escape(text)}" for text in (*reasons, *said))
    samples = " and ".join(count(report.samples) for report in reports.values())
    return (
        f'<div class="scroll"><table class="figures"><thead><tr><th scope="col">Mean (highest)</th>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="hint">{samples} readings of the whole device in the'
        " first pair of runs, warming up left out. The energy of a token is that of the whole run, prefill and what an"
        f" idle device takes included, over the tokens of the answer.{notes}</p>"
    )


def _report(result: RunResult | None) -> DeviceReport | None:
    return result.device_report if result is not None else None


def _gauge(report: DeviceReport, name: str) -> GaugeReport:
    return next(gauge for gauge in report.gauges if gauge.name == name)


def _span_words(gauge: GaugeReport) -> str:
    if gauge.mean is None:
        return MISSING
    return f"{value_words(gauge.name, gauge.mean)} ({value_words(gauge.name, gauge.highest)})"


def _joules(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g} J"


def _ratio(session: Session, name: str) -> str:
    if name != "energy_per_token_j" or session.comparison is None:
        return ""
    found = session.comparison.ratios()["energy_per_token"]
    return f' <span class="ratio">{ratio(found)}</span>' if found is not None else ""


def placement_html(placement: Placement) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(part.part)}</th><td class="word">{escape(part.place)}</td>'
        f"<td>{megabytes(part.bytes)}</td></tr>"
        for part in placement.parts
    )
    sums = "".join(
        f'<tr class="sum" data-place="{escape(place)}"><th scope="row">All parts</th>'
        f'<td class="word">{escape(place)}</td><td>{megabytes(size)}</td></tr>'
        for place, size in placement.by_place.items()
    )
    note = f'<p class="hint">{escape(placement.note)}</p>' if placement.note else ""
    return (
        '<div class="scroll"><table class="figures places"><thead><tr><th scope="col">Part</th>'
        '<th scope="col" class="word">Memory</th><th scope="col">Bytes</th></tr></thead>'
        f"<tbody>{rows}{sums}</tbody></table></div>{note}"
    )
