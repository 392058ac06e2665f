"""The engine as the page and the endpoint see it: every run of either is told to those who count and trace."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from engines.compare import Runner, SideEvent
from engines.config import CompressionConfig
from engines.device.report import DeviceReading, Placement
from engines.divergence_report import DivergenceReport
from engines.reports import CacheStats, CollapseReport
from engines.results import Capabilities, Event, Finished, RunRequest, RunResult, TokenReady

log = logging.getLogger(__name__)


class WorkbenchEngine(Runner, Protocol):
    """What the page and the endpoint need of an engine."""

    def capabilities(self) -> Capabilities: ...

    def check(self, config: CompressionConfig) -> None: ...

    def cache_totals(self) -> dict[str, CacheStats]: ...

    def check_fp16(self, request: RunRequest) -> CollapseReport: ...

    def divergence(
        self, request: RunRequest, config: CompressionConfig, answer: tuple[int, ...] = ()
    ) -> Iterator[SideEvent | DivergenceReport]: ...

    def read_device(self) -> DeviceReading: ...

    def placement(self) -> Placement: ...

    def clear_caches(self, level: str | None = None, tenant: str | None = None, scope: str | None = None) -> None: ...


@dataclass
class Observation:
    """One run, from its beginning to however it ended. Without `result` and `error` its reader went away."""

    request: RunRequest
    config: CompressionConfig
    began_ns: int = field(default_factory=time.time_ns)
    """Wall clock."""
    token_times_s: list[float] = field(default_factory=list)
    """When each token was ready, on the engine's clock."""
    result: RunResult | None = None
    error: Exception | None = None


class Watcher(Protocol):
    """Someone who is told about every run, in the thread of the run."""

    def began(self, run: Observation) -> None: ...

    def ended(self, run: Observation) -> None: ...


class ObservedEngine:
    """Passes everything on to the engine."""

    def __init__(self, engine: WorkbenchEngine, watchers: Sequence[Watcher]) -> None:
        self._engine = engine
        self._watchers = watchers

    def capabilities(self) -> Capabilities:
        return self._engine.capabilities()

    def cache_totals(self) -> dict[str, CacheStats]:
        return self._engine.cache_totals()

    def check_fp16(self, request: RunRequest) -> CollapseReport:
        return self._engine.check_fp16(request)

    def divergence(
        self, request: RunRequest, config: CompressionConfig, answer: tuple[int, ...] = ()
    ) -> Iterator[SideEvent | DivergenceReport]:
        return self._engine.divergence(request, config, answer)

    def read_device(self) -> DeviceReading:
        return self._engine.read_device()

    def placement(self) -> Placement:
        return self._engine.placement()

    def clear_caches(self, level: str | None = None, tenant: str | None = None, scope: str | None = None) -> None:
        self._engine.clear_caches(level, tenant, scope)

    def check(self, config: CompressionConfig) -> None:
        self._engine.check(config)

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        run = Observation(request, config)
        for watcher in self._watchers:
            _tell(watcher.began, run)
        try:
            with closing(self._engine.run(request, config)) as events:  # type: ignore[type-var]
                for event in events:
                    if isinstance(event, TokenReady):
                        run.token_times_s.append(event.at_s)
                    elif isinstance(event, Finished):
                        run.result = event.result
                    yield event
        except Exception as error:
            run.error = error
            raise
        finally:
            for watcher in self._watchers:
                _tell(watcher.ended, run)


def _tell(listener: Callable[[Observation], None], run: Observation) -> None:
    """Who counts must not be able to break a run."""
    try:
        listener(run)
    except Exception:
        log.exception("A run could not be counted")
