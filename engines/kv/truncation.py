"""Which blocks of one layer are released while decoding.

A block goes when it holds too few live tokens, or when it adds less and less to what its layer attends to. The newest
block always stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


def too_few_live(live: Tensor, minimum: int, *, newest: bool = True) -> Tensor:
    """(blocks,) bool from `live` (blocks, tokens) bool: fewer than `minimum` live tokens, or none at all.

    `newest`: whether the last one is the newest block.
    """
    release = live.sum(dim=-1) < max(1, minimum)
    if newest:
        release[-1:] = False
    return release


@dataclass(frozen=True)
class FadingNorms:
    """The norms of what each block added to the attention output: in its first step, and for how long too low.

    The norm of a block at one step is the L2 norm, over all heads and channels, of the attention-weighted sum of its
    values. It is judged against the block's own first step: cached keys and values themselves never change.
    """

    first: Tensor
    """(blocks,) float32; NaN before the first step."""
    below: Tensor
    """(blocks,) int8: steps in a row below the floor."""

    @classmethod
    def empty(cls, blocks: int, device: torch.device) -> Self:
        below = torch.zeros(blocks, dtype=torch.int8, device=device)
        return cls(torch.full((blocks,), torch.nan, device=device), below)

    def append(self) -> FadingNorms:
        newer = FadingNorms.empty(1, self.first.device)
        return FadingNorms(torch.cat((self.first, newer.first)), torch.cat((self.below, newer.below)))

    def select(self, keep: Tensor) -> FadingNorms:
        return FadingNorms(self.first[keep], self.below[keep])

    def step(self, norms: Tensor, floor: float, steps: int) -> tuple[FadingNorms, Tensor]:
        """After a step with `norms` (blocks,): the new state, and which blocks to release, (blocks,) bool."""
        first = torch.where(self.first.isnan(), norms, self.first)
        below = torch.where(norms < floor * first, self.below + 1, 0).to(torch.int8)
        release = below >= steps
        release[-1:] = False
        return FadingNorms(first, below), release
