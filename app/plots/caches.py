"""How much of what a session's runs looked for was in the caches, run by run."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app.plots.figure import FAINT, SIDE_COLOURS, blank_layout
from app.words import MISSING, count, escape, megabytes, percent, seconds
from engines.reports import CacheStats

HEIGHT = 220
# Line and sign tell the levels apart as well as the colour does.
_STYLES = (("dash", "diamond", SIDE_COLOURS["full"]), ("solid", "circle", SIDE_COLOURS["compressed"]))

Uses = Sequence[dict[str, CacheStats]]
"""What each run asked of each level, the oldest first; a level that was off is left out."""


def cache_history(uses: Uses) -> go.Figure:
    """A line a level over the runs: the hit rate, 0 to 100 %."""
    figure = go.Figure(layout=blank_layout(HEIGHT))
    for (dash, symbol, colour), level in zip(_STYLES, _levels(uses), strict=False):
        runs = [(number, use[level]) for number, use in enumerate(uses, 1) if level in use]
        figure.add_scatter(
            name=f"{level} cache",
            x=[number for number, _ in runs],
            y=[stats.hit_rate for _, stats in runs],
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"color": colour, "symbol": symbol, "size": 8},
            customdata=[[count(stats.tokens), seconds(stats.saved_s)] for _, stats in runs],
            hovertemplate=(
                f"{escape(level)} cache, run %{{x}}<br>%{{y:.0%}} found, %{{customdata[0]}} tokens reused<br>"
                "%{customdata[1]} saved<extra></extra>"
            ),
        )
    figure.update_layout(
        margin={"l": 56, "r": 16, "t": 8, "b": 44},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        showlegend=True,
        xaxis={"title": {"text": "Run of this session"}, "gridcolor": FAINT, "zeroline": False, "fixedrange": True,
               "tickformat": "d", "range": [0.5, max(2, len(uses)) + 0.5]},
        yaxis={"title": {"text": "Hit rate"}, "gridcolor": FAINT, "zeroline": False, "fixedrange": True,
               "tickformat": ".0%", "range": [-0.04, 1.04]},
    )  # fmt: skip
    return figure


def cache_history_table(uses: Uses) -> str:
    """The same as an HTML table, the newest run first."""
    rows = []
    for number, use in reversed(list(enumerate(uses, 1))):
        for level in _levels([use]):
            stats = use[level]
            cells = [
                percent(stats.hit_rate), count(stats.tokens), megabytes(stats.bytes),
                seconds(stats.saved_s) if stats.hits else MISSING,
            ]  # fmt: skip
            rows.append(
                f'<tr><th scope="row">{number}</th><td class="note">{escape(level)}</td>'
                f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
            )
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Hit rate", "Tokens reused", "Bytes reused", "Time saved")
    )
    return (
        '<div class="scroll"><table class="figures caches"><thead><tr><th scope="col">Run</th><th scope="col">Level'
        f"</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _levels(uses: Uses) -> list[str]:
    return sorted({level for use in uses for level in use})
