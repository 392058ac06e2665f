"""How close the reduced vision tower stays to the whole one, drawn over the picture that the model saw."""

from __future__ import annotations

from typing import Literal

import plotly.graph_objects as go

from app.plots.figure import blank_layout, picture_axes
from app.plots.heatmap import plot_height
from app.words import escape
from engines.reports import FrameFidelity

Figure = Literal["similarity", "overlap"]
FIGURES: dict[Figure, str] = {"similarity": "Neighbourhood similarity", "overlap": "Same nearest tokens"}


def fidelity(
    frame: FrameFidelity, picture: str | None, size: tuple[int, int], shown: Figure, width_px: int = 700
) -> go.Figure:
    """Cells over the picture, dark where the towers differ. The colours span 0 to 1 in every picture.

    `picture` is a data URL, `size` its (width, height) in pixels: the cells tile exactly that rectangle.
    """
    width, height = size
    cell_width, cell_height = width / frame.columns, height / frame.rows
    values = frame.similarity if shown == "similarity" else frame.overlap
    figure = go.Figure(layout=blank_layout(plot_height(size, width_px) + 66))
    if picture is not None:
        figure.add_layout_image(
            source=picture, xref="x", yref="y", x=0, y=0, sizex=width, sizey=height, sizing="stretch", layer="below"
        )
    figure.add_heatmap(
        z=frame.grid(values),
        x0=cell_width / 2,
        dx=cell_width,
        y0=cell_height / 2,
        dy=cell_height,
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        opacity=0.75,
        xgap=1,
        ygap=1,
        customdata=frame.grid(
            [
                [*(place + 1 for place in frame.cell(index)), f"{similarity:.3f}", f"{overlap:.2f}"]
                for index, (similarity, overlap) in enumerate(zip(frame.similarity, frame.overlap, strict=True))
            ]
        ),
        hovertemplate=(
            "Row %{customdata[0]}, column %{customdata[1]}<br>Similarity %{customdata[2]}<br>"
            "Same nearest tokens %{customdata[3]}<extra></extra>"
        ),
        colorbar={
            "orientation": "h",
            "thickness": 10,
            "len": 0.6,
            "x": 0.5,
            "y": 0,
            "yanchor": "top",
            "ypad": 6,
            "outlinewidth": 0,
            "title": {"text": f"{FIGURES[shown]} (1 is unchanged)", "side": "bottom", "font": {"size": 11}},
            "tickvals": [0, 0.5, 1],
            "tickangle": 0,
        },
    )
    figure.update_layout(
        margin={"l": 4, "r": 4, "t": 8, "b": 58},
        **picture_axes(width, height),
    )
    return figure


def fidelity_table(frame: FrameFidelity, shown: Figure) -> str:
    """The same grid as an HTML table."""
    values = frame.grid(frame.similarity if shown == "similarity" else frame.overlap)
    head = "".join(f'<th scope="col">{column + 1}</th>' for column in range(frame.columns))
    body = "".join(
        f'<tr><th scope="row">{row}</th>{"".join(f"<td>{value:.2f}</td>" for value in cells)}</tr>'
        for row, cells in enumerate(values, start=1)
    )
    return (
        f'<p class="hint">{escape(frame.name)}: {FIGURES[shown].lower()} of each cell. Rows and columns as in the'
        f' picture.</p><div class="scroll"><table class="figures grid"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
