"""What a cache was asked and what it holds, counted by whom its entries are shared with."""

from __future__ import annotations

from functools import reduce

from engines.reports import CacheStats


class Tally:
    """Counters that go on for as long as the cache lives; what is held goes up and down."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._scopes: dict[str, CacheStats] = {}

    def add(self, scope: str, more: CacheStats) -> None:
        self._scopes[scope] = self._scopes.get(scope, CacheStats()).and_then(more)

    @property
    def evictions(self) -> int:
        return sum(stats.evictions for stats in self._scopes.values())

    def stats(self) -> CacheStats:
        whole = reduce(CacheStats.and_then, self._scopes.values(), CacheStats(budget_bytes=self._budget_bytes))
        return CacheStats(**{**vars(whole), "scopes": dict(self._scopes)})
