"""The clock of a run."""

from __future__ import annotations

import pytest

from engines.trace import Tracer


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_spans_nest_and_pauses_do_not_count() -> None:
    clock = FakeClock()
    tracer = Tracer(lambda: None, clock)
    with tracer.span("prefill", tokens=3) as attributes:
        clock.now_s += 1.0
        with tracer.span("layers"):
            clock.now_s += 2.0
        attributes["kept"] = 2
    with tracer.paused():
        clock.now_s += 50.0
    clock.now_s += 0.5
    with tracer.span("decode"):
        clock.now_s += 1.5
    trace = tracer.finish()
    assert [(span.name, span.start_s, span.end_s, span.parent) for span in trace.spans] == [
        ("prefill", 0.0, 3.0, None),
        ("layers", 1.0, 3.0, "prefill"),
        ("decode", 3.5, 5.0, None),
    ]
    assert trace.spans[0].attributes == {"tokens": 3, "kept": 2}
    assert trace.total_s == 5.0
    assert trace.unaccounted_s == 0.5
    assert trace.stage_s("decode") == 1.5


def test_device_is_idle_before_a_span_opens_and_closes() -> None:
    """Work queued before a span, and work queued by it, is finished outside and inside of it."""
    clock = FakeClock()
    queued_s = [0.0]

    def synchronise() -> None:
        clock.now_s += queued_s[0]
        queued_s[0] = 0.0

    tracer = Tracer(synchronise, clock)
    queued_s[0] = 7.0
    with tracer.span("vision encode"):
        queued_s[0] = 2.0
    span = tracer.finish().spans[0]
    assert (span.start_s, span.duration_s) == (7.0, 2.0)


def test_a_span_that_fails_is_kept_with_its_time() -> None:
    clock = FakeClock()
    tracer = Tracer(lambda: None, clock)

    def fail() -> None:
        with tracer.span("prune"):
            clock.now_s += 1.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert tracer.finish().stage_s("prune") == 1.0


def test_chrome_export_is_in_microseconds() -> None:
    clock = FakeClock()
    tracer = Tracer(lambda: None, clock)
    with tracer.span("prefill", tokens=5):
        clock.now_s += 0.25
    (event,) = tracer.finish().to_chrome("full")
    assert (event["ph"], event["name"], event["ts"], event["dur"]) == ("X", "prefill", 0.0, 250_000.0)
    assert event["args"] == {"tokens": 5}
