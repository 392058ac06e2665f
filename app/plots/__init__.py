"""Pure functions: a result in, a Plotly figure or an HTML table out."""

from app.plots.caches import cache_history, cache_history_table
from app.plots.curve import speed_curve, speed_table
from app.plots.divergence import candidates_table, divergence, divergence_table, summary_table
from app.plots.experts import expert_load, expert_table
from app.plots.fidelity import fidelity, fidelity_table
from app.plots.figure import as_plot
from app.plots.heatmap import heatmap, heatmap_table
from app.plots.precision import collapse, collapse_table, collapse_words, error_table, layer_errors
from app.plots.robustness import robustness, robustness_table
from app.plots.sweep import sweep_front, sweep_table
from app.plots.waterfall import waterfall, waterfall_table

__all__ = [
    "as_plot",
    "cache_history",
    "cache_history_table",
    "candidates_table",
    "collapse",
    "collapse_table",
    "collapse_words",
    "divergence",
    "divergence_table",
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
    "summary_table",
    "sweep_front",
    "sweep_table",
    "waterfall",
    "waterfall_table",
]
