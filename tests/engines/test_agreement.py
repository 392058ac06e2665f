"""Divergence and agreement of two models' predictions, against plain sums."""

from __future__ import annotations

import math

import pytest
import torch

from engines.agreement import agreement


def test_equal_predictions_agree_fully() -> None:
    logits = torch.randn(7, 11)
    found = agreement(logits, logits + 3.0)
    assert (found.positions, found.same_top) == (7, 1.0)
    assert found.max_kl == pytest.approx(0.0, abs=1e-12)


def test_figures_are_those_of_plain_sums() -> None:
    full, other = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).chunk(2)
    divergences, same = [], 0
    for ours, theirs in zip(full.tolist(), other.tolist(), strict=True):
        p, q = ([math.exp(value) / sum(map(math.exp, line)) for value in line] for line in (ours, theirs))
        divergences.append(sum(one * math.log(one / two) for one, two in zip(p, q, strict=True)))
        same += p.index(max(p)) == q.index(max(q))
    found = agreement(full, other)
    assert found.mean_kl == pytest.approx(sum(divergences) / 10)
    assert found.max_kl == pytest.approx(max(divergences))
    assert found.same_top == pytest.approx(same / 10)
    assert found.median_kl <= found.max_kl
    assert found.p99_kl is None, "of ten positions there is no 99th percentile"
    many = agreement(full.repeat(10, 1), other.repeat(10, 1))
    assert many.p99_kl is not None
    assert many.median_kl <= many.p99_kl <= many.max_kl


def test_logits_of_different_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        agreement(torch.randn(3, 5), torch.randn(2, 5))
