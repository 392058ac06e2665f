"""Encoder cache: an image or a frame group that was encoded before is not encoded again."""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import Cache, LRUCache
from torch import Tensor

from engines.cache.scope import TENANT, Owner
from engines.cache.tally import Tally
from engines.reports import CacheStats

LEVEL = "encoder"
# Whose an entry is where nobody is named.
NOBODY = Owner("", "", TENANT)


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
    owner: Owner


class _CountingLRU(LRUCache[str, _Entry]):
    """cachetools' LRU by bytes, which also counts what comes and goes."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, getsizeof=lambda entry: entry.features.nbytes)
        self.tally = Tally(capacity_bytes)

    def peek(self, key: str) -> _Entry:
        """Without its being a use."""
        return Cache.__getitem__(self, key)

    def __setitem__(self, key: str, entry: _Entry) -> None:
        if key in self:
            del self[key]
        super().__setitem__(key, entry)
        self.tally.add(entry.owner.scope, CacheStats(bytes=entry.features.nbytes, entries=1))

    def __delitem__(self, key: str) -> None:
        entry = self.peek(key)
        super().__delitem__(key)
        self.tally.add(entry.owner.scope, CacheStats(bytes=-entry.features.nbytes, entries=-1))

    def popitem(self) -> tuple[str, _Entry]:
        key, entry = super().popitem()
        self.tally.add(entry.owner.scope, CacheStats(evictions=1))
        return key, entry


class EncoderCache:
    """Features by content key, least recently used out first, never more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self._entries = _CountingLRU(capacity_bytes)
        self._tally = self._entries.tally

    def get(self, key: str, owner: Owner = NOBODY) -> tuple[Features, float] | None:
        """The features and the seconds that encoding them once cost, or None."""
        entry = self._entries.get(key)
        if entry is None:
            self._tally.add(owner.scope, CacheStats(queries=1))
            return None
        tokens = len(entry.features.pooled)
        self._tally.add(owner.scope, CacheStats(queries=1, hits=1, tokens=tokens, saved_s=entry.cost_s))
        return entry.features, entry.cost_s

    def put(self, key: str, features: Features, cost_s: float, owner: Owner = NOBODY) -> bool:
        """Keep a copy; False if it is larger than the whole cache."""
        if features.nbytes > self._entries.maxsize:
            return False
        # A slice of a batch would keep the whole batch alive beyond the byte budget.
        own = Features(features.pooled.clone(), tuple(tensor.clone() for tensor in features.deepstack))
        self._entries[key] = _Entry(own, cost_s, owner)
        return True

    @property
    def evictions(self) -> int:
        """Since the start."""
        return self._tally.evictions

    def clear(self, tenant: str | None = None, scope: str | None = None) -> None:
        """Forget the entries of one tenant, or all, and of one scope, or all. Counters go on: they say what happened
        since the start.
        """
        for key in list(self._entries):
            if self._entries.peek(key).owner.within(tenant, scope):
                del self._entries[key]

    def stats(self) -> CacheStats:
        return self._tally.stats()
