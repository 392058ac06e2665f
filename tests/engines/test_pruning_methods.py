"""Every pruning method against a slow, obvious reference: the exact set of kept tokens, ties included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from engines.config import PruningConfig
from engines.pruning import METHODS, create, describe_methods
from engines.pruning.base import Visual
from engines.pruning.stage import budget

Reference = Callable[[list[list[float]], int, int, int, int], set[int]]


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    norms = math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in other))
    return dot / norms if norms else 0.0


def norm(vector: list[float]) -> float:
    return math.sqrt(sum(value * value for value in vector))


def first_of_highest(candidates: list[int], value: Callable[[int], float]) -> int:
    """Of equal values, up to float32 rounding, the earliest token."""
    best = max(value(token) for token in candidates)
    return next(token for token in candidates if value(token) >= best - 1e-6)


def reference_l2_norm(tokens: list[list[float]], rows: int, columns: int, keep: int, seed: int) -> set[int]:
    order = sorted(range(len(tokens)), key=lambda token: (-norm(tokens[token]), token))
    return set(order[:keep])


def reference_random(tokens: list[list[float]], rows: int, columns: int, keep: int, seed: int) -> set[int]:
    draws = torch.rand(len(tokens), generator=torch.Generator().manual_seed(seed)).tolist()
    return set(sorted(range(len(tokens)), key=lambda token: -draws[token])[:keep])


def reference_max_min(tokens: list[list[float]], rows: int, columns: int, keep: int, seed: int) -> set[int]:
    everyone = list(range(len(tokens)))

    def distance(one: int, other: int) -> float:
        return min(2.0, max(0.0, 1.0 - cosine(tokens[one], tokens[other])))

    def isolation(token: int) -> float:
        return min((distance(token, other) for other in everyone if other != token), default=math.inf)

    kept = [first_of_highest(everyone, isolation)]
    while len(kept) < keep:
        left = [token for token in everyone if token not in kept]
        kept.append(first_of_highest(left, lambda token: min(distance(token, other) for other in kept)))
    return set(kept)


def reference_mmr(tokens: list[list[float]], rows: int, columns: int, keep: int, seed: int) -> set[int]:
    everyone = list(range(len(tokens)))
    norms = [norm(token) for token in tokens]
    spread = max(norms) - min(norms)
    importance = [(value - min(norms)) / spread if spread else 0.0 for value in norms]
    kept: list[int] = []

    def marginal(token: int) -> float:
        closest = max((cosine(tokens[token], tokens[other]) for other in kept), default=0.0)
        return 0.5 * importance[token] - 0.5 * min(1.0, max(-1.0, closest))

    while len(kept) < keep:
        kept.append(first_of_highest([token for token in everyone if token not in kept], marginal))
    return set(kept)


REFERENCES: dict[str, Reference] = {
    "l2_norm": reference_l2_norm,
    "random": reference_random,
    "max_min": reference_max_min,
    "mmr": reference_mmr,
}
GRIDS = [(1, 1), (1, 7), (4, 4), (5, 9)]
RATIOS = [0.001, 0.1, 0.25, 0.5, 0.75, 1.0]


def make_visual(rows: int, columns: int, seed: int, ties: bool = False) -> Visual:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(rows * columns, 16, generator=generator)
    if ties:
        # Signs times a power of two: norms and cosines are exact in float32, and many of them are equal.
        embeddings = embeddings.sign() * 2.0 ** torch.randint(0, 2, (rows * columns, 1), generator=generator)
    return Visual(embeddings, rows, columns, seed)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("ties", [False, True])
def test_kept_tokens_equal_the_reference(name: str, grid: tuple[int, int], ties: bool) -> None:
    for seed in range(5):
        visual = make_visual(*grid, seed, ties)
        for ratio in RATIOS:
            keep = budget(grid[0] * grid[1], PruningConfig(keep_ratio=ratio))
            kept = create(name, {}).select(visual, keep).kept.tolist()
            assert set(kept) == REFERENCES[name](visual.embeddings.tolist(), *grid, keep, seed)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("grid", [*GRIDS, (3, 40), (40, 3), (24, 32)])
def test_keeps_exactly_the_budget_in_order(name: str, grid: tuple[int, int]) -> None:
    tokens = grid[0] * grid[1]
    visual = make_visual(*grid, seed=3)
    for keep in sorted({1, max(1, tokens // 10), max(1, tokens // 3), tokens - 1 or 1, tokens}):
        kept = create(name, {}).select(visual, keep).kept.tolist()
        assert kept == sorted(set(kept))
        assert len(kept) == keep
        assert kept[0] >= 0
        assert kept[-1] < tokens


@pytest.mark.parametrize("name", METHODS)
def test_scores_explain_the_choice(name: str) -> None:
    """Where a method has scores, every kept token scores at least as high as every dropped one."""
    visual = make_visual(6, 8, seed=5)
    selection = create(name, {}).select(visual, 17)
    if selection.scores is None:
        assert name == "uniform"
        return
    dropped = torch.ones(48, dtype=torch.bool)
    dropped[selection.kept] = False
    assert selection.scores.shape == (48,)
    assert selection.scores[~dropped].min() >= selection.scores[dropped].max() - 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_same_input_same_choice(name: str) -> None:
    first = create(name, {}).select(make_visual(5, 9, seed=1), 11).kept
    second = create(name, {}).select(make_visual(5, 9, seed=1), 11).kept
    assert torch.equal(first, second)


def test_mmr_finds_the_token_that_stands_out() -> None:
    """A probe: one strong token among equal ones is kept whatever the balance."""
    embeddings = torch.ones(16, 8)
    embeddings[6] = torch.tensor([9.0, -9.0] * 4)
    for balance in (0.1, 0.5, 1.0):
        assert 6 in create("mmr", {"balance": balance}).select(Visual(embeddings, 4, 4, 0), 1).kept.tolist()


def test_uniform_spreads_over_rows_and_columns() -> None:
    """A quarter of an 8 x 8 grid: every second row, and in each row tokens from the left and the right half."""
    kept = create("uniform", {}).select(Visual(torch.zeros(64, 4), 8, 8, 0), 16).kept
    rows = kept // 8
    assert rows.unique().numel() == 4
    for row in rows.unique():
        columns = (kept % 8)[rows == row]
        assert columns.numel() == 4
        assert (columns < 4).sum() == 2
        assert (columns.diff() <= 2).all()


@pytest.mark.parametrize(
    ("tokens", "ratio", "minimum", "expected"),
    [(1, 0.001, 1, 1), (49, 0.5, 1, 25), (49, 0.25, 1, 12), (100, 0.001, 1, 1), (100, 0.02, 8, 8), (4, 0.5, 8, 4)],
)
def test_budget(tokens: int, ratio: float, minimum: int, expected: int) -> None:
    assert budget(tokens, PruningConfig(keep_ratio=ratio, min_tokens=minimum)) == expected


def test_bad_names_and_options_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="must be one of mmr, max_min, l2_norm, uniform, random"):
        create("best", {})
    with pytest.raises(ValueError, match=r"pruning\.options\.lambda; mmr has balance"):
        create("mmr", {"lambda": 0.3})
    with pytest.raises(ValueError, match=r"balance is 3; it must be a number at least 0 and at most 1"):
        create("mmr", {"balance": 3})


def test_every_method_says_what_it_is_and_where_it_comes_from() -> None:
    for method in describe_methods():
        assert method.label
        assert method.help
        assert method.source
        for name, default, described, _ in method.parameters:
            assert described["help"], name
            assert described["low"] <= default <= described["high"]
