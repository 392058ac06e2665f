"""Prefix cache: keys and values of the beginnings of earlier prompts, and of the answers to them.

Blocks form a tree under each owner and each set of settings. A block's key is a chained hash, over its own positions
and the key of the block before it, so that equal keys have everything before them in common too. A block is as long as
the prompt that first brought it made it; a lookup follows the longest blocks that fit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engines.cache.plan import Plans
from engines.cache.rows import Modality, Rows
from engines.cache.scope import Owner
from engines.cache.tally import Tally
from engines.reports import CacheStats

LEVEL = "prefix"
# The part of the bytes that is for remembering which visual tokens were kept.
_PLANS_SHARE = 32


@dataclass(eq=False)
class Block:
    """Keys and values of a stretch of a prompt. A root is a block of no tokens."""

    key: bytes
    owner: Owner
    before: Block | None = None
    tokens: int = 0
    modality: Modality = Modality.NONE
    """The kinds of content up to here: a request must have them all."""
    states: Tensor | None = None
    """(layers, 2, heads, rows, head size): of the positions that were kept."""
    prefill_s: float = 0.0
    """Its share of the prefill that made it."""
    encode_s: float = 0.0
    """Its share of encoding and choosing the visual tokens, for a block that has some."""
    after: dict[bytes, Block] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    """How many of the blocks after it have so many tokens."""
    users: int = 0
    """Runs that need it to stay."""

    @property
    def nbytes(self) -> int:
        return 0 if self.states is None else self.states.nbytes


@dataclass(frozen=True)
class Cost:
    """What computing once cost, in seconds a token."""

    prefill_s: float
    encode_s: float = 0.0
    """A visual token's share of encoding and choosing."""


@dataclass(frozen=True)
class Match:
    """The beginning of a prompt that is cached. While it is held, its blocks stay."""

    blocks: tuple[Block, ...]
    tokens: int
    """Prompt positions covered."""
    rows: int
    """Rows of the KV cache that these have."""

    def states(self) -> Tensor:
        """(layers, 2, heads, rows, head size), in memory of its own. There must be a block."""
        return torch.cat([block.states for block in self.blocks if block.states is not None], dim=3)[
            ..., : self.rows, :
        ]

    @property
    def nbytes(self) -> int:
        stored = sum(block.nbytes for block in self.blocks)
        rows = sum(block.states.shape[3] for block in self.blocks if block.states is not None)
        return stored * self.rows // rows if rows else 0

    def saved_s(self, *, encoded: bool) -> float:
        """The measured cost of first making what is reused; `encoded` says that the media were encoded all the same."""
        return sum(block.prefill_s + (0.0 if encoded else block.encode_s) for block in self.blocks)


