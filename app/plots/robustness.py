"""Accuracy on ever poorer pictures: one line a side, one panel a kind of distortion."""

from __future__ import annotations

import plotly.graph_objects as go

from app.plots.figure import FAINT, SIDE_COLOURS, SIDE_NAMES, blank_layout
from app.words import MISSING, count, escape
from engines.compare import SIDES
from engines.evaluation import Score
from engines.judge.ladder import CLEAN, Rung
from engines.judge.robustness import LevelScore, Robustness

HEIGHT = 340
KINDS = {"noise": "Noise: signal over noise", "perspective": "Perspective: corners moved in"}
# The sides differ in shape and dash too, not in colour alone.
MARKS = {"full": ("square", "dot"), "compressed": ("circle", "solid")}
ALL = "All questions"


def robustness(found: Robustness, category: str = ALL) -> go.Figure:
    """Shares of right answers with their 95 % Wilson intervals; the clean level begins both panels."""
    figure = go.Figure(layout=blank_layout(HEIGHT))
    for panel, (kind, title) in enumerate(KINDS.items(), start=1):
        rungs = [CLEAN, *(rung for rung in found.rungs if rung.kind == kind)]
        for side in SIDES:
            scores = [(rung, _score(found.of(side, rung), category)) for rung in rungs]
            known = [(rung, score) for rung, score in scores if score is not None and score.asked]
            symbol, dash = MARKS[side]
            figure.add_scatter(
                x=[rung.label for rung, _ in known],
                y=[score.accuracy for _, score in known],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [(score.high or 0) - (score.accuracy or 0) for _, score in known],
                    "arrayminus": [(score.accuracy or 0) - (score.low or 0) for _, score in known],
                    "thickness": 1.2,
                    "width": 4,
                },
                mode="lines+markers",
                marker={"size": 8, "color": SIDE_COLOURS[side], "symbol": symbol},
                line={"color": SIDE_COLOURS[side], "width": 2, "dash": dash},
                customdata=[[interval(score), count(score.asked)] for _, score in known],
                hovertemplate=f"{SIDE_NAMES[side]}, %{{x}}<br>%{{y:.1%}} right, %{{customdata[0]}}"
                "<br>%{customdata[1]} questions<extra></extra>",
                name=SIDE_NAMES[side],
                legendgroup=side,
                showlegend=panel == 1,
                xaxis="x" if panel == 1 else "x2",
            )
        axis = {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [rung.label for rung in rungs],
            "domain": [0, 0.47] if panel == 1 else [0.53, 1],
            "title": {"text": title, "standoff": 8, "font": {"size": 11}},
            "fixedrange": True,
            "tickangle": 0,
            "tickfont": {"size": 10},
        }
        figure.update_layout({"xaxis" if panel == 1 else "xaxis2": axis})
    figure.update_layout(
        margin={"l": 52, "r": 12, "t": 34, "b": 48},
        yaxis={"range": [0, 1.02], "tickformat": ".0%", "gridcolor": FAINT, "zeroline": False, "fixedrange": True},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )
    return figure


def robustness_table(found: Robustness) -> str:
    """A row a side and category, a column a level: accuracy, interval, and points to the clean level."""
    head = "".join(f'<th scope="col">{escape(_name(rung))}</th>' for rung in found.rungs)
    rows = []
    for name in (ALL, *found.categories):
        for side in SIDES:
            cells = "".join(_cell(found.of(side, rung), name) for rung in found.rungs)
            rows.append(
                f'<tr data-side="{side}" data-category="{escape(name)}"><th scope="row">{escape(name)}</th>'
                f'<td class="word">{SIDE_NAMES[side]}</td>{cells}</tr>'
            )
    return (
        '<p class="hint">Right answers, with the 95 % Wilson interval, and the difference to the same side\'s clean'
        ' level in percentage points, over the same questions.</p><div class="scroll"><table class="figures"><thead>'
        f'<tr><th scope="col">Category</th><th scope="col" class="word">Side</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return MISSING
    return f"{score.low * 100:.0f} to {score.high * 100:.0f} %"


def points_words(points: float | None) -> str:
    """-3.1 points, with a real minus."""
    return MISSING if points is None else f"{points:+.1f}".replace("-", "−")


def _name(rung: Rung) -> str:
    return rung.label if rung == CLEAN else f"{rung.kind} {rung.label}"


def _score(level: LevelScore, category: str) -> Score | None:
    return level.overall if category == ALL else level.categories.get(category)


def _cell(level: LevelScore, category: str) -> str:
    score = _score(level, category)
    if score is None or score.accuracy is None:
        return f"<td>{MISSING}</td>"
    points = level.points if category == ALL else level.category_points.get(category)
    change = "" if level.rung == CLEAN else f"<br>{points_words(points)}"
    return (
        f'<td data-right="{score.right}" data-asked="{score.asked}">{score.accuracy * 100:.1f} %{change}'
        f"<br><small>{interval(score)}</small></td>"
    )
