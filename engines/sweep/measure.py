"""All runs of one item: every point in turn, in an order that changes from item to item and repeat to repeat."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

from torch import Tensor

from engines.agreement import agreement
from engines.along import Along
from engines.cache.scope import Scope
from engines.config import CacheConfig, CompressionConfig, SamplingConfig
from engines.evaluation import Item
from engines.media import MediaLimits
from engines.results import Capabilities, EngineError, Event, Finished, RunRequest, RunResult
from engines.sweep.plan import SweepPlan
from engines.sweep.rows import Key, Row
from engines.sweep.space import config_of

Turn = Callable[[], AbstractContextManager[bool]]
"""Opens to wait for a turn at the engine; gives False when the wait was given up. Held for one run at a time."""


class SweepEngine(Protocol):
    """What a sweep needs of an engine."""

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]: ...

    def capabilities(self) -> Capabilities: ...

    def check(self, config: CompressionConfig) -> None: ...

    def clear_caches(self, level: str | None = None, tenant: str | None = None) -> None: ...


# The full model where only its answer counts: it may find what the vision tower made of the item before.
_UNTIMED = CompressionConfig(cache=CacheConfig(encoder=True))


class Stopped(Exception):
    """The sweep was cancelled; the run in progress is lost."""


@dataclass(frozen=True)
class Reference:
    """The full model's answer to an item, and its logits (positions, vocabulary) before each token; None if it has
    none.
    """

    tokens: tuple[int, ...]
    logits: Tensor | None


def order(plan: SweepPlan, item: int, only: Collection[int] | None = None) -> Iterator[Key]:
    """The runs of an item. Each repeat goes through all points, from another one on and every second time backwards,
    so that a drift of the machine touches all points alike.
    """
    points = [point for point in range(len(plan.points)) if only is None or point in only]
    for repeat in range(plan.repeats_of(item)):
        start = (item + repeat * (len(points) // plan.repeats + 1)) % len(points)
        turned = points[start:] + points[:start]
        yield from ((point, item, repeat) for point in (turned if (item + repeat) % 2 == 0 else reversed(turned)))


@dataclass(frozen=True)
class Measurer:
    """Runs items on one engine. Nothing that it leaves in the engine's caches is found by anyone else."""

    engine: SweepEngine
    plan: SweepPlan
    limits: MediaLimits = field(default_factory=MediaLimits)
    cancel: threading.Event | None = None
    turn: Turn | None = None
    tenant: str = field(default_factory=lambda: f"sweep-{uuid.uuid4().hex}")
    """Whose the cache entries are: nobody else's."""

    def measure(self, item: Item, keys: Collection[Key]) -> Iterator[Row]:
        """The given runs of an item, in their order. Raises Stopped when cancelled."""
        filled: set[int] = set()
        reference: Reference | None = None
        for point, index, repeat in keys:
            config = _config(self.plan.points[point])
            timed = index in self.plan.timed
            caching = is_caching(config)
            if timed and caching and point not in filled:
                # Once untimed, so that all timed runs find their caches filled, as PointResult.warm says.
                self._run(item, config, warm_up=True)
                filled.add(point)
            if not timed and not caching:
                # Only the answer counts here, and what the vision tower makes of an item is the same for all points
                # that leave the tower alone.
                config = _reusing(config)
            row = self._row((point, index, repeat), timed, self._run(item, config, warm_up=timed))
            if self.plan.measure_kl and repeat == 0 and row.error is None:
                if reference is None:
                    reference = self._reference(item)
                row = self._along(item, config, reference, row)
            yield row

    def forget(self) -> None:
        """Free what the runs left in the caches."""
        self.engine.clear_caches(tenant=self.tenant)

    def _reference(self, item: Item) -> Reference:
        watch = Along()
        result = self._run(item, _UNTIMED, warm_up=False, watch=watch)
        return Reference((), None) if isinstance(result, str) else Reference(result.tokens, watch.logits)

    def _along(self, item: Item, config: CompressionConfig, reference: Reference, row: Row) -> Row:
        """The row with the divergence along the full model's answer, if that has one."""
        if reference.logits is None:
            return row
        watch = Along(reference.tokens)
        if isinstance(self._run(item, _reusing(config), warm_up=False, watch=watch), str):
            return row
        found = agreement(reference.logits, watch.logits)
        return replace(row, kl_sum=found.mean_kl * found.positions, kl_positions=found.positions)

    def _run(
        self, item: Item, config: CompressionConfig, *, warm_up: bool, watch: Along | None = None
    ) -> RunResult | str:
        """The result, or why there is none."""
        request = RunRequest(
            question=item.question,
            media=item.media,
            sampling=SamplingConfig(max_new_tokens=self.plan.max_new_tokens, seed=self.plan.seed),
            frames=item.frames,
            limits=self.limits,
            warm_up=warm_up,
            cancel=self.cancel,
            scope=Scope(tenant=self.tenant),
            watch=watch,
        )
        with self._turn() as granted:
            if not granted or (self.cancel is not None and self.cancel.is_set()):
                raise Stopped
            try:
                with closing(self.engine.run(request, config)) as events:  # type: ignore[type-var]
                    result = next((event.result for event in events if isinstance(event, Finished)), None)
            except (EngineError, ValueError) as error:  # MediaError is a ValueError
                if self.cancel is not None and self.cancel.is_set():
                    raise Stopped from error
                return str(error)
        if result is None:
            return "The run ended without a result."
        if result.finish_reason == "cancelled":
            raise Stopped
        return result

    def _turn(self) -> AbstractContextManager[bool]:
        return self.turn() if self.turn is not None else nullcontext(True)

    def _row(self, key: Key, timed: bool, result: RunResult | str) -> Row:
        if isinstance(result, str):
            return Row(*key, timed=timed, error=result)
        pruned = result.prune_report
        return Row(
            *key,
            timed=timed,
            answer=result.answer,
            ttft_s=result.ttft_s if timed else None,
            total_s=result.trace.total_s if timed else None,
            peak_bytes=result.memory.peak_bytes if timed else None,
            weight_bytes=result.memory.weight_bytes,
            kv_bytes=result.memory.kv_cache_bytes,
            tokens=len(result.tokens),
            visual_before=pruned.tokens_before,
            visual_after=pruned.tokens_after,
        )


def is_caching(config: CompressionConfig) -> bool:
    """Whether a run finds what earlier ones left, and so is timed with its caches filled."""
    return config.cache.encoder or config.cache.prefix


def _reusing(config: CompressionConfig) -> CompressionConfig:
    """The same settings for a run whose times do not count."""
    return config if is_caching(config) else replace(config, cache=_UNTIMED.cache)


@cache
def _config(point: tuple[str, ...]) -> CompressionConfig:
    return config_of(point)