class PrefixCache:
    """Blocks of keys and values, the least recently used leaf out first, never more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.plans = Plans(capacity_bytes // _PLANS_SHARE)
        self._capacity_bytes = capacity_bytes - capacity_bytes // _PLANS_SHARE
        self._roots: dict[bytes, Block] = {}
        # Of two blocks on one path the later one always stands earlier here, so that the first is a leaf.
        self._order: OrderedDict[Block, None] = OrderedDict()
        self._bytes = 0
        self._tally = Tally(capacity_bytes)

    @contextmanager
    def find(self, root: bytes, rows: Rows, most: int) -> Iterator[Match]:
        """The longest cached beginning of these positions, `most` of them at most; held until the context closes."""
        blocks, tokens = self._walk(root, rows)
        for block in blocks:
            block.users += 1
        tokens = min(tokens, most)
        try:
            yield Match(tuple(blocks), tokens, rows.rows_before(tokens))
        finally:
            for block in blocks:
                block.users -= 1

    def count(self, owner: Owner, match: Match, queried: int, saved_s: float) -> CacheStats:
        """Take a lookup of so many tokens into the statistics; returns what it comes to by itself."""
        counted = CacheStats(queried, match.tokens, saved_s=saved_s, tokens=match.tokens)
        self._tally.add(owner.scope, counted)
        return replace(counted, bytes=match.nbytes)

    def add(self, root: bytes, owner: Owner, rows: Rows, states: Callable[[int, int], Tensor], cost: Cost) -> int:
        """Keep what is not there yet, as much as fits; returns the number of new blocks.

        `states(first, end)` makes a tensor (layers, 2, heads, end - first, head size) of its own of these rows.
        """
        path, at = self._walk(root, rows)
        last = path[-1] if path else self._roots.get(root) or Block(root, owner)
        known = len(path)
        for block in path:
            block.users += 1
        try:
            for start, stop in rows.blocks(at, len(rows)):
                own = states(rows.rows_before(start), rows.rows_before(stop))
                if not self._make_room(own.nbytes):
                    break
                block = Block(
                    key=rows.key(last.key, start, stop),
                    owner=owner,
                    before=last,
                    tokens=stop - start,
                    modality=last.modality | rows.modality_of(start, stop),
                    states=own,
                    prefill_s=cost.prefill_s * (stop - start),
                    encode_s=cost.encode_s * rows.visual_between(start, stop),
                )
                self._link(block)
                block.users += 1
                path.append(block)
                last = block
        finally:
            for block in path:
                block.users -= 1
            self._touch(path)
        return len(path) - known

    def clear(self, tenant: str | None = None, scope: str | None = None) -> None:
        """Forget the blocks of one tenant, or all, and of one scope, or all. Counters go on: they say what happened
        since the start.
        """
        self.plans.clear(tenant, scope)
        for block in list(self._order):
            if block.owner.within(tenant, scope):
                self._unlink(block)

    @property
    def evictions(self) -> int:
        """Since the start."""
        return self._tally.evictions

    def stats(self) -> CacheStats:
        """What the plans take up is in the whole alone."""
        counted = self._tally.stats()
        return replace(counted, bytes=counted.bytes + self.plans.nbytes)

    def _walk(self, root: bytes, rows: Rows) -> tuple[list[Block], int]:
        """The blocks that these positions begin with, and how many positions they are."""
        path: list[Block] = []
        at = 0
        block = self._roots.get(root)
        while block is not None:
            block = self._next(block, rows, at)
            if block is not None:
                path.append(block)
                at += block.tokens
        self._touch(path)
        return path, at

    @staticmethod
    def _next(block: Block, rows: Rows, at: int) -> Block | None:
        for length in sorted(block.lengths, reverse=True):
            if at + length <= len(rows):
                found = block.after.get(rows.key(block.key, at, at + length))
                if found is not None and not found.modality & ~rows.modality:
                    return found
        return None

    def _touch(self, path: list[Block]) -> None:
        for block in reversed(path):
            self._order.move_to_end(block)

    def _make_room(self, needed: int) -> bool:
        """False if so much cannot be had without what is in use."""
        while self._bytes + needed > self._capacity_bytes:
            victim = next((block for block in self._order if not block.users and not block.after), None)
            if victim is None:
                return False
            self._unlink(victim)
            self._tally.add(victim.owner.scope, CacheStats(evictions=1))
        return True

    def _link(self, block: Block) -> None:
        before = block.before
        assert before is not None
        if before.before is None:
            self._roots[before.key] = before
        before.after[block.key] = block
        before.lengths[block.tokens] += 1
        self._order[block] = None
        self._bytes += block.nbytes
        self._tally.add(block.owner.scope, CacheStats(bytes=block.nbytes, entries=1))

    def _unlink(self, block: Block) -> None:
        before = block.before
        assert before is not None
        del self._order[block]
        self._bytes -= block.nbytes
        self._tally.add(block.owner.scope, CacheStats(bytes=-block.nbytes, entries=-1))
        del before.after[block.key]
        before.lengths[block.tokens] -= 1
        if not before.lengths[block.tokens]:
            del before.lengths[block.tokens]
        if before.before is None and not before.after:
            # A root is left behind by every visitor and every change of the settings.
            del self._roots[before.key]
