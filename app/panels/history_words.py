"""Kept comparisons in words: a line in the list, a card, and two of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.report import Report
from app.session import Picture
from app.words import MISSING, count, escape, megabytes, ratio, seconds
from engines.compare import SIDES
from engines.history import Summary

MOST_CHARACTERS = 500


def _speed(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


def _whole(value: float | None) -> str:
    return MISSING if value is None else count(round(value))


def _bytes(value: float | None) -> str:
    return MISSING if value is None else megabytes(round(value))


FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "ttft": ("Time to first token", seconds),
    "tpot": ("Time per output token", seconds),
    "tokens_per_s": ("Tokens per second", _speed),
    "total": ("End to end", seconds),
    "vision_encode": ("Vision encode", seconds),
    "prefill": ("Prefill", seconds),
    "visual_tokens": ("Visual tokens", _whole),
    "expert_pairs": ("Expert pairs computed", _whole),
    "peak_memory": ("Peak memory", _bytes),
    "weights": ("Weights", _bytes),
    "kv_cache": ("KV cache", _bytes),
}


def summary_of(report: Report, thumbnail: Picture | None) -> dict[str, Any]:
    """What the list and the cards show of a comparison, without reading all of it."""
    comparison = report.comparison
    return {
        "question": report.question[:MOST_CHARACTERS],
        "media": list(report.media),
        "answers": [result.answer[:MOST_CHARACTERS] for result in comparison.pairs[0]],
        "same": comparison.first_difference is None,
        "settings": list(report.settings),
        "ttft_ratio": comparison.ratios()["ttft"],
        "ttft_s": [comparison.medians(side)["ttft"] for side in SIDES],
        "pairs": len(comparison.pairs),
        "model": report.model,
        "device": report.device,
        "thumbnail": thumbnail.url if thumbnail is not None else None,
    }


def words_of(report: Report) -> str:
    """What a search looks in."""
    answers = (result.answer for result in report.comparison.pairs[0])
    return " ".join([report.question, *report.media, *answers, *report.settings, report.model, report.made_at])


def when(made_at: str) -> str:
    return made_at[:16].replace("T", " ") + " UTC"


def line(entry: Summary) -> str:
    """Plain text: when, what was asked, and what came of it."""
    values = entry.values
    question = values["question"] if len(values["question"]) <= 60 else values["question"][:59] + "…"
    found = "same answers" if values["same"] else "answers differ"
    speed = f"first token {ratio(values['ttft_ratio'])}" if values["ttft_ratio"] is not None else ""
    return " · ".join(part for part in (when(entry.made_at), question, found, speed) if part)


def card(entry: Summary) -> str:
    """One kept comparison: picture, both answers, settings and the times."""
    values = entry.values
    picture = f'<img src="{escape(values["thumbnail"])}" alt="">' if values["thumbnail"] else ""
    answers = "".join(
        f"<dt>{name}</dt><dd>{escape(answer) or '<i>empty</i>'}</dd>"
        for name, answer in zip(("Full", "Compressed"), values["answers"], strict=True)
    )
    times = " and ".join(seconds(time) for time in values["ttft_s"])
    pairs = f", medians of {values['pairs']} pairs" if values["pairs"] > 1 else ""
    return (
        f'<article class="kept" data-entry="{entry.id}">{picture}<div>'
        f"<h3>{escape(values['question'])}</h3><dl class='facts'>{answers}"
        f"<dt>Settings</dt><dd>{escape(' '.join(values['settings'])) or 'all off'}</dd>"
        f"<dt>First token</dt><dd>{times} ({ratio(values['ttft_ratio'])}){pairs}</dd>"
        f"<dt>Made</dt><dd>{when(entry.made_at)}, {escape(values['model'])}, {escape(values['device'])}</dd></dl></div>"
        "</article>"
    )


def side_by_side(reports: Sequence[Report]) -> str:
    """Two kept comparisons as a table; the last column is the second's compressed side over the first's."""
    _first, _second = reports
    said = {
        "Question": [report.question for report in reports],
        "Media": [", ".join(report.media) or "none" for report in reports],
        "Made": [when(report.made_at) for report in reports],
        "Model": [report.model for report in reports],
        "Checkpoint": [report.digest[:16] for report in reports],
        "Device": [report.device for report in reports],
        "Compressed settings": [" ".join(report.settings) or "all off" for report in reports],
        "Full answer": [report.comparison.full.answer for report in reports],
        "Compressed answer": [report.comparison.compressed.answer for report in reports],
    }
    rows = [
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td colspan="2" class="note">{escape(value)}</td>' for value in values)
        + f"<td>{'same' if values[0] == values[1] else 'differs'}</td></tr>"
        for name, values in said.items()
    ]
    medians = [report.comparison.medians(side) for report in reports for side in SIDES]
    for name, (label, show) in FIGURES.items():
        before, after = medians[1][name], medians[3][name]
        quotient = after / before if before and after is not None else None
        cells = "".join(f"<td>{show(figures[name])}</td>" for figures in medians)
        rows.append(f'<tr data-figure="{name}"><th scope="row">{label}</th>{cells}<td>{ratio(quotient)}</td></tr>')
    columns = ("First: full", "First: compressed", "Second: full", "Second: compressed", "Second / first, compressed")
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    different = [name for name in ("Question", "Media", "Model", "Checkpoint", "Device") if len(set(said[name])) > 1]
    note = (
        f'<p class="hint">Not like with like: {", ".join(different).lower()} differ, so the last column says little of '
        "the settings.</p>"
        if different
        else ""
    )
    return (
        f'{note}<div class="scroll"><table class="figures" id="history-table"><thead>'
        f'<tr><th scope="col"></th>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
