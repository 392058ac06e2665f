"""Merging: what a dropped token held goes into the most similar token that stays."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.sequence import Sequence


def merge_dropped(sequence: Sequence, keep: Tensor, sizes: Items[int]) -> Sequence:
    """The sequence, still whole, whose kept visual tokens are the average of themselves and the dropped ones nearest.

    Near is by cosine similarity of the embeddings, within the same image or frame group; `sizes` are their numbers
    of tokens, in the order of the visual rows. Every deepstack row goes the way of its embedding. Each token has the
    same weight in the average; a kept token that gets none stays as it is, to the bit. `keep` is (length,) bool.
    """
    visual = sequence.visual[0]
    rows, kept = sequence.embeddings[0, visual], keep[visual]
    nearest = torch.cat(
        [_nearest_kept(*own) for own in zip(rows.split(list(sizes)), kept.split(list(sizes)), strict=True)]
    )
    starts = torch.tensor([0, *sizes[:-1]], device=kept.device).cumsum(0)
    nearest += starts.repeat_interleave(torch.tensor(sizes, device=kept.device))
    embeddings = sequence.embeddings.clone()
    embeddings[0, visual] = _average(rows, nearest, kept)
    deepstack = tuple(_average(layer, nearest, kept) for layer in sequence.deepstack)
    return replace(sequence, embeddings=embeddings, deepstack=deepstack)


def _nearest_kept(rows: Tensor, kept: Tensor) -> Tensor:
    """(tokens,): of each token of a group the most similar kept one, for a kept one itself. The earlier of equals."""
    places = torch.arange(len(rows), device=rows.device)
    unit = F.normalize(rows.float(), dim=-1)
    nearest = places.clone()
    nearest[~kept] = places[kept][(unit[~kept] @ unit[kept].T).argmax(dim=1)]
    return nearest


def _average(rows: Tensor, nearest: Tensor, kept: Tensor) -> Tensor:
    """`rows` (tokens, hidden) with every kept one replaced by the mean of those that are nearest to it."""
    # Bags of rows in a fixed order: adding by index is not the same in every run on a GPU.
    ordered, order = nearest.sort(stable=True)
    starts = torch.searchsorted(ordered, kept.nonzero().flatten())
    merged = rows.clone()
    merged[kept] = F.embedding_bag(order, rows.float(), starts, mode="mean").to(rows.dtype)
    return merged
