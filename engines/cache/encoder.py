"""Encoder cache: an image or a frame group that was encoded before is not encoded again."""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import LRUCache
from torch import Tensor

from engines.reports import CacheStats

LEVEL = "encoder"


@dataclass(frozen=True)
class Features:
    """What the vision tower makes of one image or frame group."""

    pooled: Tensor
    """(tokens, hidden): merged visual tokens."""
    deepstack: tuple[Tensor, ...]
    """(tokens, hidden) for every deepstack layer, none where the model has no deepstack."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.pooled, *self.deepstack))


@dataclass(frozen=True)
class _Entry:
    features: Features
    cost_s: float
    tenant: str


class _CountingLRU(LRUCache[str, _Entry]):
    """cachetools' LRU by bytes, which also counts what it evicts."""

    evictions = 0

    def popitem(self) -> tuple[str, _Entry]:
        self.evictions += 1
        return super().popitem()


class EncoderCache:
    """Features by content key, least recently used out first, never more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self._entries = _CountingLRU(capacity_bytes, getsizeof=lambda entry: entry.features.nbytes)
        self._queries = self._hits = 0
        self._tokens = 0
        self._saved_s = 0.0

    def get(self, key: str) -> tuple[Features, float] | None:
        """The features and the seconds that encoding them once cost, or None."""
        self._queries += 1
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._hits += 1
        self._tokens += len(entry.features.pooled)
        self._saved_s += entry.cost_s
        return entry.features, entry.cost_s

    def put(self, key: str, features: Features, cost_s: float, tenant: str = "") -> bool:
        """Keep a copy; False if it is larger than the whole cache."""
        if features.nbytes > self._entries.maxsize:
            return False
        # A slice of a batch would keep the whole batch alive beyond the byte budget.
        own = Features(features.pooled.clone(), tuple(tensor.clone() for tensor in features.deepstack))
        self._entries[key] = _Entry(own, cost_s, tenant)
        return True

    def clear(self, tenant: str | None = None) -> None:
        """Forget the entries of one tenant, or all. Counters go on: they say what happened since the start."""
        for key in [key for key, entry in self._entries.items() if tenant is None or entry.tenant == tenant]:
            del self._entries[key]

    def stats(self) -> CacheStats:
        return CacheStats(
            queries=self._queries,
            hits=self._hits,
            bytes=int(self._entries.currsize),
            entries=len(self._entries),
            evictions=self._entries.evictions,
            saved_s=self._saved_s,
            tokens=self._tokens,
        )
