"""The report of one comparison as HTML: the page's own words, tables and figures, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app import plots
from app.controls import Control
from app.panels.answers import answers_html, verdict_html
from app.panels.caches import run_caches_html
from app.panels.experts import experts_html
from app.panels.fidelity import fidelity_html
from app.panels.heatmap import OPACITY, attention_html, count_html, detail_html
from app.panels.kv import kv_html, kv_table
from app.panels.precision import errors_html, weights_html
from app.plots.figure import SIDE_NAMES
from app.report.data import MOST_PICTURES, Report, settings_rows
from app.report.document import card, document, facts, plot
from app.session import Session
from app.words import count, escape
from engines.compare import SIDES, Side
from engines.results import RunResult

WIDTH_PX = 1000


def comparison_html(report: Report, controls: Sequence[Control]) -> bytes:
    """The whole file, unsigned."""
    session = Session()
    report.show(session)
    body = "".join(
        [
            _head(report),
            card("Answers", verdict_html(session) + answers_html(session, tuple(controls)), "answers"),
            card("Settings", _settings(report), "settings-used"),
            card("Where the time went", _waterfall(session.results), "waterfall"),
            card("What the language model saw", _heatmaps(report), "heatmap"),
            *_fidelity(report),
            *_experts(session.results),
            card("Precision of the weights", _precision(session.results), "precision"),
            *_kv(report),
            card("Caches", run_caches_html(session.results), "caches"),
            card("Notes of the runs", _warnings(session.results), "notes"),
        ]
    )
    return document(f"Comparison: {report.question}", body)


def _head(report: Report) -> str:
    sampling = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in vars(report.sampling).items())
    frames = report.frames
    rate = f"{frames.fps:g} a second" if frames.fps is not None else f"{frames.num_frames} of a clip"
    said = {
        "Question": report.question,
        "Media": ", ".join(report.media) or "none",
        "Made at": report.made_at,
        "Model": report.model,
        "Checkpoint": f"SHA-256 {report.digest}",
        "Device": report.device,
        "Sampling": sampling,
        "Video frames": f"{rate}, at most {frames.max_frames}",
        "Versions": ", ".join(f"{name} {number}" for name, number in report.versions.items()),
    }
    return f"<h1>Full and compressed, side by side</h1>{card('What was asked, and of what', facts(said), 'about')}"


def _settings(report: Report) -> str:
    sides = [dict(settings_rows(result.config)) for result in report.comparison.pairs[0]]
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows, differing = {name: [side.get(name) for side in sides] for name in names}, []
    for name, (full, compressed) in rows.items():
        if full != compressed:
            differing.append(name)
    line = " ".join(f"--set {one}" for one in report.settings)
    said = f"<p>As command-line options: <code>{escape(line)}</code></p>" if line else ""
    changed = _settings_table({name: rows[name] for name in differing}) if differing else ""
    same = "" if differing else "<p>Both sides had the same settings.</p>"
    every = f"<details><summary>Every setting</summary>{_settings_table(rows)}</details>"
    return said + same + changed + every


def _settings_table(rows: dict[str, list[Any]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{_value(one)}</td>" for one in values)}</tr>'
        for name, values in rows.items()
    )
    head = '<th scope="col">Setting</th><th scope="col">Full</th><th scope="col">Compressed</th>'
    return (
        f'<div class="scroll"><table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else escape(str(value))


def _waterfall(results: dict[Side, RunResult]) -> str:
    return plot(plots.waterfall(results), plots.waterfall_table(results))


def _heatmaps(report: Report) -> str:
    result = report.comparison.compressed
    found = result.prune_report
    said = count_html(found) + attention_html(result)
    if not found.frames:
        return said if found.tokens_before else '<p class="empty">The compressed run saw no image or video.</p>'
    drawn = []
    for frame in found.frames[:MOST_PICTURES]:
        picture = report.pictures.get((frame.item, frame.frames[0]))
        size = (picture.width, picture.height) if picture is not None else (frame.columns * 32, frame.rows * 32)
        url = picture.url if picture is not None else None
        figure = plots.heatmap(frame, url, size, "score", OPACITY, WIDTH_PX)
        drawn.append(detail_html(frame) + plot(figure, plots.heatmap_table(frame)))
    left = len(found.frames) - len(drawn)
    more = f'<p class="hint">{count(left)} more frame groups are only in the JSON export.</p>' if left else ""
    return said + "".join(drawn) + more


def _fidelity(report: Report) -> list[str]:
    found = report.comparison.compressed.vision_report
    if found is None or found.method is None:
        return []
    said = fidelity_html(found)
    for frame in (found.fidelity or ())[:MOST_PICTURES]:
        picture = report.pictures.get((frame.item, frame.frames[0]))
        size = (picture.width, picture.height) if picture is not None else (frame.columns * 32, frame.rows * 32)
        figure = plots.fidelity(frame, picture.url if picture is not None else None, size, "similarity", WIDTH_PX)
        said += plot(figure, plots.fidelity_table(frame, "similarity"))
    return [card("What the vision tower left out", said, "fidelity")]


def _experts(results: dict[Side, RunResult]) -> list[str]:
    reports = {side: result.expert_report for side, result in results.items() if result.expert_report is not None}
    if not reports:
        return []
    most = max(load for report in reports.values() for layer in report.layers for load in layer)
    said = experts_html(reports)
    for side in reversed(SIDES):
        if side in reports:
            figure = plot(plots.expert_load(reports[side], most), plots.expert_table(reports[side]))
            said += f"<h3>{SIDE_NAMES[side]}</h3>{figure}"
    return [card("How the experts were used", said, "experts")]


def _precision(results: dict[Side, RunResult]) -> str:
    report = results["compressed"].precision_report
    said = weights_html(results)
    if report is None or not report.layers:
        return said
    return said + errors_html(report) + plot(plots.layer_errors(report), plots.error_table(report))


def _kv(report: Report) -> list[str]:
    found = report.comparison.compressed.kv_report
    if found is None:
        return []
    folded = f"<details><summary>Layer by layer</summary>{kv_table(found)}</details>"
    return [card("What the KV cache held", kv_html(found) + folded, "kv")]


def _warnings(results: dict[Side, RunResult]) -> str:
    lines = [
        f"<li>{SIDE_NAMES[side]}: {escape(text)}</li>" for side, result in results.items() for text in result.warnings
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else '<p class="empty">There were none.</p>'
