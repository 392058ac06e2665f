"""The clock of a run."""

from __future__ import annotations

import json

import pytest

from engines.trace import Tracer, chrome_trace


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


def test_chrome_export_nests_and_adds_up() -> None:
    """What Perfetto shows is the spans and nothing else: each inside its parent, all inside the run."""
    clock = FakeClock()
    tracer = Tracer(lambda: None, clock)
    with tracer.span("vision encode", tokens=5):
        clock.now_s += 0.1
        with tracer.span("layer"):
            clock.now_s += 0.2
    for token in range(3):
        with tracer.span("decode", token=token):
            clock.now_s += 1 / 3
    clock.now_s += 0.05
    trace = tracer.finish()
    file = json.loads(json.dumps(chrome_trace({"full": [trace], "compressed": [trace, trace]})))
    named = {
        (event["pid"], event.get("tid")): event["args"]["name"] for event in file["traceEvents"] if event["ph"] == "M"
    }
    assert (named[1, None], named[2, None], named[2, 2]) == ("full", "compressed", "run 2")
    for pid, tid in ((1, 1), (2, 1), (2, 2)):
        events = [one for one in file["traceEvents"] if one["ph"] == "X" and (one["pid"], one["tid"]) == (pid, tid)]
        (run,) = [event for event in events if event["name"] == "run"]
        assert run["dur"] == pytest.approx(trace.total_s * 1e6)
        for name in ("vision encode", "layer", "decode"):
            mine = [event for event in events if event["name"] == name]
            assert sum(event["dur"] for event in mine) == pytest.approx(trace.stage_s(name) * 1e6, abs=0.01)
        assert [event["args"] for event in events if event["name"] == "vision encode"] == [{"tokens": 5}]
        open_until: list[float] = []
        for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            end = round(event["ts"] + event["dur"], 3)
            assert not open_until or end <= open_until[-1], "an event ends inside the one around it"
            open_until.append(end)
