"""What one visitor sees, and the runs that may be stopped. Nothing here is shared between visitors."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from engines.answers import matches
from engines.compare import SIDES, Comparison, Side
from engines.config import CompressionConfig
from engines.divergence_report import DivergenceReport
from engines.presets import Facts, Preset, suggest
from engines.reports import CacheStats, PruneReport
from engines.results import RunRequest, RunResult

if TYPE_CHECKING:
    from app.report.data import Report


class Phase(StrEnum):
    """Where one of the two answers is."""

    IDLE = "idle"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    NOT_RUN = "not run"


# Runs whose use of the caches is remembered one by one.
MOST_CACHE_RUNS = 60
ACTIVE = (Phase.QUEUED, Phase.PREPARING, Phase.RUNNING)


@dataclass
class SideView:
    """One answer as it comes in."""

    phase: Phase = Phase.IDLE
    stage: str = ""
    text: str = ""
    tokens: int = 0
    result: RunResult | None = None


@dataclass(frozen=True)
class Picture:
    """What the model saw, small enough to send: a JPEG data URL and its size in pixels."""

    url: str
    width: int
    height: int


@dataclass(frozen=True)
class Example:
    """A file with a question about it, and the right answer where there is one."""

    path: Path
    question: str
    answer: str | None


@dataclass
class Session:
    """The page's state, kept by Gradio for each visitor. Plain data: Gradio copies the initial one."""

    sides: dict[Side, SideView] = field(default_factory=lambda: {side: SideView() for side in SIDES})
    comparison: Comparison | None = None
    error: str = ""
    """The one sentence that says why there is no answer."""
    repeat: int = 0
    """Which pair of runs is under way after the first one, 1 for the second pair; 0 in the first."""
    repeats: int = 1
    stopping: bool = False
    stopped: bool = False
    ticket: int = 0
    """Number of the run that the page shows."""
    asked: tuple[RunRequest, CompressionConfig] | None = None
    """The last run that was asked for, without its Event."""
    pictures: dict[tuple[int, int], Picture] = field(default_factory=dict)
    """By (item, frame) of the run that the page shows."""

    cached: dict[str, CacheStats] = field(default_factory=dict)
    """What this visitor's runs asked of each cache level, all together."""
    cache_uses: deque[dict[str, CacheStats]] = field(default_factory=lambda: deque(maxlen=MOST_CACHE_RUNS))
    """The same of the newest runs, one by one; a level that was off is left out."""

    page_px: int = 1440
    """Width of the visitor's window when the page was opened."""
    facts: tuple[Facts, ...] = ()
    """Of the media in the upload."""
    example: Example | None = None
    """The last one taken; it may have been changed in the fields since."""
    judged: dict[str, object] = field(default_factory=dict)
    """What each card of the Judge tab measured last, by its name."""
    right_answer: str | None = None
    """To what was asked in the run that the page shows; None when nobody knows it."""
    visitor: str = ""
    """The browser's own name, by which its history is found; empty until it is known."""
    made_at: str = ""
    """When the comparison that the page shows was finished: ISO 8601, UTC."""
    divergence: DivergenceReport | None = None
    """Of the run that the page shows, once it was measured."""
    stored: Report | None = None
    """The kept comparison that the page shows in place of a run of its own."""
    _name: str = ""

    @property
    def name(self) -> str:
        """The server's own name for this session, which nobody can guess. Not at the start: Gradio copies that."""
        self._name = self._name or secrets.token_hex(16)
        return self._name

    def count_caches(self, result: RunResult) -> None:
        """Add what a run asked of the caches, if it asked anything."""
        used = {level: stats for level, stats in result.cache_stats.run.items() if stats.queries}
        if used:
            self.cache_uses.append(used)
        for level, stats in used.items():
            self.cached[level] = self.cached.get(level, CacheStats()).and_then(stats)

    def begin(self, ticket: int, repeats: int = 1, right_answer: str | None = None) -> None:
        """Forget the last run and wait for the engine."""
        self.repeat, self.repeats = 0, repeats
        self.sides = {side: SideView(Phase.QUEUED) for side in SIDES}
        self.comparison, self.error, self.ticket = None, "", ticket
        self.made_at, self.stored, self.divergence = "", None, None
        self.right_answer = right_answer
        self.stopping = self.stopped = False
        self.pictures = {}

    def fail(self, sentence: str) -> None:
        """The run ended with this sentence: what has not ended yet did not happen."""
        self.error, self.stopping, self.repeat = sentence, False, 0
        for view in self.sides.values():
            if view.phase in (Phase.PREPARING, Phase.RUNNING):
                view.phase = Phase.FAILED
            elif view.phase != Phase.DONE:
                view.phase = Phase.NOT_RUN

    def stop(self) -> None:
        """The visitor ended the run: partial answers stay."""
        self.stopping, self.stopped, self.repeat = False, True, 0
        for view in self.sides.values():
            if view.phase in ACTIVE:
                view.phase = Phase.NOT_RUN if view.phase == Phase.QUEUED else Phase.STOPPED

    def example_in(self, files: Sequence[Path | str]) -> Example | None:
        """The example that was taken, if these files are its file and nothing else."""
        example = self.example
        return example if example is not None and [Path(file) for file in files] == [example.path] else None

    def answer_to(self, request: RunRequest) -> str | None:
        """The right answer, if the example is asked as it was taken: of any other question nobody knows it."""
        example = self.example_in(request.media)
        return example.answer if example is not None and example.question == request.question else None

    @property
    def suggestion(self) -> Preset | None:
        """The preset for the media in the upload."""
        return suggest(self.facts)

    @property
    def active(self) -> bool:
        return self.repeat > 0 or any(view.phase in ACTIVE for view in self.sides.values())

    @property
    def ended(self) -> bool:
        """Not the same as inactive: between two pairs of runs no side is active either."""
        return self.comparison is not None or self.stopped or bool(self.error)

    @property
    def results(self) -> dict[Side, RunResult]:
        return {side: view.result for side, view in self.sides.items() if view.result is not None}

    @property
    def right(self) -> dict[Side, bool]:
        """Whether each whole answer is right. Empty until the run has ended, so that nothing is given away."""
        if self.right_answer is None or not self.ended:
            return {}
        return {
            side: matches(view.result.answer, self.right_answer)
            for side, view in self.sides.items()
            if view.phase == Phase.DONE and view.result is not None
        }

    @property
    def report(self) -> PruneReport | None:
        """What pruning did in the compressed run."""
        result = self.sides["compressed"].result
        return result.prune_report if result is not None else None


