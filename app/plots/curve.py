"""Prefill speed against the share of (token, expert) pairs skipped."""

from __future__ import annotations

import statistics

import plotly.graph_objects as go

from app.plots.figure import FAINT, SIDE_COLOURS, blank_layout
from app.words import count, escape, percent
from engines.experts.curve import Curve

HEIGHT = 320


def speed_curve(curve: Curve) -> go.Figure:
    """A point a strength: the median, with a bar from the slowest to the fastest run; at 0 the runs beside them that
    skipped nothing."""
    rows = _rows(curve)
    figure = go.Figure(layout=blank_layout(HEIGHT))
    medians = [statistics.median(speeds) for _, _, speeds in rows]
    figure.add_scatter(
        x=[share for share, _, _ in rows],
        y=medians,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [max(speeds) - median for median, (_, _, speeds) in zip(medians, rows, strict=True)],
            "arrayminus": [median - min(speeds) for median, (_, _, speeds) in zip(medians, rows, strict=True)],
            "thickness": 1.5,
            "width": 5,
        },
        mode="lines+markers",
        marker={"size": 8, "color": SIDE_COLOURS["compressed"], "symbol": ["square", *["circle"] * (len(rows) - 1)]},
        line={"color": SIDE_COLOURS["compressed"], "width": 2},
        customdata=[[percent(share), name, count(len(speeds))] for share, name, speeds in rows],
        hovertemplate=(
            "%{customdata[0]} of the pairs skipped<br>%{y:.0f} tokens/s, median of %{customdata[2]} runs<br>"
            "%{customdata[1]}<extra></extra>"
        ),
        showlegend=False,
    )
    figure.update_layout(
        margin={"l": 64, "r": 20, "t": 12, "b": 48},
        xaxis={
            "range": [-0.03, 1.0],
            "title": {"text": "Pairs skipped in prefill (measured)", "standoff": 8},
            "tickformat": ".0%",
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
        },
        yaxis={
            "rangemode": "tozero",
            "title": {"text": "Prefill tokens/s", "standoff": 8},
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    return figure


def speed_table(curve: Curve) -> str:
    """The same as an HTML table, with each point's speed over that of the runs beside it."""
    body = []
    paired = [None, *(point.ratios for point in sorted(curve.points, key=lambda point: point.skipped))]
    for (share, name, speeds), ratios in zip(_rows(curve), paired, strict=True):
        times = (
            "1.00x" if ratios is None else f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        body.append(
            f'<tr data-share="{share:.4f}"><th scope="row">{escape(name)}</th><td>{percent(share)}</td>'
            f"<td>{count(round(statistics.median(speeds)))}</td><td>{count(round(min(speeds)))} to"
            f" {count(round(max(speeds)))}</td><td>{times}</td><td>{count(len(speeds))}</td></tr>"
        )
    return (
        f'<p class="hint">Prefill of {count(curve.tokens)} tokens with the method {escape(curve.method)}. Times'
        ' unskipped: the median over pairs of runs, and the lowest and highest.</p><div class="scroll">'
        '<table class="figures"><thead><tr><th scope="col">Strength</th><th scope="col">Skipped</th>'
        '<th scope="col">Tokens/s</th><th scope="col">Slowest to fastest</th><th scope="col">Times unskipped</th>'
        f'<th scope="col">Runs</th></tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _rows(curve: Curve) -> list[tuple[float, str, list[float]]]:
    """(share, what was set, speeds) from little skipped to much, after the runs that skipped nothing."""
    full = [speed for point in curve.points for speed in point.full_tokens_per_s]
    rows = [(0.0, "nothing skipped", full)]
    for point in sorted(curve.points, key=lambda point: point.skipped):
        strength = ", ".join(f"{name} {value:g}" for name, value in point.options.items())
        rows.append((point.skipped, strength, [*point.tokens_per_s]))
    return rows
