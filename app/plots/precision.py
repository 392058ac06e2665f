"""What number formats do, layer by layer: the error of quantised layers, and what fp16 would lose."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from app.plots.figure import FAINT, GREY, SIDE_COLOURS, blank_layout
from app.words import count, escape, plural
from engines.reports import CollapseLayer, CollapseReport, LayerError, PrecisionReport

HEIGHT = 300
LARGEST_FP16 = 65_504
# (attribute, name, colour, symbol): a shape besides the colour, for those who cannot tell the colours apart.
LOSSES = (
    ("flushed", "Flushed to zero", "#6a5acd", "circle"),
    ("subnormal", "Digits lost", GREY, "diamond-open"),
    ("overflowed", "Overflow", "#d1495b", "x"),
)


def layer_errors(report: PrecisionReport) -> go.Figure:
    """A dot a quantised layer, in the order of the parts; a second one where it is compensated."""
    layers = report.layers
    figure = go.Figure(layout=blank_layout(HEIGHT))
    compensated = any(layer.rank for layer in layers)
    series = [("before", "Quantised", SIDE_COLOURS["full"], "circle-open")]
    if compensated:
        series.append(("after", "With compensation", SIDE_COLOURS["compressed"], "circle"))
    for attribute, name, colour, symbol in series:
        figure.add_scatter(
            x=list(range(1, len(layers) + 1)),
            y=[getattr(layer, attribute) for layer in layers],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 7},
            customdata=[
                [escape(layer.path), layer.precision, precise_percent(getattr(layer, attribute))] for layer in layers
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}, "
            f"{name.lower()}: %{{customdata[2]}}<extra></extra>",
        )
    figure.update_layout(**_axes("Error of the output", "Quantised layer", legend=compensated))
    return figure


def error_table(report: PrecisionReport) -> str:
    rows = "".join(map(_error_row, report.layers))
    columns = ("Part", "Precision", "Error", "With compensation", "Rank", "Parameters", "Added")
    return _table("Layer", columns, rows)


def _error_row(layer: LayerError) -> str:
    cells = [
        layer.part,
        layer.precision,
        precise_percent(layer.before),
        precise_percent(layer.after) if layer.rank else "off",
        count(layer.rank),
        count(layer.parameters),
        count(layer.added_parameters),
    ]
    return _row(layer.path, cells)


def collapse(report: CollapseReport) -> go.Figure:
    """By layer, in the order of the model, the shares of its values that fp16 would lose."""
    layers = report.layers
    figure = go.Figure(layout=blank_layout(HEIGHT))
    for attribute, name, colour, symbol in LOSSES:
        shares = [getattr(layer, attribute) / layer.values for layer in layers]
        figure.add_scatter(
            x=list(range(1, len(layers) + 1)),
            y=shares,
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 7},
            customdata=[
                [escape(layer.path), precise_percent(share), f"{layer.largest:.4g}"]
                for layer, share in zip(layers, shares, strict=True)
            ],
            hovertemplate=f"%{{customdata[0]}}<br>{name}: %{{customdata[1]}}<br>"
            "Largest value: %{customdata[2]}<extra></extra>",
        )
    figure.update_layout(**_axes("Share of the values", "Layer", legend=True))
    return figure


def collapse_table(report: CollapseReport) -> str:
    rows = "".join(map(_collapse_row, report.layers))
    columns = ("Part", "Values", "Flushed to zero", "Digits lost", "Overflow", "Largest value")
    return _table("Layer", columns, rows)


def _collapse_row(layer: CollapseLayer) -> str:
    shares = [precise_percent(getattr(layer, name) / layer.values) for name, *_ in LOSSES]
    return _row(layer.path, [layer.part, count(layer.values), *shares, f"{layer.largest:.4g}"])


def collapse_words(report: CollapseReport) -> str:
    """What the run says of fp16, in a sentence or two."""
    values = sum(layer.values for layer in report.layers)
    over = report.overflowing
    flushed = sum(layer.flushed for layer in report.layers) / values if values else None
    verdict = (
        f"{plural(len(over), 'layer')} would overflow in fp16, the first of them {over[0].path}: use bf16 or fp32 for"
        f" {', '.join(dict.fromkeys(layer.part for layer in over))}."
        if over
        else f"No value would overflow in fp16, which ends at {count(LARGEST_FP16)}."
    )
    return (
        f"{verdict} {precise_percent(flushed)} of {count(values)} values would become zero. Run in {report.native},"
        f" {plural(report.prompt_tokens, 'prompt token')} and {plural(report.answer_tokens, 'answer token')}."
    )


def precise_percent(value: float | None) -> str:
    """Small shares with as many digits as it takes to tell them from nothing."""
    if value is None:
        return "—"
    if value == 0:
        return "0 %"
    return f"{value * 100:.3g} %" if value >= 1e-5 else f"{value * 100:.1e} %"


def _axes(vertical: str, horizontal: str, *, legend: bool) -> dict[str, Any]:
    return {
        "margin": {"l": 64, "r": 16, "t": 34 if legend else 12, "b": 44},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
        "xaxis": {
            "title": {"text": horizontal, "standoff": 6},
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
            "tickangle": 0,
        },
        "yaxis": {
            "title": {"text": vertical, "standoff": 6},
            "tickformat": ".3~%",
            "rangemode": "tozero",
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
        },
    }


def _table(first: str, columns: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        f'<div class="scroll"><table class="figures"><thead><tr><th scope="col">{first}</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(name: str, cells: list[str]) -> str:
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
