"""Pure functions: a result in, a Plotly figure or an HTML table out."""

from app.plots.experts import expert_load, expert_table
from app.plots.figure import as_plot
from app.plots.heatmap import heatmap, heatmap_table
from app.plots.waterfall import waterfall, waterfall_table

__all__ = ["as_plot", "expert_load", "expert_table", "heatmap", "heatmap_table", "waterfall", "waterfall_table"]
