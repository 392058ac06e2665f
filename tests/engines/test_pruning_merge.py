"""Merging against a naive loop: every dropped token goes into the most similar kept one of its own group."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.pruning.merge import merge_dropped
from engines.results import RunRequest
from engines.sequence import Sequence

SIZES = [6, 1, 9, 4]


def make_sequence(seed: int, dtype: torch.dtype) -> Sequence:
    """Two text tokens before every group."""
    generator = torch.Generator().manual_seed(seed)
    visual = torch.tensor([[cell for size in SIZES for cell in (False, False, *[True] * size)]])
    # Small whole numbers, so that there are ties.
    embeddings = torch.randint(-2, 3, (1, visual.shape[1], 4), generator=generator).to(dtype)
    deepstack = tuple(torch.randn(sum(SIZES), 4, generator=generator).to(dtype) for _ in range(2))
    return Sequence(embeddings, torch.arange(visual.numel()).expand(3, 1, -1), visual, deepstack, visual.numel())


def make_keep(sequence: Sequence, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    keep = ~sequence.visual[0]
    for own in sequence.visual[0].nonzero().flatten().split(SIZES):
        count = int(torch.randint(1, len(own) + 1, (1,), generator=generator))
        keep[own[torch.randperm(len(own), generator=generator)[:count]]] = True
    return keep


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    norms = math.sqrt(float(one.square().sum())) * math.sqrt(float(other.square().sum()))
    return float(one @ other) / norms if norms else 0.0


def naive(sequence: Sequence, keep: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Merged visual rows (all of them; only those of kept tokens count) and deepstack rows."""
    rows = sequence.embeddings[0, sequence.visual[0]].double()
    layers = [layer.double() for layer in sequence.deepstack]
    kept = keep[sequence.visual[0]].tolist()
    received: dict[int, list[int]] = {token: [token] for token, stays in enumerate(kept) if stays}
    start = 0
    for size in SIZES:
        own = range(start, start + size)
        for token in own:
            if not kept[token]:
                best = max(cosine(rows[token], rows[other]) for other in own if kept[other])
                near = next(o for o in own if kept[o] and cosine(rows[token], rows[o]) >= best - 1e-6)
                received[near].append(token)
        start += size
    merged, deep = rows.clone(), [layer.clone() for layer in layers]
    for token, tokens in received.items():
        merged[token] = sum(rows[other] for other in tokens) / len(tokens)
        for before, after in zip(layers, deep, strict=True):
            after[token] = sum(before[other] for other in tokens) / len(tokens)
    return merged, deep


@pytest.mark.parametrize("seed", range(12))
def test_merging_equals_the_naive_loop(seed: int) -> None:
    sequence = make_sequence(seed, torch.float32)
    keep = make_keep(sequence, seed)
    merged = merge_dropped(sequence, keep, SIZES)
    visual = sequence.visual[0]
    kept = keep[visual]
    rows, layers = naive(sequence, keep)
    torch.testing.assert_close(merged.embeddings[0, visual][kept].double(), rows[kept], rtol=1e-6, atol=1e-6)
    for found, expected in zip(merged.deepstack, layers, strict=True):
        torch.testing.assert_close(found[kept].double(), expected[kept], rtol=1e-6, atol=1e-6)
    assert torch.equal(merged.embeddings[0, ~visual], sequence.embeddings[0, ~visual])
    assert torch.equal(merged.positions, sequence.positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_that_gets_nothing_stays_to_the_bit(dtype: torch.dtype) -> None:
    sequence = make_sequence(3, dtype)
    merged = merge_dropped(sequence, torch.ones(sequence.length, dtype=torch.bool), SIZES)
    assert torch.equal(merged.embeddings, sequence.embeddings)
    assert all(torch.equal(one, other) for one, other in zip(merged.deepstack, sequence.deepstack, strict=True))


@pytest.mark.parametrize("method", ["mmr", "uniform"])
def test_merging_changes_what_is_kept_but_not_how_much(
    moe: Engine, media_files: dict[str, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingConfig(max_new_tokens=2)
    request = RunRequest("What is there?", (media_files["tall"], media_files["clip"]), sampling=sampling, warm_up=False)
    entered: list[Sequence] = []
    prefill = moe._prefill
    monkeypatch.setattr(
        moe, "_prefill", lambda run, sequence, *rest: (entered.append(sequence), prefill(run, sequence, *rest))[1]
    )
    lost, merged = (
        moe.answer(
            request,
            CompressionConfig.full().with_settings(
                [f"pruning.method={method}", "pruning.keep_ratio=0.3", f"pruning.merge={merge}"]
            ),
        )
        for merge in ("false", "true")
    )
    assert lost.prune_report == merged.prune_report
    assert lost.memory.kv_cache_bytes == merged.memory.kv_cache_bytes
    assert entered[0].length == entered[1].length
    assert not torch.equal(entered[0].embeddings, entered[1].embeddings)
    assert all(
        not torch.equal(one, other) for one, other in zip(entered[0].deepstack, entered[1].deepstack, strict=True)
    )
    (span,) = merged.trace.named("prune")
    assert span.attributes["merged_tokens"] == merged.prune_report.tokens_before - merged.prune_report.tokens_after
