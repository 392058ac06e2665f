"""Where the time of a run went: spans on one clock, which is stopped only after the device is idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# The stages of a run in the order in which they happen; each is a span of that name.
STAGES = (
    "decode media",
    "preprocess",
    "prefix-cache lookup",
    "encoder-cache lookup",
    "vision encode",
    "prune",
    "prefill",
    "compress KV",
    "decode",
    "detokenise",
    "prefix-cache store",
)


@dataclass(frozen=True)
class Span:
    """A stretch of a run, in seconds since the run began. `parent` is the name of the span around it, if any."""

    name: str
    start_s: float
    end_s: float
    parent: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Trace:
    """All spans of a run and its end-to-end time."""

    spans: tuple[Span, ...]
    total_s: float

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def stage_s(self, name: str) -> float:
        """Seconds in all spans of this name; 0 if there is none."""
        return sum(span.duration_s for span in self.named(name))

    @property
    def unaccounted_s(self) -> float:
        """End-to-end time that lies in no top-level span."""
        return self.total_s - sum(span.duration_s for span in self.spans if span.parent is None)

    def to_chrome(self, pid: int = 1, tid: int = 1) -> list[dict[str, Any]]:
        """Complete events of Chrome's trace format, in microseconds: the run, and within it its spans."""
        run = Span("run", 0.0, max([self.total_s, *(span.end_s for span in self.spans)]))
        return [_event(span, pid, tid) for span in (run, *self.spans)]


def chrome_trace(runs: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    """A file for Perfetto or chrome://tracing: a process for each name, in it a thread for each of its traces.

    Every run starts at 0, so that they can be laid over each other.
    """
    events: list[dict[str, Any]] = []
    for pid, (name, traces) in enumerate(runs.items(), start=1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
        for tid, trace in enumerate(traces, start=1):
            label = {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": f"run {tid}"}}
            events += [label, *trace.to_chrome(pid, tid)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(span: Span, pid: int, tid: int) -> dict[str, Any]:
    # Whole nanoseconds: viewers nest events by their ends, which must not differ by a rounding of the sum.
    start_us, end_us = round(span.start_s * 1e6, 3), round(span.end_s * 1e6, 3)
    event = {"name": span.name, "ph": "X", "ts": start_us, "dur": round(end_us - start_us, 3), "pid": pid, "tid": tid}
    return {**event, "args": span.attributes}


class Tracer:
    """Collects the spans of one run.

    `synchronise` waits until the device has finished its queued work; it is called before a span opens and before
    it closes, so that no span is charged for another's kernels. The clock stands still while `paused`, which is how
    the time that a reader of a stream spends between two events is kept out of the run.
    """

    def __init__(self, synchronise: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._synchronise = synchronise
        self._clock = clock
        self._spans: list[Span] = []
        self._open: list[str] = []
        self._paused_s = 0.0
        self._synchronise()
        self._origin_s = clock()

    def now_s(self) -> float:
        """Seconds since the run began, pauses left out."""
        return self._clock() - self._origin_s - self._paused_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        start_s = self._clock()
        try:
            yield
        finally:
            self._paused_s += self._clock() - start_s

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[dict[str, Any]]:
        """Time the body. The body may add to the attributes that it is given."""
        parent = self._open[-1] if self._open else None
        self._synchronise()
        start_s = self.now_s()
        self._open.append(name)
        try:
            yield attributes
            self._synchronise()
        finally:
            self._open.pop()
            self._spans.append(Span(name, start_s, self.now_s(), parent, attributes))

    def seconds(self, *names: str) -> float:
        """In the spans of these names that have closed."""
        return sum(span.duration_s for span in self._spans if span.name in names)

    @property
    def last(self) -> Span:
        """The span closed last."""
        return self._spans[-1]

    def finish(self) -> Trace:
        self._synchronise()
        return Trace(tuple(sorted(self._spans, key=lambda span: span.start_s)), self.now_s())
