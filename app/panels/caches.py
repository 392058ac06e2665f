"""What the caches saved: in the run shown, in this visitor's session, and since the server started; by whom too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app import plots
from app.session import Session
from app.words import MISSING, count, escape, megabytes, percent, seconds
from engines.cache.scope import GLOBAL, RESOURCE, SESSION, TENANT, USER
from engines.compare import Side
from engines.reports import CacheStats
from engines.results import RunResult

COLUMNS = ("Queries", "Hits", "Hit rate", "Tokens reused", "Bytes", "Entries", "Evictions", "Time saved")


# What a visitor can clear. What is everyone's (global) is no visitor's to clear.
ANY_SCOPE = "anyone of mine"
SCOPES = (SESSION, RESOURCE, USER, TENANT)


class CachesPanel:
    """`update` fills it; `clear_encoder` and `clear_prefix` each forget one level, or of it what `shared` says."""

    def __init__(self) -> None:
        with gr.Column(elem_id="caches", elem_classes="card"):
            gr.HTML("<h2>Caches</h2>", elem_classes="card-title")
            self.table = gr.HTML(elem_id="cache-table")
            with gr.Column(visible=False) as self.history:
                self.plot = gr.Plot(show_label=False, container=False, elem_id="cache-plot")
                with gr.Accordion("As a table", open=False, elem_classes="inner"):
                    self.runs = gr.HTML()
            with gr.Accordion("By whom entries are shared with", open=False, elem_classes="inner"):
                self.scopes = gr.HTML(elem_id="cache-scopes")
            with gr.Row(elem_classes="buttons"):
                self.shared = gr.Dropdown(
                    [ANY_SCOPE, *SCOPES], value=ANY_SCOPE, label="Entries shared within", elem_id="clear-scope",
                    scale=0,
                    min_width=190, filterable=False,
                )  # fmt: skip
                self.clear_encoder = gr.Button(
                    "Clear encoder cache", size="sm", elem_id="clear-encoder-cache", scale=0, min_width=170
                )
                self.clear_prefix = gr.Button(
                    "Clear prefix cache", size="sm", elem_id="clear-prefix-cache", scale=0, min_width=170
                )
        self.outputs: list[gr.blocks.Block] = [self.table, self.history, self.plot, self.runs, self.scopes]

    @staticmethod
    def update(session: Session, totals: dict[str, CacheStats]) -> list[Any]:
        """All outputs, as things stand."""
        uses = list(session.cache_uses)
        drawn = [plots.as_plot(plots.cache_history(uses)), plots.cache_history_table(uses)] if uses else [None, ""]
        return [caches_html(session, totals), gr.update(visible=bool(uses)), *drawn, scopes_html(session, totals)]


def caches_html(session: Session, totals: dict[str, CacheStats]) -> str:
    """One row a level and scope. A run whose cache is off made no queries."""
    rows = []
    for level, total in totals.items():
        for side, result in session.results.items():
            if level in result.cache_stats.run:
                stats = result.cache_stats.run[level]
                # A run shares at one scope.
                within = "".join(f", {scope}" for scope in stats.scopes)
                rows.append(_row(level, f"this run, {side}{within}", side, stats))
        rows.append(_row(level, "this session", "session", session.cached.get(level, CacheStats())))
        rows.append(_row(level, "since start, all visitors", "total", total, held=True))
    return (
        f'{_table(rows)}<p class="hint">'
        "The encoder cache counts images and frame groups, the prefix cache tokens of the unpruned"
        " prompt. Bytes are those reused by a run or a session, and those held since the start. Time saved is the"
        " measured cost of first making each entry that was hit. Evictions of a run are the entries given up for what"
        " it left. Clearing forgets your own entries.</p>"
    )


def scopes_html(session: Session, totals: dict[str, CacheStats]) -> str:
    """The same by the setting "Shared within" of the runs that asked and left."""
    rows = []
    for level, total in totals.items():
        for scope in (*SCOPES, GLOBAL):
            if (mine := session.cached.get(level, CacheStats()).scopes.get(scope)) is not None:
                rows.append(_row(level, f"{scope}, this session", f"{scope} session", mine))
            if (all_runs := total.scopes.get(scope)) is not None:
                rows.append(_row(level, f"{scope}, since start, all visitors", f"{scope} total", all_runs, held=True))
    return _table(rows) if rows else '<p class="empty">No run has asked a cache yet: they are off.</p>'


def run_caches_html(results: Mapping[Side, RunResult]) -> str:
    """What the runs themselves asked of each level that was on."""
    rows = [
        _row(level, f"this run, {side}", side, stats)
        for side, result in results.items()
        for level, stats in result.cache_stats.run.items()
        if stats.queries
    ]
    return _table(rows) if rows else '<p class="empty">No run asked a cache: they were off.</p>'


def _table(rows: list[str]) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    return (
        '<div class="scroll"><table class="figures caches"><thead><tr><th scope="col">Level</th>'
        f'<th scope="col">Scope</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _row(level: str, scope: str, name: str, stats: CacheStats, *, held: bool = False) -> str:
    cells = [
        count(stats.queries), count(stats.hits), percent(stats.hit_rate), count(stats.tokens), megabytes(stats.bytes),
        count(stats.entries) if held else MISSING, count(stats.evictions),
        seconds(stats.saved_s) if stats.hits else MISSING,
    ]  # fmt: skip
    return (
        f'<tr data-level="{escape(level)}" data-scope="{name}" data-hits="{stats.hits}"><th scope="row">{escape(level)}'
        f'</th><td class="note">{scope}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    )
