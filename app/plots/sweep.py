"""A sweep's points: what each costs against how good it is, with the Pareto front as a line."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app.plots.figure import FAINT, GREY, SIDE_COLOURS, blank_layout
from app.words import MISSING, count, escape, megabytes, percent, ratio, seconds
from engines.evaluation import Score
from engines.sweep.front import COSTS, QUALITIES, pareto_front
from engines.sweep.medians import Median
from engines.sweep.results import PointResult
from engines.sweep.space import Point

HEIGHT = 420
COST_NAMES = {
    "total": "End to end",
    "ttft": "Time to first token",
    "weights": "Weights",
    "kv_cache": "KV cache",
    "peak_memory": "Peak memory",
}
QUALITY_NAMES = {
    "accuracy": "Right answers",
    "agreement": "Same answer as the full model",
    "kl": "Divergence from the full model, nats",
}
_TIMES = {"total": ("total_s", "total_ratio"), "ttft": ("ttft_s", "ttft_ratio")}
MIB = 1 << 20


def settings_words(settings: Point) -> str:
    """As they are given to `--set`, which is also how they are told apart."""
    return " ".join(settings) or "full model"


def quality_words(point: PointResult, quality: str) -> str:
    """84.0 % (76 to 90 %), with the 95 % Wilson interval of a share."""
    if quality == "kl":
        return MISSING if point.kl is None else f"{point.kl:.4f} nats"
    score = _score(point, quality)
    if score is None or score.accuracy is None or score.low is None or score.high is None:
        return MISSING
    return f"{score.accuracy * 100:.1f} % ({score.low * 100:.0f} to {score.high * 100:.0f} %)"


def cost_words(point: PointResult, cost: str) -> str:
    if cost not in _TIMES:
        found = COSTS[cost](point)
        return megabytes(None if found is None else round(found))
    median, times = (getattr(point, name) for name in _TIMES[cost])
    return f"{_median(median)}, {ratio(times.value)} of full" if median and times else _median(median)


def sweep_front(points: Sequence[PointResult], cost: str, quality: str, chosen: Point | None = None) -> go.Figure:
    """Every point with both figures. Those on the front are diamonds on a line, with their bounds; the full model is a
    square, the chosen point has a ring."""
    figure = go.Figure(layout=blank_layout(HEIGHT))
    front = pareto_front(points, COSTS[cost], QUALITIES[quality])
    on_front = {point.settings for point in front}
    shown = [point for point in points if COSTS[cost](point) is not None and QUALITIES[quality](point) is not None]
    accent, grey = SIDE_COLOURS["compressed"], SIDE_COLOURS["full"]
    groups = (
        ("Beaten in both", [one for one in shown if one.settings not in on_front and not one.is_full], "markers",
         {"size": 9, "symbol": "circle-open", "color": GREY, "line": {"width": 1.5}}),
        ("Pareto front", list(front), "lines+markers", {"size": 11, "symbol": "diamond", "color": accent}),
        ("Full model", [one for one in shown if one.is_full], "markers",
         {"size": 13, "symbol": "square-open", "color": grey, "line": {"width": 2.5}}),
        ("Chosen", [one for one in shown if one.settings == chosen], "markers",
         {"size": 22, "symbol": "circle-open", "color": accent, "line": {"width": 2.5}}),
    )  # fmt: skip
    for name, members, mode, marker in groups:
        bars = _bars(members, cost, quality) if name == "Pareto front" else {}
        figure.add_scatter(
            x=[_x(point, cost) for point in members],
            y=[_y(point, quality) for point in members],
            mode=mode,
            marker=marker,
            line={"color": accent, "width": 2},
            customdata=[
                ["<br>".join(map(escape, point.settings)) or "full model", quality_words(point, quality),
                 cost_words(point, cost), count(point.asked)]
                for point in members
            ],
            hovertemplate="%{customdata[0]}<br>" + QUALITY_NAMES[quality] + ": %{customdata[1]}<br>"
            + COST_NAMES[cost] + ": %{customdata[2]}<br>%{customdata[3]} questions<extra></extra>",
            hoverinfo="skip" if name == "Chosen" else None,
            name=name,
            showlegend=bool(members),
            **bars,
        )  # fmt: skip
    unit = "ms, median" if cost in _TIMES else "MiB"
    figure.update_layout(
        margin={"l": 64, "r": 20, "t": 40, "b": 52},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={
            "title": {"text": f"{COST_NAMES[cost]} ({unit}); less is better", "standoff": 8, "font": {"size": 11}},
            "gridcolor": FAINT, "zeroline": False, "fixedrange": True, "nticks": 7,
        },
        yaxis={
            "title": {"text": QUALITY_NAMES[quality], "standoff": 8, "font": {"size": 11}},
            "tickformat": "" if quality == "kl" else ".0%",
            # Better is up, whatever is shown.
            "autorange": "reversed" if quality == "kl" else True,
            "gridcolor": FAINT, "zeroline": False, "fixedrange": True,
        },
    )  # fmt: skip
    return figure


def sweep_table(points: Sequence[PointResult], cost: str, quality: str) -> str:
    """The same as an HTML table, in the order in which the points were planned; every figure that was measured."""
    front = {point.settings for point in pareto_front(points, COSTS[cost], QUALITIES[quality])}
    head = ("Front", "Right (95 %)", "Same answer (95 %)", "Divergence", "First token", "Of full", "End to end",
            "Of full", "Weights", "KV cache", "Peak", "Questions", "Failed")  # fmt: skip
    body = []
    for point in points:
        on = point.settings in front
        cells = (
            "yes" if on else "no", quality_words(point, "accuracy"), quality_words(point, "agreement"),
            quality_words(point, "kl"), _median(point.ttft_s), _ratio(point.ttft_ratio), _median(point.total_s),
            _ratio(point.total_ratio), megabytes(point.weight_bytes), megabytes(point.kv_bytes),
            megabytes(point.peak_bytes), count(point.asked), count(point.failed),
        )  # fmt: skip
        body.append(
            f'<tr data-front="{str(on).lower()}"><th scope="row">{escape(settings_words(point.settings))}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        f'<p class="hint">The front is that of {COST_NAMES[cost].lower()} against {QUALITY_NAMES[quality].lower()}.'
        " Times are medians over the timed questions with bounds that hold the true median with 95 % confidence from"
        ' six questions on.</p><div class="scroll"><table class="figures"><thead><tr><th scope="col">Settings</th>'
        f"{columns}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def categories_table(point: PointResult) -> str:
    """Right answers of one point by every kind of group; empty for a set without any."""
    rows = [
        f'<tr><th scope="row">{escape(kind)}: {escape(name)}</th><td>{percent(score.accuracy)}</td>'
        f"<td>{percent(score.low)} to {percent(score.high)}</td><td>{count(score.asked)}</td></tr>"
        for kind, scores in point.groups.items()
        for name, score in scores.items()
    ]
    if not rows:
        return ""
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">Group</th><th scope="col">Right</th>'
        '<th scope="col">95 % interval</th><th scope="col">Questions</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _score(point: PointResult, quality: str) -> Score | None:
    return point.score if quality == "accuracy" else point.agreement


def _x(point: PointResult, cost: str) -> float:
    found = COSTS[cost](point)
    assert found is not None
    return found * 1e3 if cost in _TIMES else found / MIB


def _y(point: PointResult, quality: str) -> float:
    found = QUALITIES[quality](point)
    assert found is not None
    return abs(found) if quality == "kl" else found


def _bars(points: Sequence[PointResult], cost: str, quality: str) -> dict[str, object]:
    """Bounds of the medians, and the intervals of the shares."""
    look = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4}
    bars: dict[str, object] = {}
    if cost in _TIMES:
        medians: list[Median] = [getattr(point, _TIMES[cost][0]) for point in points]
        bars["error_x"] = {
            **look,
            "array": [(one.high - one.value) * 1e3 for one in medians],
            "arrayminus": [(one.value - one.low) * 1e3 for one in medians],
        }
    if quality != "kl":
        scores = [score for point in points if (score := _score(point, quality)) is not None]
        bars["error_y"] = {
            **look,
            "array": [(score.high or 0) - (score.accuracy or 0) for score in scores],
            "arrayminus": [(score.accuracy or 0) - (score.low or 0) for score in scores],
        }
    return bars


def _median(median: Median | None) -> str:
    if median is None:
        return MISSING
    bounds = f" ({seconds(median.low)} to {seconds(median.high)})" if median.n > 1 else ""
    return seconds(median.value) + bounds


def _ratio(median: Median | None) -> str:
    return MISSING if median is None else ratio(median.value)
