"""The line for the engine: order, bounds, and leaving it."""

from __future__ import annotations

import threading
import time

import pytest

from app.turnstile import LONGEST_RETRY_S, PAGE, Place, QueueFull, Turnstile
from tests.app.serving import in_thread, until


class Line:
    """Places that wait in threads of their own; `order` has their names as their turns come."""

    def __init__(self, turnstile: Turnstile) -> None:
        self.turnstile = turnstile
        self.order: list[str] = []
        self.go = threading.Semaphore(0)

    def join(self, party: str, name: str, cancel: threading.Event | None = None) -> threading.Thread:
        place = self.turnstile.take(party)

        def wait() -> None:
            with place:
                if place.wait(cancel):
                    self.order.append(name)
                    self.go.acquire()

        thread, _ = in_thread(wait)
        until(lambda: self._joined(place))
        return thread

    def _joined(self, place: Place) -> bool:
        return self.turnstile._current is place or place in self.turnstile._line.get(place.party, ())


def test_turns_go_round_the_parties() -> None:
    line = Line(Turnstile())
    threads = [line.join(name[0], name) for name in ("a1", "a2", "a3", "b1", "p1", "b2")]
    for _ in threads:
        line.go.release()
    for thread in threads:
        thread.join(60)
    assert line.order == ["a1", "a2", "b1", "p1", "a3", "b2"]
    assert line.turnstile.waiting == 0


def test_one_at_a_time() -> None:
    turnstile, inside, most = Turnstile(100), [0], [0]

    def work() -> None:
        with turnstile.turn("a") as mine:
            assert mine
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.001)
            inside[0] -= 1

    threads = [in_thread(work)[0] for _ in range(20)]
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert turnstile.places("a") == 0


def test_the_line_is_bounded_in_all_and_for_each() -> None:
    turnstile = Turnstile(most_waiting=3, most_each=2)
    places = [turnstile.take("a"), turnstile.take("a")]
    with pytest.raises(QueueFull):
        turnstile.take("a")
    places.append(turnstile.take("b"))
    assert turnstile.full
    with pytest.raises(QueueFull):
        turnstile.take("c")
    assert turnstile.take(PAGE, bounded=False).wait(), "the page has a queue of its own"
    places[0].leave()
    places[0].leave()
    assert turnstile.take("c").party == "c"


def test_the_one_that_has_its_turn_waits_no_more() -> None:
    turnstile = Turnstile(most_waiting=1)
    first = turnstile.take("a")
    assert first.wait()
    assert turnstile.waiting == 0
    assert turnstile.take("a").party == "a"
    assert turnstile.full


def test_giving_up_leaves_the_line() -> None:
    line = Line(Turnstile())
    cancel = threading.Event()
    first, second, third = line.join("a", "a1"), line.join("b", "b1", cancel), line.join("c", "c1")
    cancel.set()
    second.join(60)
    line.go.release()
    line.go.release()
    first.join(60)
    third.join(60)
    assert line.order == ["a1", "c1"]


def test_a_place_that_was_given_up_before_gets_no_turn() -> None:
    turnstile, cancel = Turnstile(), threading.Event()
    cancel.set()
    with turnstile.turn("a", cancel) as mine:
        assert not mine
    assert turnstile.places("a") == 0
    with turnstile.turn("b") as mine:
        assert mine


def test_retry_after_is_as_long_as_the_last_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turnstile, clock = Turnstile(), [0.0]
    monkeypatch.setattr("app.turnstile.time.monotonic", lambda: clock[0])
    assert turnstile.retry_after_s == 1
    for seconds, expected in ((6.2, 7), (0.1, 1), (1e4, LONGEST_RETRY_S)):
        with turnstile.turn("a"):
            clock[0] += seconds
        assert turnstile.retry_after_s == expected
