"""How much each expert of each layer was used, and what each layer skipped."""

from __future__ import annotations

import plotly.graph_objects as go

from app.plots.figure import FAINT, blank_layout
from app.words import MISSING, count, percent
from engines.reports import ExpertReport

# Yellow-green and violet, as at the two ends of viridis: they differ in lightness too.
KIND_COLOURS = {"visual": "#5dc863", "text": "#6a5acd"}
KIND_NAMES = {"visual": "Visual tokens", "text": "Text tokens"}
# Where the heatmap ends and the bars of the skipped shares begin, in parts of the width.
HEAT_END, BARS_START = 0.72, 0.78
TOP_PX, BOTTOM_PX = 34, 100


def expert_load(report: ExpertReport, most: int) -> go.Figure:
    """One row a layer, one cell an expert: the pairs that it computed. Where pairs were skipped, a bar for each kind
    of token beside the row says which share.

    `most` is the load of the brightest colour, the same for both runs, so that they can be compared.
    """
    layers = len(report.layers)
    skipped = bool(report.skipped_share)
    figure = go.Figure(layout=blank_layout(plot_height(layers)))
    figure.add_heatmap(
        z=report.layers,
        x=list(range(1, report.experts + 1)),
        y=list(range(1, layers + 1)),
        zmin=0,
        zmax=max(most, 1),
        colorscale="Viridis",
        xgap=1,
        ygap=1,
        customdata=[[percent(load / sum(row)) if sum(row) else MISSING for load in row] for row in report.layers],
        hovertemplate="Layer %{y}, expert %{x}<br>%{z} pairs, %{customdata} of the layer's<extra></extra>",
        colorbar={
            "orientation": "h",
            "thickness": 10,
            "len": 0.5,
            "x": HEAT_END / 2 if skipped else 0.5,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "ypad": 4,
            "outlinewidth": 0,
            "title": {"text": "Pairs (token, expert) computed", "side": "bottom", "font": {"size": 11}},
            "nticks": 5,
            "tickangle": 0,
        },
    )
    if skipped:
        _add_bars(figure, report)
    figure.update_layout(
        margin={"l": 54, "r": 26, "t": TOP_PX, "b": BOTTOM_PX},
        barmode="group",
        bargap=0.25,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        xaxis={
            "domain": [0, HEAT_END if skipped else 1],
            "title": {"text": "Expert", "standoff": 4},
            "tick0": 1,
            "dtick": -(-report.experts // 8),
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "tickangle": 0,
        },
        xaxis2={
            "domain": [BARS_START, 1],
            "range": [0, 1],
            "title": {"text": "Pairs skipped", "standoff": 4},
            "tickvals": [0, 0.5, 1],
            "ticktext": ["0", "50 %", "100 %"],
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
            "tickangle": 0,
        },
        yaxis={
            "range": [layers + 0.5, 0.5],
            "title": {"text": "Layer", "standoff": 4},
            "tick0": 1,
            "dtick": -(-layers // 16),
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    return figure


def _add_bars(figure: go.Figure, report: ExpertReport) -> None:
    for kind, name in KIND_NAMES.items():
        shares = _shares(report, kind)
        figure.add_bar(
            orientation="h",
            name=name,
            x=shares,
            y=list(range(1, len(shares) + 1)),
            xaxis="x2",
            customdata=[percent(share) for share in shares],
            marker={
                "color": KIND_COLOURS[kind],
                # A pattern besides the colour, for those who cannot tell the colours apart.
                "pattern": {
                    "shape": "" if kind == "visual" else "/",
                    "fillmode": "overlay",
                    "fgcolor": "rgba(255,255,255,0.55)",
                    "size": 6,
                    "solidity": 0.2,
                },
                "line": {"width": 0},
            },
            hovertemplate=f"Layer %{{y}}<br>{name}: %{{customdata}} of the pairs skipped<extra></extra>",
        )


def plot_height(layers: int) -> int:
    """Screen pixels: a row is as tall as it can be read, within bounds for the whole."""
    return min(620, max(120, 22 * layers)) + TOP_PX + BOTTOM_PX


def _shares(report: ExpertReport, kind: str) -> list[float | None]:
    """By layer the share of pairs skipped, None where it had no token of this kind."""
    pairs = report.visual if kind == "visual" else report.text
    return [
        skipped / (computed + skipped) if computed + skipped else None
        for computed, skipped in zip(pairs.computed, pairs.skipped, strict=True)
    ]


def expert_table(report: ExpertReport) -> str:
    """The same as an HTML table: a row a layer, with the skipped shares and every expert's load."""
    head = "".join(f'<th scope="col">{expert}</th>' for expert in range(1, report.experts + 1))
    body = []
    shares = zip(_shares(report, "visual"), _shares(report, "text"), strict=True)
    for layer, (loads, (visual, text)) in enumerate(zip(report.layers, shares, strict=True), start=1):
        cells = "".join(f"<td>{count(load)}</td>" for load in loads)
        body.append(
            f'<tr><th scope="row">{layer}</th><td>{percent(visual)}</td><td>{percent(text)}</td>'
            f"<td>{count(sum(loads))}</td>{cells}</tr>"
        )
    return (
        '<p class="hint">By layer: the share of pairs skipped for visual and for text tokens, all pairs computed, and'
        ' those of each expert.</p><div class="scroll"><table class="figures grid"><thead><tr>'
        '<th scope="col">Layer</th><th scope="col">Visual skipped</th><th scope="col">Text skipped</th>'
        f'<th scope="col">Computed</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )
