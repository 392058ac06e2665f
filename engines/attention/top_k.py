"""Which keys of the other modality each head of a query keeps: its k best-scoring ones."""

from __future__ import annotations

import torch
from torch import Tensor


def best_keys(query: Tensor, key: Tensor, seen: Tensor, top_k: int) -> Tensor:
    """(heads, rows, keys) bool: for each head and row the `top_k` keys of the highest product among those `seen`.

    `query` (heads, rows, size); `key` (key heads, keys, size), each shared by neighbouring query heads as the layer
    repeats them; `seen` (rows, keys) bool. Of equal scores the earlier key wins; a row that sees no more than
    `top_k` keeps all that it sees. The products are those that the attention itself ranks by, in float32; scaling
    them would change nothing.
    """
    heads, rows, size = query.shape
    grouped = query.float().view(key.shape[0], -1, rows, size)
    scores = (grouped @ key.float().unsqueeze(1).mT).view(heads, rows, -1)
    scores = scores.masked_fill(~seen, -torch.inf)
    if top_k >= scores.shape[-1]:
        return seen.expand_as(scores)
    least = scores.topk(top_k, dim=-1).values[..., -1:]
    above = scores > least
    # Equal ones fill what is left in their order; topk by itself picks any of them.
    equal = scores == least
    filled = equal & (equal.cumsum(dim=-1) <= top_k - above.sum(dim=-1, keepdim=True))
    return (above | filled) & seen


def causal(queries: int, keys: int, start: int, device: torch.device) -> Tensor:
    """(queries, keys) bool: query i of a block that begins at place `start` sees itself and what came before."""
    places = torch.arange(start, start + queries, device=device)
    return torch.arange(keys, device=device) <= places[:, None]


def cross_modal_mask(
    query: Tensor, key: Tensor, seen: Tensor, query_visual: Tensor, key_visual: Tensor, top_k: dict[bool, int]
) -> tuple[Tensor, Tensor]:
    """The mask (heads, queries, keys) of a block of queries, and how many pairs across the modalities it keeps.

    `top_k` holds the keys kept for a visual query (True) and for a text query (False), 0 for all. Within its own
    modality every query keeps what it sees. The counts (2,) are those of the text and of the visual queries.
    """
    mask = seen.expand(query.shape[0], -1, -1).clone()
    kept = []
    for visual in (False, True):
        rows, columns = (query_visual == visual).nonzero().flatten(), (key_visual != visual).nonzero().flatten()
        block = seen[rows][:, columns]
        if top_k[visual] and len(rows) and len(columns):
            best = best_keys(query[:, rows], key[:, columns], block, top_k[visual])
            mask[:, rows[:, None], columns] = best
            kept.append(best.sum())
        else:
            kept.append(block.sum() * query.shape[0])
    return mask, torch.stack(kept)
