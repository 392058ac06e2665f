"""The History tab: the visitor's own finished comparisons, to find, open again, compare and delete."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from app.panels import history_words as words
from app.panels.answers import wrong_html
from app.pictures import THUMBNAIL_PX, smaller
from app.report import Report
from app.session import Session
from app.words import count, escape, plural
from engines.history import HistoryStore
from engines.results import Capabilities

log = logging.getLogger(__name__)

KIND = "comparison"
OFF = (
    '<p class="empty">No history is kept on this server. Whoever starts it can change that: leave out --no-history, or'
    " name a file with --history.</p>"
)
EMPTY = '<p class="empty">Nothing is kept yet. Every comparison that finishes on the Compare tab appears here.</p>'
NOT_FOUND = '<p class="empty">No kept comparison has these words.</p>'
CHOOSE = '<p class="hint">Tick one to see it, two to compare them.</p>'
GONE = "It is not there any more; it may have been deleted in another window."
LIST_PX = 120
Owner = Callable[[Session, gr.Request], str]


def new_visitor() -> str:
    """A name for a browser that nobody can guess: it is what its history is found by."""
    return secrets.token_hex(16)


def is_visitor(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None


class HistoryPanel:
    """Draw it in its tab, then `connect`. `keep` is called when a comparison has finished."""

    def __init__(self, session: gr.State, store: HistoryStore | None, capabilities: Capabilities) -> None:
        self.session, self.store, self.capabilities = session, store, capabilities
        with gr.Column(elem_id="history", elem_classes="card"):
            gr.HTML("<h2>Your finished comparisons</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY if store is not None else OFF, elem_id="history-text")
            with gr.Column(visible=store is not None) as self.body:
                self.sought = gr.Textbox(
                    label="Search", placeholder="Words of the question, answers, settings or file names",
                    max_length=200, elem_id="history-search",
                )  # fmt: skip
                self.list = gr.CheckboxGroup([], label="Kept, newest first", elem_id="history-list", visible=False)
                with gr.Row(elem_classes="buttons"):
                    self.open = gr.Button("Open", size="sm", elem_id="history-open", min_width=90, interactive=False)
                    self.compare = gr.Button(
                        "Compare two", size="sm", elem_id="history-compare", min_width=110, interactive=False
                    )
                    self.delete = gr.Button(
                        "Delete ticked", size="sm", elem_id="history-delete", min_width=110, interactive=False
                    )
                    self.delete_all = gr.Button("Delete all", size="sm", elem_id="history-delete-all", min_width=90)
                    self.sure = gr.Button(
                        "Yes, delete all",
                        size="sm",
                        variant="stop",
                        elem_id="history-sure",
                        min_width=120,
                        visible=False,
                    )
                    self.keep_all = gr.Button("Keep", size="sm", elem_id="history-keep", min_width=80, visible=False)
                self.said = gr.HTML(elem_id="history-said")
                self.shown = gr.HTML(CHOOSE, elem_id="history-shown")
        self._buttons = [self.open, self.compare, self.delete]
        self.outputs: list[gr.blocks.Block] = [
            self.text, self.list, *self._buttons, self.delete_all, self.sure, self.keep_all, self.shown,
        ]  # fmt: skip

    def connect(
        self,
        tab: gr.Tab,
        owner: Owner,
        reopen: Callable[[Session, Report], tuple[str, list[Any]]],
        reopened: Sequence[gr.blocks.Block],
    ) -> None:
        """`reopen` puts a comparison on the Compare tab: a sentence, and values for `reopened`."""
        self.owner, self.reopen, self._reopened = owner, reopen, len(reopened)
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
        asked = [self.session, self.sought]
        ticked = [self.session, self.sought, self.list]
        tab.select(self.refresh, asked, [self.said, *self.outputs], **quiet)
        self.sought.input(self.refresh, asked, [self.said, *self.outputs], trigger_mode="always_last", **quiet)
        self.list.input(self.tick, [self.session, self.list], [*self._buttons, self.shown], **quiet)
        self.compare.click(self.show_two, [self.session, self.list], [self.said, self.shown], **quiet)
        self.delete.click(self.remove, ticked, [self.said, *self.outputs], **quiet)
        ask, answer = [self.delete_all, self.sure, self.keep_all], [gr.update(visible=False)]
        self.delete_all.click(lambda: [*answer, gr.update(visible=True), gr.update(visible=True)], None, ask, **quiet)
        self.keep_all.click(lambda: [gr.update(visible=True), *answer, *answer], None, ask, **quiet)
        self.sure.click(self.remove_all, asked, [self.said, *self.outputs], **quiet)
        self.open.click(self.open_one, [self.session, self.list], [self.said, *reopened], **quiet)

    def keep(self, session: Session, owner: str) -> str:
        """Keep what the page shows if it is a finished comparison; a sentence where that fails."""
        if self.store is None or session.comparison is None or session.stored is not None:
            return ""
        try:
            report = Report.of(session, self.capabilities, THUMBNAIL_PX)
            picture = next(iter(report.pictures.values()), None)
            small = smaller(picture, LIST_PX) if picture is not None else None
            self.store.add(
                owner, KIND, report.made_at, words.summary_of(report, small), words.words_of(report), report.to_dict()
            )
        except ValueError as error:
            log.warning("A comparison was not kept: %s", error)
            return f"This comparison was not kept in the history. {error}"
        return ""

    def refresh(self, session: Session, sought: str, request: gr.Request, said: str = "") -> list[Any]:
        """The list as it is now, with nothing ticked."""
        if self.store is None:
            return [gr.skip()] * (1 + len(self.outputs))
        try:
            owner = self.owner(session, request)
            found = self.store.search(owner, KIND, sought or "")
            total = self.store.count(owner, KIND)
        except ValueError as error:
            return [wrong_html(str(error)), *[gr.skip()] * len(self.outputs)]
        text = EMPTY
        if total:
            shown = "" if len(found) == total else f" {count(len(found))} shown."
            text = f'<p class="hint" data-entries="{total}">{plural(total, "comparison")} kept.{shown}</p>'
            text = text if found else text + NOT_FOUND
        off = gr.update(interactive=False)
        return [
            said,
            text,
            gr.update(choices=[(words.line(one), one.id) for one in found], value=[], visible=bool(found)),
            off, off, off,
            gr.update(visible=True, interactive=total > 0),
            gr.update(visible=False, value=f"Yes, delete all {count(total)}"),
            gr.update(visible=False),
            CHOOSE if found else "",
        ]  # fmt: skip

    def tick(self, session: Session, ticked: list[int], request: gr.Request) -> list[Any]:
        """The buttons that fit what is ticked, and what that is."""
        assert self.store is not None
        wanted = set(ticked or [])
        found = [one for one in self.store.search(self.owner(session, request), KIND) if one.id in wanted]
        states = [gr.update(interactive=on) for on in (len(wanted) == 1, len(wanted) == 2, bool(wanted))]
        return [*states, "".join(map(words.card, found[:6])) or CHOOSE]

    def show_two(self, session: Session, ticked: list[int], request: gr.Request) -> list[Any]:
        """Older first."""
        if len(ticked or []) != 2:
            return [wrong_html("Tick exactly two to compare them."), gr.skip()]
        try:
            reports = [self._report(session, number, request) for number in sorted(ticked)]
        except ValueError as error:
            return [wrong_html(str(error)), gr.skip()]
        return ["", words.side_by_side(reports)]

    def open_one(self, session: Session, ticked: list[int], request: gr.Request) -> list[Any]:
        nothing = [gr.skip()] * self._reopened
        if len(ticked or []) != 1:
            return [wrong_html("Tick exactly one to open it."), *nothing]
        if session.active:
            return [wrong_html("A run is under way on the Compare tab; stop it or wait for its end."), *nothing]
        try:
            said, values = self.reopen(session, self._report(session, ticked[0], request))
        except ValueError as error:
            return [wrong_html(str(error)), *nothing]
        return [wrong_html(said), *values]

    def remove(self, session: Session, sought: str, ticked: list[int], request: gr.Request) -> list[Any]:
        assert self.store is not None
        owner = self.owner(session, request)
        try:
            gone = sum(self.store.delete(owner, KIND, number) for number in ticked or [])
        except ValueError as error:
            return [wrong_html(str(error)), *[gr.skip()] * len(self.outputs)]
        return self.refresh(session, sought, request, _status(f"Deleted {plural(gone, 'comparison')}."))

    def remove_all(self, session: Session, sought: str, request: gr.Request) -> list[Any]:
        assert self.store is not None
        try:
            gone = self.store.delete(self.owner(session, request), KIND)
        except ValueError as error:
            return [wrong_html(str(error)), *[gr.skip()] * len(self.outputs)]
        return self.refresh(session, sought, request, _status(f"Deleted {plural(gone, 'comparison')}."))

    def _report(self, session: Session, number: int, request: gr.Request) -> Report:
        assert self.store is not None
        entry = self.store.get(self.owner(session, request), KIND, number)
        if entry is None:
            raise ValueError(GONE)
        return Report.from_dict(entry.content)


def _status(text: str) -> str:
    return f'<p class="hint" role="status">{escape(text)}</p>'
