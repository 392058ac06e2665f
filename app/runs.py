"""A run from the page: begin, stream both answers, stop. The generators here are what Gradio calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

from app.pictures import picture_of
from app.session import Phase, Picture, Session, Ticket
from engines.compare import Comparison, Runner, Side, SideEvent, compare
from engines.config import CompressionConfig
from engines.media import Media
from engines.reports import PruneReport
from engines.results import EngineError, Finished, MediaReady, StageEnded, StageStarted, TokenReady

log = logging.getLogger(__name__)

# Redrawing more often than this is not seen, and takes time from the run on a small machine.
UPDATE_S = 1 / 12
BEFORE_THE_CLOCK = ("preparing weights", "warming up")
SURPRISE = "Something went wrong while running the model; the server log has the details."


def stream(
    engine: Runner, session: Session, ticket: Ticket, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Run both sides and keep `session` up to date; yields when there is something new to draw.

    Every failure ends as a sentence in the session. Closing this iterator ends the run.
    """
    watch = Watcher(session)
    try:
        with closing(  # type: ignore[type-var]
            compare(engine, ticket.request, CompressionConfig.full(), ticket.compressed, ticket.repeats)
        ) as events:
            drawn_s = float("-inf")
            for event in events:
                if session.ticket != ticket.number:
                    return
                urgent = watch.take(event)
                if urgent or clock() - drawn_s >= UPDATE_S:
                    drawn_s = clock()
                    yield
    except (EngineError, ValueError) as error:  # MediaError is a ValueError
        session.fail(str(error))
    except Exception:
        log.exception("A run from the page failed")
        session.fail(SURPRISE)
    else:
        if session.active:
            session.stop()
    yield


class Watcher:
    """Puts what the engine says into the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._media: tuple[Media, ...] = ()

    def take(self, event: SideEvent | Comparison) -> bool:
        """True when the page should show it at once."""
        if isinstance(event, Comparison):
            self._session.comparison = event
            self._session.made_at = datetime.now(UTC).isoformat(timespec="seconds")
            self._session.stopped = len(event.pairs) < self._session.repeats
            self._session.repeat, self._session.stopping = 0, False
            return True
        if isinstance(event.event, Finished):
            self._session.count_caches(event.event.result)
        if event.repeat:
            # The answers are those of the first pair; later ones only measure.
            changed = self._session.repeat != event.repeat
            self._session.repeat = event.repeat
            return changed
        view, inner = self._session.sides[event.side], event.event
        if isinstance(inner, StageStarted):
            view.phase = Phase.PREPARING if inner.name in BEFORE_THE_CLOCK else Phase.RUNNING
            view.stage = inner.name
            # Short stages would only flicker past; the slow ones are worth an update of their own.
            return inner.name in (*BEFORE_THE_CLOCK, "vision encode", "prefill")
        if isinstance(inner, TokenReady):
            view.phase, view.stage = Phase.RUNNING, "decode"
            view.text += inner.text
            view.tokens = inner.index + 1
            return inner.index == 0
        if isinstance(inner, MediaReady):
            if event.side == "compressed":
                self._media = inner.media
            return False
        if isinstance(inner, Finished):
            self._finish(event.side, inner)
            return True
        assert isinstance(inner, StageEnded)
        return False

    def _finish(self, side: Side, finished: Finished) -> None:
        view, result = self._session.sides[side], finished.result
        view.result, view.text, view.tokens = result, result.answer, len(result.tokens)
        if result.finish_reason == "cancelled":
            self._session.stop()
        else:
            view.phase = Phase.DONE
        if side == "compressed":
            self._session.pictures = _pictures(result.prune_report, self._media)
            self._media = ()


def _pictures(report: PruneReport, media: tuple[Media, ...]) -> dict[tuple[int, int], Picture]:
    """The first frame of every frame group, by (item, frame)."""
    wanted = {(frame.item, frame.frames[0]) for frame in report.frames}
    return {
        (item, frame): picture_of(media[item].frames[frame])
        for item, frame in wanted
        if item < len(media) and frame < media[item].n_frames
    }
