"""What the caches saved: in the run shown, and since the server started."""

from __future__ import annotations

import gradio as gr

from app.session import Session
from app.words import MISSING, count, escape, megabytes, percent, seconds
from engines.results import CacheStats

COLUMNS = ("Queries", "Hits", "Hit rate", "Bytes", "Entries", "Evictions", "Time saved")


class CachesPanel:
    def __init__(self) -> None:
        with gr.Column(elem_id="caches", elem_classes="card"):
            gr.HTML("<h2>Caches</h2>", elem_classes="card-title")
            self.table = gr.HTML(elem_id="cache-table")
            self.clear = gr.Button("Clear caches", size="sm", elem_id="clear-caches", scale=0, min_width=140)


def caches_html(session: Session, totals: dict[str, CacheStats]) -> str:
    """One row a level and scope. A run whose cache is off made no queries."""
    rows = []
    for side, result in session.results.items():
        for level, stats in result.cache_stats.run.items():
            rows.append(_row(level, f"this run, {side}", stats, held=False))
    for level, stats in totals.items():
        rows.append(_row(level, "since start, all visitors", stats, held=True))
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    return (
        '<div class="scroll"><table class="figures caches"><thead><tr><th scope="col">Level</th>'
        f'<th scope="col">Scope</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        '<p class="hint">Bytes are those reused by a run and those held since the start. Time saved is the measured'
        " cost of first making each entry that was hit.</p>"
    )


def _row(level: str, scope: str, stats: CacheStats, *, held: bool) -> str:
    # A run neither holds entries nor is charged for evictions.
    entries, evictions = (count(stats.entries), count(stats.evictions)) if held else (MISSING, MISSING)
    cells = [
        count(stats.queries), count(stats.hits), percent(stats.hit_rate), megabytes(stats.bytes), entries, evictions,
        seconds(stats.saved_s) if stats.hits else MISSING,
    ]  # fmt: skip
    scope_name = "total" if held else scope.rpartition(" ")[2]
    return (
        f'<tr data-scope="{scope_name}" data-hits="{stats.hits}"><th scope="row">{escape(level)}</th><td class="note">'
        f"{scope}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    )
