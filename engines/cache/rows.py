"""A prompt, position by position, as far as it decides keys and values: what the blocks of the prefix cache hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Self

import numpy as np
import numpy.typing as npt

from engines.tokens.registry import TokenRegistry, spread

# Tokens of a block, where nothing cuts it short.
BLOCK_TOKENS = 32


class Modality(IntFlag):
    """Which kinds of content are in a stretch of a prompt."""

    NONE = 0
    TEXT = 1
    IMAGE = 2
    VIDEO = 4


@dataclass(frozen=True)
class Rows:
    """Positions of an unpruned prompt, and of the answer's tokens after it. All arrays lie on the CPU."""

    ids: npt.NDArray[np.int64]
    """(length,)."""
    positions: npt.NDArray[np.int64]
    """(3, length): M-RoPE."""
    kinds: npt.NDArray[np.uint8]
    """(length,): the `Modality` of each position."""
    groups: npt.NDArray[np.int64]
    """(length,): which image or frame group a visual position belongs to, -1 for text."""
    contents: tuple[str, ...]
    """A digest for each image or frame group."""
    kept: npt.NDArray[np.bool_]
    """(length,): the positions that have a row in the KV cache."""
    prompt: int
    """How many positions are the prompt's."""

    @classmethod
    def of(cls, tokens: TokenRegistry, contents: Sequence[str]) -> Self:
        """A prompt of which nothing is dropped; `contents` has each group's digest, in prompt order."""
        kinds = np.full(len(tokens), Modality.TEXT, dtype=np.uint8)
        for index, group in enumerate(tokens.groups):
            kinds[tokens.group_of == index] = Modality.IMAGE if group.kind == "image" else Modality.VIDEO
        whole = np.ones(len(tokens), dtype=np.bool_)
        return cls(tokens.ids, tokens.positions, kinds, tokens.group_of, tuple(contents), whole, len(tokens))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def modality(self) -> Modality:
        return self.modality_of(0, len(self))

    @property
    def media_end(self) -> int:
        """One past the last visual position; 0 without any."""
        visual = np.flatnonzero(self.groups >= 0)
        return int(visual[-1]) + 1 if len(visual) else 0

    def modality_of(self, start: int, stop: int) -> Modality:
        return Modality(int(np.bitwise_or.reduce(self.kinds[start:stop], initial=0)))

    def rows_before(self, position: int) -> int:
        """Rows of the KV cache that the positions before this one have."""
        return int(self.kept[:position].sum())

    def visual_between(self, start: int, stop: int) -> int:
        return int((self.groups[start:stop] >= 0).sum())

    def keeping(self, cells: Sequence[bool]) -> Self:
        """With the visual positions that are dropped.

        What a kept token holds may then come from dropped ones, wherever they are, and so each group's digest takes
        in all media and all that was kept of them.
        """
        if all(cells):
            return self
        kept = self.kept & spread(self.groups >= 0, cells)
        whole = "".join(self.contents).encode() + kept[self.groups >= 0].tobytes()
        contents = tuple(hashlib.sha256(content.encode() + whole).hexdigest() for content in self.contents)
        return replace(self, kept=kept, contents=contents)

    def first(self, length: int) -> Self:
        """The first positions alone."""
        return replace(
            self,
            ids=self.ids[:length],
            positions=self.positions[:, :length],
            kinds=self.kinds[:length],
            groups=self.groups[:length],
            kept=self.kept[:length],
        )

    def followed_by(self, tokens: Sequence[int], next_position: int) -> Self:
        """With the tokens of an answer, all of them text, from the M-RoPE position `next_position` on."""
        new = len(tokens)
        places = np.broadcast_to(np.arange(next_position, next_position + new), (3, new))
        return replace(
            self,
            ids=np.concatenate([self.ids, np.asarray(tokens, dtype=np.int64)]),
            positions=np.concatenate([self.positions, places], axis=1),
            kinds=np.concatenate([self.kinds, np.full(new, Modality.TEXT, dtype=np.uint8)]),
            groups=np.concatenate([self.groups, np.full(new, -1, dtype=np.int64)]),
            kept=np.concatenate([self.kept, np.ones(new, dtype=np.bool_)]),
        )

    def key(self, before: bytes, start: int, stop: int) -> bytes:
        """The key of the block of these positions after the block whose key is `before`."""
        digest = hashlib.sha256(before + f"{stop - start}".encode())
        for array in (self.ids, self.positions, self.groups, self.kept):
            digest.update(np.ascontiguousarray(array[..., start:stop]).tobytes())
        groups = self.groups[start:stop]
        for group in np.unique(groups[groups >= 0]):
            digest.update(self.contents[group].encode())
        return digest.digest()

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Where blocks from `start` on begin and end.

        A block ends before the first of the media and with every image or frame group, so that another question finds
        the media whole, and with the prompt, so that the next turn of a conversation finds all of it.
        """
        visual = self.groups >= 0
        cuts = [*np.flatnonzero(visual)[:1], *(np.flatnonzero(visual[:-1] & ~visual[1:]) + 1), self.prompt, stop]
        for cut in sorted(int(cut) for cut in cuts):
            while start < min(cut, stop):
                end = min(start + BLOCK_TOKENS, cut, stop)
                yield start, end
                start = end
