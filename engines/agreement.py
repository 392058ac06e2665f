"""How far the predictions of a compressed model are from the full one's, along one given answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """Over the positions of one or many answers. Divergences are Kullback-Leibler, full from compressed, in nats."""

    positions: int
    mean_kl: float
    median_kl: float
    p99_kl: float
    max_kl: float
    same_top: float
    """Share of the positions where both would draw the same token, 0-1."""


def agreement(full: Tensor, compressed: Tensor) -> Agreement:
    """From the logits (positions, vocabulary) of both, given the same tokens before each position."""
    if full.shape != compressed.shape or not full.shape[0]:
        raise ValueError(f"Logits of shapes {tuple(full.shape)} and {tuple(compressed.shape)} cannot be compared.")
    ours, theirs = (logits.double().log_softmax(dim=-1) for logits in (full, compressed))
    # Rounding can leave the divergence of equal distributions a hair below 0.
    divergence = (ours.exp() * (ours - theirs)).sum(dim=-1).clamp_min(0.0)
    return Agreement(
        positions=full.shape[0],
        mean_kl=float(divergence.mean()),
        median_kl=float(divergence.median()),
        p99_kl=float(torch.quantile(divergence, 0.99)),
        max_kl=float(divergence.max()),
        same_top=float((full.argmax(dim=-1) == compressed.argmax(dim=-1)).double().mean()),
    )
