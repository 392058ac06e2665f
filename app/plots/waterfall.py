"""Where the time of both runs went, on one time axis that starts where each run started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.plots.figure import FAINT, SIDE_COLOURS, SIDE_NAMES, blank_layout
from app.words import MISSING, escape, plural, ratio, seconds, value_words
from engines.compare import SIDES, Side
from engines.results import RunResult
from engines.trace import STAGES, Span, Trace

UNACCOUNTED = "unaccounted"
ROWS = (*STAGES, UNACCOUNTED)
# Many thin bars cost more than they show: longer answers are drawn in groups of tokens.
MOST_TOKEN_BARS = 240
ROW_PX, LANE = 38, 0.36


@dataclass(frozen=True)
class Bar:
    """A stretch of time in one row, in seconds since the run began. `hover` is HTML, already escaped."""

    row: str
    start_s: float
    duration_s: float
    hover: str


def bars(trace: Trace) -> list[Bar]:
    """Every bar of a run. Those of a row add up to the stage's time, all together to the run's."""
    found: list[Bar] = []
    for name in STAGES:
        spans = [span for span in trace.named(name) if span.parent is None]
        # A stage that runs once a token, such as decode, is one row of many short bars.
        size = max(1, -(-len(spans) // MOST_TOKEN_BARS))
        found += [_bar(name, spans[first : first + size]) for first in range(0, len(spans), size)]
    found += [Bar(UNACCOUNTED, start, end - start, "Time in no stage") for start, end in gaps(trace)]
    return found


def _bar(row: str, group: list[Span]) -> Bar:
    """One span, or several neighbours as one bar as long as all of them together."""
    took_s = sum(span.duration_s for span in group)
    if len(group) == 1:
        return Bar(row, group[0].start_s, took_s, _details(group[0].attributes))
    first, last = group[0].attributes.get("token"), group[-1].attributes.get("token")
    label = f"tokens {first} to {last}" if first and last else plural(len(group), "piece")
    return Bar(row, group[0].start_s, took_s, f"{label}, shown as one bar")


def gaps(trace: Trace) -> list[tuple[float, float]]:
    """The stretches of the run that lie in no top-level span."""
    found, reached_s = [], 0.0
    top = sorted((span for span in trace.spans if span.parent is None), key=lambda span: span.start_s)
    for span in top:
        if span.start_s > reached_s:
            found.append((reached_s, span.start_s))
        reached_s = max(reached_s, span.end_s)
    if trace.total_s > reached_s:
        found.append((reached_s, trace.total_s))
    return found


def _details(attributes: dict[str, Any]) -> str:
    parts = [f"{name.replace('_', ' ')}: {value_words(name, value)}" for name, value in attributes.items()]
    return "<br>".join(escape(part) for part in parts)


def waterfall(results: dict[Side, RunResult]) -> go.Figure:
    """One row a stage, with a lane for each run; hover shows the duration and what was counted."""
    figure = go.Figure(layout=blank_layout(ROW_PX * len(ROWS) + 90))
    end_s = max(result.trace.total_s for result in results.values())
    position = {row: index for index, row in enumerate(ROWS)}
    for side in SIDES:
        if side not in results:
            continue
        lane = -LANE / 2 if side == "full" else LANE / 2
        shown = bars(results[side].trace)
        for own, group in (
            (True, [bar for bar in shown if bar.row != UNACCOUNTED]),
            (False, [bar for bar in shown if bar.row == UNACCOUNTED]),
        ):
            figure.add_bar(
                orientation="h",
                name=SIDE_NAMES[side],
                legendgroup=side,
                showlegend=own,
                y=[position[bar.row] + lane for bar in group],
                base=[bar.start_s for bar in group],
                x=[bar.duration_s for bar in group],
                width=[LANE * 0.92] * len(group),
                customdata=[[bar.row, seconds(bar.duration_s), seconds(bar.start_s), bar.hover] for bar in group],
                marker={
                    "color": SIDE_COLOURS[side],
                    "opacity": 1.0 if own else 0.6,
                    # A pattern besides the colour, for those who cannot tell the colours apart.
                    "pattern": {
                        "shape": ("" if side == "full" else "/") if own else ".",
                        "fillmode": "overlay",
                        "fgcolor": "rgba(255,255,255,0.55)",
                        "size": 6,
                        "solidity": 0.2,
                    },
                    # Neighbouring tokens are told apart by a light edge, which would hide a bar thinner than itself.
                    "line": {
                        "width": [0.5 if bar.duration_s > 0.005 * end_s else 0 for bar in group],
                        "color": "rgba(255,255,255,0.6)",
                    },
                },
                hovertemplate=(
                    f"<b>%{{customdata[0]}}</b> · {SIDE_NAMES[side].lower()}<br>%{{customdata[1]}}"
                    " from %{customdata[2]}<br>%{customdata[3]}<extra></extra>"
                ),
            )
    figure.update_layout(
        barmode="overlay",
        margin={"l": 132, "r": 12, "t": 44, "b": 48},
        legend={"orientation": "h", "x": 0, "xref": "container", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        xaxis={
            "range": [0, end_s * 1.01],
            "title": {"text": "Since the run began", "standoff": 8},
            "gridcolor": FAINT,
            "zeroline": False,
            "ticksuffix": " s",
            "showticksuffix": "last",
            "fixedrange": True,
            "nticks": 6,
            "tickangle": 0,
        },
        yaxis={
            "range": [len(ROWS) - 0.5, -0.5],
            "tickvals": list(position.values()),
            "ticktext": [row[0].upper() + row[1:] for row in ROWS],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    for index in range(1, len(ROWS)):
        figure.add_hline(y=index - 0.5, line={"width": 1, "color": FAINT}, layer="below")
    return figure


def waterfall_table(results: dict[Side, RunResult]) -> str:
    """The same as an HTML table, with the ratio and what each stage counted."""
    lines = []
    for row in ROWS:
        times = {side: _row_seconds(results[side].trace, row) for side in SIDES if side in results}
        full, compressed = times.get("full"), times.get("compressed")
        quotient = compressed / full if compressed is not None and full else None
        notes = [
            f"{SIDE_NAMES[side]}: {detail}"
            for side in SIDES
            if side in results and (detail := _row_details(results[side].trace, row))
        ]
        cells = "".join(
            f"<td>{'not run' if row in STAGES and side in results and value is None else seconds(value)}</td>"
            for side, value in (("full", full), ("compressed", compressed))
        )
        lines.append(
            f'<tr><th scope="row">{row}</th>{cells}<td>{ratio(quotient)}</td>'
            f'<td class="note">{"<br>".join(notes) or MISSING}</td></tr>'
        )
    totals = [seconds(results[side].trace.total_s) if side in results else MISSING for side in SIDES]
    both = all(side in results for side in SIDES)
    whole = ratio(results["compressed"].trace.total_s / results["full"].trace.total_s) if both else MISSING
    lines.append(
        f'<tr class="sum"><th scope="row">end to end</th><td>{totals[0]}</td><td>{totals[1]}</td><td>{whole}</td>'
        "<td></td></tr>"
    )
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">Stage</th><th scope="col">Full</th>'
        '<th scope="col">Compressed</th><th scope="col">Ratio</th>'
        '<th scope="col" class="note">Counted</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row_seconds(trace: Trace, row: str) -> float | None:
    if row == UNACCOUNTED:
        return sum(end - start for start, end in gaps(trace))
    return trace.stage_s(row) if trace.named(row) else None


def _row_details(trace: Trace, row: str) -> str:
    spans = trace.named(row)
    if len(spans) > 1:
        return plural(len(spans), "span")
    return _details(spans[0].attributes).replace("<br>", ", ") if spans else ""
