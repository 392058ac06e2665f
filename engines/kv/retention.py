"""Which tokens of a prompt stay in the cache: the visual ones that matter, the newest text, and the first of all.

source: SnapKV (arXiv 2404.14469) - what the last rows of a prompt attend to tells what its answer will need. Here a
layer keeps the same tokens for all its heads, so that a row of its cache is one token of the prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows at the end of the prompt that say what matters.
WINDOW = 32
# Ranks of tokens that no window slides past.
VISUAL = torch.iinfo(torch.int32).max
SINK = VISUAL - 1


def attention_received(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """(keys,): attention that each key receives from the last `WINDOW` queries, averaged over them and the heads.

    `query` (heads, rows, size) belongs to the last rows of `key` (key heads, keys, size). A key head is taken at a
    time: all heads at once would fill hundreds of megabytes for a long prompt.
    """
    rows, keys = min(WINDOW, query.shape[1]), key.shape[1]
    grouped = query[:, -rows:].float().view(key.shape[0], -1, rows, query.shape[-1])
    places = torch.arange(keys - rows, keys, device=key.device)
    unseen = torch.arange(keys, device=key.device) > places[:, None]
    received = torch.zeros(keys, device=key.device)
    for queries, own in zip(grouped, key.float(), strict=True):
        scores = (queries @ own.mT * scaling).masked_fill(unseen, -torch.inf)
        received += scores.softmax(dim=-1).sum(dim=(0, 1))
    return received / (query.shape[0] * rows)


def rank_tokens(visual: Tensor, sinks: int) -> Tensor:
    """(tokens,) int32: text tokens counted from 0 in their order; VISUAL, and SINK for the first `sinks` rows.

    A text token is within a window of w while its rank is at least the number of text tokens so far minus w.
    """
    ranks = (~visual).cumsum(0, dtype=torch.int32) - 1
    ranks[visual] = VISUAL
    ranks[:sinks] = SINK
    return ranks


def choose_tokens(
    ranks: Tensor, texts: int, importance: Tensor | None, *, visual_keep_ratio: float, text_window: int
) -> Tensor:
    """(tokens,) bool: which stay. `importance` (tokens,) chooses among the visual ones; None keeps them all.

    At least one visual token stays, if there is one; of equally important ones the earlier. `texts` is the number of
    text tokens, sinks included.
    """
    keep = ranks >= texts - text_window if text_window else torch.ones_like(ranks, dtype=torch.bool)
    places = (ranks == VISUAL).nonzero().flatten()
    if importance is not None and len(places) and visual_keep_ratio < 1.0:
        budget = max(1, round(visual_keep_ratio * len(places)))
        order = importance[places].sort(descending=True, stable=True).indices
        keep[places[order[budget:]]] = False
    return keep
