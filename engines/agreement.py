"""How far the predictions of a compressed model are from the full one's, along one given answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Of fewer positions the 99th percentile is hardly more than the largest value.
P99_FROM = 100


@dataclass(frozen=True)
class Agreement:
    """Over the positions of one or many answers. Divergences are Kullback-Leibler, full from compressed, in nats."""

    positions: int
    mean_kl: float
    median_kl: float
    p99_kl: float | None
    """None of fewer than 100 positions."""
    max_kl: float
    same_top: float
    """Share of the positions where both would draw the same token, 0-1."""


def agreement(full: Tensor, compressed: Tensor) -> Agreement:
    """From the logits (positions, vocabulary) of both, given the same tokens before each position."""
    if full.shape != compressed.shape or not full.shape[0]:
        raise ValueError(f"Logits of shapes {tuple(full.shape)} and {tuple(compressed.shape)} cannot be compared.")
    return summarise(divergences(full, compressed), full.argmax(dim=-1) == compressed.argmax(dim=-1))


def divergences(full: Tensor, compressed: Tensor) -> Tensor:
    """(positions,) float64: the divergence at each, from logits (positions, vocabulary). 0 of equal logits, exactly."""
    ours, theirs = (logits.double().log_softmax(dim=-1) for logits in (full, compressed))
    # Rounding can leave the divergence of nearly equal distributions a hair below 0.
    return (ours.exp() * (ours - theirs)).sum(dim=-1).clamp_min(0.0)


def summarise(divergence: Tensor, same: Tensor) -> Agreement:
    """From the divergence (positions,) at each position, and whether both would draw the same token there."""
    return Agreement(
        positions=len(divergence),
        mean_kl=float(divergence.mean()),
        median_kl=float(torch.quantile(divergence, 0.5)),
        p99_kl=float(torch.quantile(divergence, 0.99)) if len(divergence) >= P99_FROM else None,
        max_kl=float(divergence.max()),
        same_top=float(same.double().mean()),
    )
