"""What the caches saved: in the run shown, in this visitor's session, and since the server started."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import plots
from app.session import Session
from app.words import MISSING, count, escape, megabytes, percent, seconds
from engines.reports import CacheStats

COLUMNS = ("Queries", "Hits", "Hit rate", "Tokens reused", "Bytes", "Entries", "Evictions", "Time saved")


class CachesPanel:
    """`update` fills it; `clear_encoder` and `clear_prefix` each forget one level."""

    def __init__(self) -> None:
        with gr.Column(elem_id="caches", elem_classes="card"):
            gr.HTML("<h2>Caches</h2>", elem_classes="card-title")
            self.table = gr.HTML(elem_id="cache-table")
            with gr.Column(visible=False) as self.history:
                self.plot = gr.Plot(show_label=False, container=False, elem_id="cache-plot")
                with gr.Accordion("As a table", open=False, elem_classes="inner"):
                    self.runs = gr.HTML()
            with gr.Row(elem_classes="buttons"):
                self.clear_encoder = gr.Button(
                    "Clear encoder cache", size="sm", elem_id="clear-encoder-cache", scale=0, min_width=170
                )
                self.clear_prefix = gr.Button(
                    "Clear prefix cache", size="sm", elem_id="clear-prefix-cache", scale=0, min_width=170
                )
        self.outputs: list[gr.blocks.Block] = [self.table, self.history, self.plot, self.runs]

    @staticmethod
    def update(session: Session, totals: dict[str, CacheStats]) -> list[Any]:
        """All outputs, as things stand."""
        uses = list(session.cache_uses)
        drawn = [plots.as_plot(plots.cache_history(uses)), plots.cache_history_table(uses)] if uses else [None, ""]
        return [caches_html(session, totals), gr.update(visible=bool(uses)), *drawn]


def caches_html(session: Session, totals: dict[str, CacheStats]) -> str:
    """One row a level and scope. A run whose cache is off made no queries."""
    rows = []
    for level, total in totals.items():
        for side, result in session.results.items():
            if level in result.cache_stats.run:
                rows.append(_row(level, f"this run, {side}", side, result.cache_stats.run[level]))
        rows.append(_row(level, "this session", "session", session.cached.get(level, CacheStats())))
        rows.append(_row(level, "since start, all visitors", "total", total, held=True))
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    return (
        '<div class="scroll"><table class="figures caches"><thead><tr><th scope="col">Level</th>'
        f'<th scope="col">Scope</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        '<p class="hint">The encoder cache counts images and frame groups, the prefix cache tokens of the unpruned'
        " prompt. Bytes are those reused by a run or a session, and those held since the start. Time saved is the"
        " measured cost of first making each entry that was hit. Clearing forgets your own entries.</p>"
    )


def _row(level: str, scope: str, name: str, stats: CacheStats, *, held: bool = False) -> str:
    # A run neither holds entries nor is charged for evictions.
    entries, evictions = (count(stats.entries), count(stats.evictions)) if held else (MISSING, MISSING)
    cells = [
        count(stats.queries), count(stats.hits), percent(stats.hit_rate), count(stats.tokens), megabytes(stats.bytes),
        entries, evictions, seconds(stats.saved_s) if stats.hits else MISSING,
    ]  # fmt: skip
    return (
        f'<tr data-level="{escape(level)}" data-scope="{name}" data-hits="{stats.hits}"><th scope="row">{escape(level)}'
        f'</th><td class="note">{scope}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    )
