"""Pure functions: a result in, a Plotly figure or an HTML table out."""

from app.plots.caches import cache_history, cache_history_table
from app.plots.curve import speed_curve, speed_table
from app.plots.experts import expert_load, expert_table
from app.plots.fidelity import fidelity, fidelity_table
from app.plots.figure import as_plot
from app.plots.heatmap import heatmap, heatmap_table
from app.plots.precision import collapse, collapse_table, collapse_words, error_table, layer_errors
from app.plots.robustness import robustness, robustness_table
from app.plots.waterfall import waterfall, waterfall_table

__all__ = [
    "as_plot",
    "cache_history",
    "cache_history_table",
    "collapse",
    "collapse_table",
    "collapse_words",
    "error_table",
    "expert_load",
    "expert_table",
    "fidelity",
    "fidelity_table",
    "heatmap",
    "heatmap_table",
    "layer_errors",
    "robustness",
    "robustness_table",
    "speed_curve",
    "speed_table",
    "waterfall",
    "waterfall_table",
]
