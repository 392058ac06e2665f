"""Whole blocks of keys or of values in few bits, and the products that attention needs of them.

source: KIVI (arXiv 2402.02750) - keys are quantised per channel, because some channels are large in every token, and
values per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

KEYS, VALUES = -2, -1
"""The dimension over which one scale is shared: keys share it over a block's tokens, values over a token's channels."""

# A step finer than this share of the largest value is finer than bf16 itself resolves, and would cost zero points that
# float16 cannot hold.
_FINEST = 1 / 256
_LARGEST = torch.finfo(torch.float16).max
# Blocks are encoded so many at a time, so that the float32 copy of a long prompt stays small.
_AT_ONCE = 256


@dataclass(frozen=True)
class Codes:
    """(heads, blocks, tokens, size) values. A value is (code - zero) x scale; codes are signed.

    `data` holds codes as int8, two to a byte at 4 bits: the first half of the channels in the low halves of the
    bytes, the second half in the high ones. At 0 bits it holds the values themselves, without scale and zero.
    """

    bits: int
    data: Tensor
    scale: Tensor | None = None
    """float16, (heads, blocks, 1, size) for keys and (heads, blocks, tokens, 1) for values; so is `zero`."""
    zero: Tensor | None = None
    """In steps, and whole where the sparsity threshold must give an exact 0."""

    @classmethod
    def encode(cls, rows: Tensor, bits: int, shared: int, threshold: float = 0.0) -> Self:
        """Of `rows` (heads, blocks, tokens, size); `shared` is KEYS or VALUES.

        Values below `threshold` x the largest of their block and head are dropped to exact 0.
        """
        parts = [_encode(part, bits, shared, threshold) for part in rows.split(_AT_ONCE, dim=1)]
        joined = [None if one[0] is None else torch.cat(one, dim=1) for one in zip(*parts, strict=True)]
        assert joined[0] is not None
        return cls(bits, joined[0], joined[1], joined[2])

    @property
    def blocks(self) -> int:
        return self.data.shape[1]

    @property
    def tokens(self) -> int:
        """In a block."""
        return self.data.shape[2]

    def signed(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The codes as numbers of `dtype`, (heads, blocks, tokens, channels) for each run of channels in a row.

        Joining the two runs of 4-bit codes would cost as much time as a product with them.
        """
        if self.bits == 4:
            return (self.data << 4).bitwise_right_shift_(4).to(dtype), (self.data >> 4).to(dtype)
        return (self.data.to(dtype),)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The values, (heads, blocks, tokens, size)."""
        if self.scale is None or self.zero is None:
            return self.data.to(dtype)
        return ((torch.cat(self.signed(torch.float32), dim=-1) - self.zero.float()) * self.scale.float()).to(dtype)

    def append(self, newer: Codes) -> Codes:
        """These blocks and then the newer ones. Grown by what is added, so that no byte is held in reserve."""
        return self._each(newer, lambda ours, theirs: torch.cat((ours, theirs), dim=1))

    def select(self, keep: Tensor) -> Codes:
        """Only the blocks where `keep` (blocks,) is true."""
        return self._each(self, lambda ours, _: ours[:, keep])

    def tensors(self) -> Iterator[Tensor]:
        yield from (part for part in (self.data, self.scale, self.zero) if part is not None)

    @property
    def values(self) -> int:
        """How many values there are."""
        return self.data.numel() * (2 if self.bits == 4 else 1)

    def zeros(self) -> int:
        """How many values are exactly 0."""
        return int((self.decode(torch.float32) == 0).sum())

    def _each(self, other: Codes, join: Callable[[Tensor, Tensor], Tensor]) -> Codes:
        pairs = ((self.data, other.data), (self.scale, other.scale), (self.zero, other.zero))
        joined = [None if one is None or two is None else join(one, two) for one, two in pairs]
        assert joined[0] is not None
        return Codes(self.bits, joined[0], joined[1], joined[2])


def _encode(rows: Tensor, bits: int, shared: int, threshold: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if threshold:
        largest = rows.abs().amax(dim=(-2, -1), keepdim=True)
        rows = torch.where(rows.abs().float() < threshold * largest.float(), 0.0, rows)
    if not bits:
        return rows, None, None
    rows = rows.float()
    least = -(1 << (bits - 1))
    low, high = rows.amin(dim=shared, keepdim=True), rows.amax(dim=shared, keepdim=True)
    step = torch.maximum((high - low) / (2**bits - 1), torch.maximum(low.abs(), high.abs()) * _FINEST)
    # Codes are made with the scale and the zero as they are stored, so that their rounding does not add up.
    scale = step.clamp(max=_LARGEST).half()
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = least - low / scale.float()
    if threshold:
        zero = torch.where((low <= 0) & (high >= 0), zero.round(), zero)
    zero = zero.half()
    codes = (rows / scale.float() + zero.float()).round_().clamp_(least, -least - 1).to(torch.int8)
    if bits == 4:
        first, second = codes.chunk(2, dim=-1)
        codes = (first & 15) | (second << 4)
    return codes, scale, zero
