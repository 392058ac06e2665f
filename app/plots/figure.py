"""What all figures share: colours that work on light and dark, and the way into Gradio."""

from __future__ import annotations

import json

import plotly.graph_objects as go
from gradio.components.plot import PlotData

# Both lie in the middle of the lightness scale, so they stand out on a white and on a dark card.
SIDE_COLOURS = {"full": "#7f8da3", "compressed": "#14a08f"}
SIDE_NAMES = {"full": "Full", "compressed": "Compressed"}
# The texts and lines of a figure are recoloured by the style sheet, which follows the visitor's theme; these
# greys are for places that it does not reach, such as a downloaded picture.
GREY = "#7d8590"
FAINT = "rgba(125,133,144,0.25)"


def blank_layout(height: int) -> dict[str, object]:
    """Transparent, with the page's font, and with an explicit height: a figure without one can come out flat."""
    return {
        "template": "none",
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12, "color": GREY},
        "hoverlabel": {
            "bgcolor": "#1c2127",
            "bordercolor": "#1c2127",
            "align": "left",
            "font": {"color": "#f2f4f7", "size": 12},
        },
    }


def picture_axes(width: float, height: float) -> dict[str, dict[str, object]]:
    """Axes for cells over a picture of that size: one pixel across is one down, and row 0 is on top."""
    return {
        "xaxis": {"range": [0, width], "visible": False, "fixedrange": True, "constrain": "domain"},
        "yaxis": {
            "range": [height, 0],
            "visible": False,
            "fixedrange": True,
            "scaleanchor": "x",
            "constrain": "domain",
            "constraintoward": "top",
        },
    }


def as_plot(figure: go.Figure) -> PlotData:
    """The figure as gr.Plot takes it, without Plotly's tool bar: the page has its own controls."""
    values = json.loads(figure.to_json())
    values["config"] = {"displayModeBar": False, "scrollZoom": False, "doubleClick": False}
    return PlotData(type="plotly", plot=json.dumps(values))