@dataclass(frozen=True)
class Ticket:
    """A run that was asked for. `cancel` is also in the request, where the engine looks at it."""

    number: int
    request: RunRequest
    compressed: CompressionConfig
    cancel: threading.Event
    repeats: int = 1
    """Pairs of runs."""


class Tickets:
    """The run that each visitor asked for last. Kept apart from Session because an Event cannot be copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._by_visitor: dict[str, Ticket] = {}

    def issue(self, visitor: str, request: RunRequest, compressed: CompressionConfig, repeats: int = 1) -> Ticket:
        """A new ticket; whatever the visitor had running is told to stop."""
        if request.cancel is None:
            raise ValueError("a request for the page must carry an Event to cancel it with")
        with self._lock:
            self._last += 1
            before = self._by_visitor.get(visitor)
            ticket = Ticket(self._last, request, compressed, request.cancel, repeats)
            self._by_visitor[visitor] = ticket
        if before is not None:
            before.cancel.set()
        return ticket

    def get(self, visitor: str, number: int) -> Ticket | None:
        """The visitor's ticket if it is still this one."""
        with self._lock:
            ticket = self._by_visitor.get(visitor)
        return ticket if ticket is not None and ticket.number == number else None

    def stop(self, visitor: str) -> None:
        """Tell the visitor's run to end after the token in progress."""
        with self._lock:
            ticket = self._by_visitor.get(visitor)
        if ticket is not None:
            ticket.cancel.set()

    def pending(self) -> int:
        """Runs that are wanted and have not ended."""
        with self._lock:
            return sum(not ticket.cancel.is_set() for ticket in self._by_visitor.values())

    def drop(self, visitor: str, number: int) -> None:
        with self._lock:
            ticket = self._by_visitor.get(visitor)
            if ticket is not None and ticket.number == number:
                del self._by_visitor[visitor]
