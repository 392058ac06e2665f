"""The line for the engine: the page and every tenant of the endpoint take turns, one run at a time."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PAGE = "page"
# How long a thread in the line sleeps before it looks whether its request was given up meanwhile.
LOOK_S = 0.2
# What `Retry-After` may say.
SHORTEST_RETRY_S, LONGEST_RETRY_S = 1, 60


class QueueFull(Exception):
    """As many requests wait as may wait."""


class Turnstile:
    """Turns go round the parties that wait, and within one party by arrival.

    So a tenant with ten requests in the line delays another tenant, or the page, by one of them and not by ten.
    A place is taken before a request's body is read, which bounds what is held in memory and on disk, and joins
    the line when the request is ready to run.
    """

    def __init__(self, most_waiting: int = 16, most_each: int | None = None) -> None:
        """At most `most_waiting` places may wait in all, and `most_each` of one party (None: no less than all)."""
        self.most_waiting = most_waiting
        self.most_each = most_waiting if most_each is None else most_each
        self._changed = threading.Condition()
        self._taken: set[Place] = set()
        self._line: OrderedDict[str, deque[Place]] = OrderedDict()
        self._current: Place | None = None
        self._last_turn_s: float = SHORTEST_RETRY_S

    def take(self, party: str, *, bounded: bool = True) -> Place:
        """A place for one run; QueueFull if too many wait. The page's own queue is bounded by Gradio."""
        with self._changed:
            waiting = self._taken - {self._current}
            if bounded and (
                len(waiting) >= self.most_waiting or sum(place.party == party for place in waiting) >= self.most_each
            ):
                raise QueueFull
            place = Place(self, party)
            self._taken.add(place)
            return place

    @contextmanager
    def turn(self, party: str, cancel: threading.Event | None = None) -> Iterator[bool]:
        """Wait for a turn and keep it for the body. False if `cancel` was set before it came."""
        with self.take(party, bounded=False) as place:
            yield place.wait(cancel)

    @property
    def waiting(self) -> int:
        """Places that were taken and are not having their turn."""
        with self._changed:
            return len(self._taken - {self._current})

    def places(self, party: str) -> int:
        """Places of one party, the one that is having its turn included."""
        with self._changed:
            return sum(place.party == party for place in self._taken)

    @property
    def full(self) -> bool:
        return self.waiting >= self.most_waiting

    @property
    def retry_after_s(self) -> int:
        """When a place may come free: after as long as the last turn took."""
        return min(max(math.ceil(self._last_turn_s), SHORTEST_RETRY_S), LONGEST_RETRY_S)

    def _wait(self, place: Place, cancel: threading.Event | None) -> bool:
        with self._changed:
            self._line.setdefault(place.party, deque()).append(place)
            self._advance()
            while self._current is not place:
                if cancel is not None and cancel.is_set():
                    self._leave(place)
                    return False
                self._changed.wait(LOOK_S)
            if cancel is not None and cancel.is_set():
                return False
            place.began_s = time.monotonic()
            place.waited_s = place.began_s - place.taken_s
            return True

    def _leave(self, place: Place) -> None:
        with self._changed:
            if place not in self._taken:
                return
            self._taken.discard(place)
            if self._current is place:
                self._current = None
                if place.began_s is not None:
                    self._last_turn_s = time.monotonic() - place.began_s
            elif place in (line := self._line.get(place.party, ())):
                line.remove(place)  # type: ignore[union-attr]
                if not line:
                    del self._line[place.party]
            self._advance()

    def _advance(self) -> None:
        """Let the next one in: the first of the party whose turn it is, which then goes to the end."""
        if self._current is None and self._line:
            party, line = self._line.popitem(last=False)
            self._current = line.popleft()
            if line:
                self._line[party] = line
        self._changed.notify_all()


@dataclass(eq=False)
class Place:
    """One request's place. A context manager, so that it is given back whatever happens."""

    turnstile: Turnstile
    party: str
    taken_s: float = field(default_factory=time.monotonic)
    began_s: float | None = None
    waited_s: float | None = None
    """From taking the place to the turn; None until then."""

    def wait(self, cancel: threading.Event | None = None) -> bool:
        """Join the line and block until it is this one's turn; False if `cancel` was set."""
        return self.turnstile._wait(self, cancel)

    def leave(self) -> None:
        """Give the place or the turn back; a second call does nothing."""
        self.turnstile._leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
