"""Which visual tokens were kept, drawn over the picture that the model saw."""

from __future__ import annotations

from typing import Literal

import plotly.graph_objects as go

from app.plots.figure import GREY, blank_layout, picture_axes
from app.words import escape
from engines.reports import FramePruning

View = Literal["score", "kept"]
SCORE = "Score (higher is kept sooner)"
VIEWS: tuple[View, View] = ("score", "kept")
DROPPED_COLOUR = "#20262e"


def heatmap(
    frame: FramePruning,
    picture: str | None,
    size: tuple[int, int],
    view: View,
    opacity: float,
    width_px: int = 700,
    legend: str = SCORE,
) -> go.Figure:
    """Cells over the picture; `legend` says what their scores are, its first word alone in short.

    `picture` is a data URL, `size` its (width, height) in pixels: the cells tile exactly that rectangle. `width_px`
    is the room for it on the screen. Without scores the score view is the kept view, and the panel says why.
    """
    width, height = size
    cell_width, cell_height = width / frame.columns, height / frame.rows
    scored = view == "score" and frame.scores is not None
    figure = go.Figure(layout=blank_layout(plot_height(size, width_px) + (92 if scored else 42)))
    if picture is not None:
        figure.add_layout_image(
            source=picture, xref="x", yref="y", x=0, y=0, sizex=width, sizey=height, sizing="stretch", layer="below"
        )
    figure.add_heatmap(
        z=frame.grid(list(frame.scores or ()) if scored else [float(kept) for kept in frame.kept]),
        x0=cell_width / 2,
        dx=cell_width,
        y0=cell_height / 2,
        dy=cell_height,
        # row, column, score, kept: read by the hover text, and by whoever counts the kept cells
        customdata=frame.grid([_cell(frame, index) for index in range(len(frame.kept))]),
        opacity=opacity,
        hovertemplate=(
            f"Row %{{customdata[0]}}, column %{{customdata[1]}}<br>{legend.split()[0]} %{{customdata[2]}}"
            "<br>%{customdata[3]}<extra></extra>"
        ),
        xgap=1,
        ygap=1,
        **_colours(frame.scores if scored else None, legend),
    )
    _mark_dropped(figure, frame, cell_width, cell_height, size)
    figure.update_layout(
        margin={"l": 4, "r": 4, "t": 34, "b": 58 if scored else 8},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "itemclick": False, "itemdoubleclick": False},
        **picture_axes(width, height),
    )
    return figure


def plot_height(size: tuple[int, int], width_px: int) -> int:
    """Screen pixels for the picture: as tall as it comes out at that width, within bounds."""
    width, height = size
    return round(min(540.0, max(120.0, (width_px - 8) * height / width)))


def _colours(scores: tuple[float, ...] | None, legend: str) -> dict[str, object]:
    if scores is not None:
        low, high = min(scores), max(scores)
        ticks = [low, (low + high) / 2, high]
        bar = {
            "orientation": "h",
            "thickness": 10,
            "len": 0.6,
            "x": 0.5,
            "y": 0,
            "yanchor": "top",
            "ypad": 6,
            "outlinewidth": 0,
            "title": {"text": legend, "side": "bottom", "font": {"size": 11}},
            "tickvals": ticks,
            "ticktext": [f"{tick:.2g}" for tick in ticks],
            "tickangle": 0,
        }
        return {"colorscale": "Cividis", "colorbar": bar}
    # Kept cells show the picture; dropped ones are covered.
    scale = [[0.0, DROPPED_COLOUR], [0.5, DROPPED_COLOUR], [0.5, "rgba(0,0,0,0)"], [1.0, "rgba(0,0,0,0)"]]
    return {"colorscale": scale, "zmin": 0, "zmax": 1, "showscale": False}


def _mark_dropped(
    figure: go.Figure, frame: FramePruning, cell_width: float, cell_height: float, size: tuple[int, int]
) -> None:
    """A cross on every dropped cell, so that kept and dropped differ by more than colour."""
    dropped = [frame.cell(index) for index, kept in enumerate(frame.kept) if not kept]
    # About 0.6 screen pixels a picture pixel at most; small cells get small crosses.
    on_screen = min(cell_width, cell_height) * min(1.0, 600 / max(size))
    nowhere: list[float | None] = [None]
    figure.add_scatter(
        x=[(column + 0.5) * cell_width for _, column in dropped] or nowhere,
        y=[(row + 0.5) * cell_height for row, _ in dropped] or nowhere,
        mode="markers",
        name=f"Dropped ({len(dropped)})",
        marker={
            "symbol": "x",
            "size": max(3.0, min(8.0, on_screen * 0.3)),
            "color": "#ffffff",
            "line": {"color": "#11151a", "width": 1},
        },
        hoverinfo="skip",
        showlegend=True,
    )
    figure.add_scatter(
        x=nowhere,
        y=nowhere,
        mode="markers",
        name=f"Kept ({sum(frame.kept)})",
        marker={"symbol": "square-open", "size": 9, "color": GREY, "line": {"width": 1.5}},
        hoverinfo="skip",
        showlegend=True,
    )


def _cell(frame: FramePruning, index: int) -> list[object]:
    row, column = frame.cell(index)
    score = "not given" if frame.scores is None else _score_words(frame.scores[index])
    return [row + 1, column + 1, score, "Kept" if frame.kept[index] else "Dropped"]


def _score_words(score: float) -> str:
    # Attention is shared among all tokens, so that a single one's is small.
    if 0 < abs(score) < 0.1:
        return f"{score:.2g}"
    return f"{score:.3f}" if abs(score) < 10 else f"{score:.1f}"


def heatmap_table(frame: FramePruning, legend: str = SCORE) -> str:
    """The same grid as an HTML table: the score of each cell, with a cross where it was dropped."""
    head = "".join(f'<th scope="col">{column + 1}</th>' for column in range(frame.columns))
    body = []
    for row in range(frame.rows):
        cells = []
        for column in range(frame.columns):
            _, _, score, state = _cell(frame, frame.index(row, column))
            mark = "✓" if state == "Kept" else "×"
            text = mark if frame.scores is None else f"{mark} {score}"
            cells.append(f'<td class="{str(state).lower()}">{text}</td>')
        body.append(f'<tr><th scope="row">{row + 1}</th>{"".join(cells)}</tr>')
    return (
        f'<p class="hint">{escape(frame.name)}: {legend.split()[0].lower()} of each cell; ✓ kept, × dropped. Rows and'
        f' columns as in the picture.</p><div class="scroll"><table class="figures grid"><thead>'
        f"<tr><td></td>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
