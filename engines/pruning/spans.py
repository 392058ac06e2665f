"""Which groups of tokens share a budget, how large it is, and what every group is promised of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.pruning.base import Group, Selection


def cut_spans(sizes: Sequence[tuple[int, int]], scope: str, largest: int | None = None) -> list[range]:
    """Put neighbouring groups, given as (item, tokens), together as far as the scope reaches.

    A span never holds more than `largest` tokens, unless it is a single group: that is bounded by the largest
    picture that the processor makes.
    """
    found: list[range] = []
    held = 0
    for index, (item, tokens) in enumerate(sizes):
        joins = index > 0 and (scope == "prompt" or (scope == "item" and sizes[index - 1][0] == item))
        if joins and (largest is None or held + tokens <= largest):
            found[-1] = range(found[-1].start, index + 1)
            held += tokens
        else:
            found.append(range(index, index + 1))
            held = tokens
    return found


def budget(tokens: int, keep_ratio: float, promised: int) -> int:
    """How many of a span's tokens are kept: the nearest whole number, but no fewer than its groups are promised."""
    return min(tokens, max(int(tokens * keep_ratio + 0.5), promised))


def keep_promises(selection: Selection, groups: tuple[Group, ...], floors: Sequence[int]) -> Tensor:
    """The chosen tokens as a mask (tokens,), changed where a group has fewer than its floor.

    Such a group gets its best dropped tokens; in exchange the worst kept ones go, of groups that have more than
    theirs. Of equal scores the earlier token is the better one.
    """
    mask = torch.zeros(sum(group.tokens for group in groups), dtype=torch.bool)
    mask[selection.kept.cpu()] = True
    short = [max(0, floor - int(mask[group.rows_of].sum())) for group, floor in zip(groups, floors, strict=True)]
    if not any(short):
        return mask
    assert selection.scores is not None, "a method without scores chooses one group at a time"
    order = torch.argsort(selection.scores.cpu(), descending=True, stable=True)
    owner = torch.cat([torch.full((group.tokens,), index) for index, group in enumerate(groups)])
    spare = [int(mask[group.rows_of].sum()) - floor for group, floor in zip(groups, floors, strict=True)]
    kept = order[mask[order]].tolist()
    for index, missing in enumerate(short):
        dropped = order[(owner[order] == index) & ~mask[order]]
        mask[dropped[:missing]] = True
    given = sum(short)
    for token in reversed(kept):
        if given and spare[group := int(owner[token])] > 0:
            mask[token] = False
            spare[group] -= 1
            given -= 1
    return mask
