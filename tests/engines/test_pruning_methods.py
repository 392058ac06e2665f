"""Every pruning method against a slow, obvious reference: the exact set of kept tokens, ties included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engines.pruning import METHODS, create, describe_methods
from engines.pruning.base import Group, Visual
from engines.pruning.dual_threshold import saliency_entropy
from engines.pruning.spans import budget

Reference = Callable[[Visual, int], set[int]]


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


def reference_l2_norm(visual: Visual, keep: int) -> set[int]:
    tokens = visual.embeddings.tolist()
    order = sorted(range(len(tokens)), key=lambda token: (-norm(tokens[token]), token))
    return set(order[:keep])


def reference_random(visual: Visual, keep: int) -> set[int]:
    draws = torch.rand(len(visual.embeddings), generator=torch.Generator().manual_seed(visual.seed)).tolist()
    return set(sorted(range(len(draws)), key=lambda token: -draws[token])[:keep])


def reference_max_min(visual: Visual, keep: int) -> set[int]:
    tokens = visual.embeddings.tolist()
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


def reference_mmr(visual: Visual, keep: int) -> set[int]:
    tokens = visual.embeddings.tolist()
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


def reference_relevance(visual: Visual, keep: int, theta: float = 0.5) -> set[int]:
    """What each token adds, from the projection on everything picked, solved anew for every pick."""
    tokens = visual.embeddings.tolist()
    everyone = list(range(len(tokens)))
    words = visual.text.tolist() if visual.text is not None else []
    nearness = [sum(cosine(token, word) for word in words) / max(1, len(words)) for token in tokens]
    spread = max(nearness) - min(nearness)
    relevance = [(value - min(nearness)) / spread if spread > 1e-6 else 0.0 for value in nearness]
    unit = torch.nn.functional.normalize(visual.embeddings.double(), dim=1)
    kept: list[int] = []
    while len(kept) < keep:
        picked = unit[kept]
        outside = unit - unit @ torch.linalg.pinv(picked, rtol=1e-6) @ picked if kept else unit
        residual = outside.square().sum(dim=1).tolist()
        kept.append(
            first_of_highest(
                [token for token in everyone if token not in kept],
                lambda token: theta * relevance[token] + (1 - theta) * math.log(max(residual[token], 1e-5)),  # noqa: B023
            )
        )
    return set(kept)


def reference_temporal(visual: Visual, keep: int) -> set[int]:
    tokens = visual.embeddings.tolist()
    change = []
    for group in visual.groups:
        for place in range(group.tokens):
            token = group.start + place
            change.append(2.0 if group.start == 0 else 1.0 - cosine(tokens[token], tokens[token - group.tokens]))
    kept: list[int] = []
    while len(kept) < keep:
        kept.append(first_of_highest([token for token in range(len(tokens)) if token not in kept], change.__getitem__))
    return set(kept)


def reference_attention(visual: Visual, keep: int) -> set[int]:
    received = visual.attention.tolist() if visual.attention is not None else []
    return set(sorted(range(len(received)), key=lambda token: (-received[token], token))[:keep])


def scaled(values: list[float]) -> list[float]:
    spread = max(values) - min(values)
    return [(value - min(values)) / spread if spread > 1e-6 * max(values) else 0.0 for value in values]


def reference_entropy(tokens: list[list[float]]) -> list[float]:
    found = []
    for one, token in enumerate(tokens):
        others = [other for place, other in enumerate(tokens) if place != one]
        differences = [difference for other in others if (difference := 1.0 - cosine(token, other)) > 1e-5]
        shares = [difference / sum(differences) for difference in differences]
        entropy = -sum(share * math.log(share) for share in shares)
        found.append(entropy / math.log(len(others)) if len(others) > 1 else 0.0)
    return found


def reference_dual_threshold(visual: Visual, keep: int, least: tuple[float, float] = (0.9, 0.25)) -> set[int]:
    """Everything at or above one of its thresholds, then the nearest below until the budget is full."""
    tokens = visual.embeddings.tolist()
    entropy = [value for group in visual.groups for value in reference_entropy(tokens[group.rows_of])]
    if visual.attention is not None:
        least = least if visual.depth > 0.5 else (0.9, 0.5) if visual.depth else (0.9, 0.9)
        sensitivity = scaled(visual.attention.tolist())
    else:
        words = visual.text.tolist() if visual.text is not None else []
        nearness = [sum(cosine(token, word) for word in words) / max(1, len(words)) for token in tokens]
        spread = max(nearness) - min(nearness)
        sensitivity = [(value - min(nearness)) / spread if spread > 1e-6 else 0.0 for value in nearness]
    above = [max(one - least[0], other - least[1]) for one, other in zip(scaled(entropy), sensitivity, strict=True)]
    kept = [token for token, margin in enumerate(above) if margin >= -1e-6]
    while len(kept) < keep:
        left = [token for token in range(len(tokens)) if token not in kept]
        kept.append(first_of_highest(left, above.__getitem__))
    return set(kept)


REFERENCES: dict[str, Reference] = {
    "l2_norm": reference_l2_norm,
    "random": reference_random,
    "max_min": reference_max_min,
    "mmr": reference_mmr,
    "relevance": reference_relevance,
    "attention": reference_attention,
    "temporal": reference_temporal,
    "dual_threshold": reference_dual_threshold,
}
GRIDS = [(1, 1), (1, 7), (4, 4), (5, 9)]
RATIOS = [0.001, 0.1, 0.25, 0.5, 0.75, 1.0]


def make_visual(rows: int, columns: int, seed: int, ties: bool = False, groups: int = 1) -> Visual:
    generator = torch.Generator().manual_seed(seed)
    tokens = rows * columns * groups
    embeddings = torch.randn(tokens, 16, generator=generator)
    if ties:
        # Signs times a power of two: norms and cosines are exact in float32, and many of them are equal.
        embeddings = embeddings.sign() * 2.0 ** torch.randint(0, 2, (tokens, 1), generator=generator)
    text = torch.randn(3, 16, generator=generator)
    grids = tuple(Group(group * rows * columns, rows, columns) for group in range(groups))
    attention = torch.rand(tokens, generator=generator)
    return Visual(embeddings, grids, seed, text.sign() if ties else text, attention.round() if ties else attention)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("grid", [(*grid, 1) for grid in GRIDS] + [(3, 4, 3), (1, 1, 5)])
@pytest.mark.parametrize("ties", [False, True])
def test_kept_tokens_equal_the_reference(name: str, grid: tuple[int, int, int], ties: bool) -> None:
    rows, columns, groups = grid
    for seed in range(4):
        visual = make_visual(rows, columns, seed, ties, groups)
        for ratio in RATIOS:
            keep = budget(rows * columns * groups, ratio, 1)
            kept = create(name, {}).select(visual, keep).kept.tolist()
            assert set(kept) == REFERENCES[name](visual, keep)


@pytest.mark.parametrize("depth", [0.0, 0.3, 0.5, 0.8])
def test_each_half_of_the_layers_has_its_own_thresholds(depth: float) -> None:
    options = {"entropy_late": 0.7, "task_late": 0.4}
    for seed in range(3):
        visual = replace(make_visual(4, 6, seed, groups=2), depth=depth)
        kept = create("dual_threshold", options).select(visual, 3).kept.tolist()
        assert set(kept) == reference_dual_threshold(visual, 3, (0.7, 0.4))


@pytest.mark.parametrize(("least", "protects_all"), [((0.0, 1.0), True), ((1.0, 0.0), True), ((0.5, 0.5), False)])
def test_only_tokens_below_both_thresholds_may_go(least: tuple[float, float], protects_all: bool) -> None:
    visual = replace(make_visual(5, 5, seed=4), attention=None)
    method = create("dual_threshold", {"entropy_before": least[0], "task_before": least[1]})
    selection = method.select(visual, 1)
    assert selection.protected is not None
    assert set(selection.kept.tolist()) == set(selection.protected.nonzero().flatten().tolist())
    assert bool(selection.protected.all()) == protects_all
    assert set(selection.kept.tolist()) == reference_dual_threshold(visual, 1, least)


def test_what_differs_from_few_has_little_saliency_entropy() -> None:
    """Probes: a flat picture has none; on a flat ground, the one thing that stands out has the most."""
    assert saliency_entropy(torch.ones(16, 8)).tolist() == [0.0] * 16
    assert saliency_entropy(torch.randn(2, 8)).tolist() == [0.0, 0.0]
    flat = torch.ones(16, 8)
    flat[5] = torch.tensor([1.0, -1.0] * 4)
    entropy = saliency_entropy(flat)
    assert entropy.argmax() == 5
    assert entropy[5] == pytest.approx(1.0)
    assert entropy.sum() == entropy[5]


@pytest.mark.parametrize("theta", [0.0, 0.2, 1.0])
def test_theta_weighs_relevance_against_diversity(theta: float) -> None:
    for seed in range(3):
        visual = make_visual(4, 6, seed)
        for keep in (1, 5, 20):
            kept = create("relevance", {"theta": theta}).select(visual, keep).kept.tolist()
            assert set(kept) == reference_relevance(visual, keep, theta)


def test_without_a_question_only_diversity_counts() -> None:
    """Then every relevance is the same, whatever its weight, until nothing but relevance counts."""
    visual = replace(make_visual(4, 4, seed=2), text=None)
    chosen = [create("relevance", {"theta": theta}).select(visual, 5).kept.tolist() for theta in (0.0, 0.5, 0.9)]
    assert chosen[0] == chosen[1] == chosen[2]
    assert set(chosen[0]) == reference_relevance(visual, 5, 0.0)


def test_relevance_prefers_what_the_question_is_about() -> None:
    """A probe: of equally different tokens, those that point the question's way are kept."""
    visual = Visual(torch.eye(16), (Group(0, 4, 4),), 0, torch.eye(16)[[5, 11]])
    assert create("relevance", {}).select(visual, 2).kept.tolist() == [5, 11]


def test_temporal_keeps_the_first_group_and_what_changes() -> None:
    """A still clip in which one place changes once: that token, and the first frame group."""
    frames = make_visual(3, 3, seed=0).embeddings.repeat(4, 1)
    frames[9 * 2 + 4] = -frames[4]
    visual = Visual(frames, tuple(Group(9 * group, 3, 3) for group in range(4)), 0)
    method = create("temporal", {})
    assert method.floors(visual.groups, 1) == (9, 1, 1, 1)
    kept = method.select(visual, 11).kept.tolist()
    # It differs from the group before it, and the one after it differs from it.
    assert kept == [*range(9), 9 * 2 + 4, 9 * 3 + 4]


def test_an_image_stays_whole_for_temporal() -> None:
    assert create("temporal", {}).floors((Group(0, 5, 9),), 1) == (45,)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("grid", [*GRIDS, (3, 40), (40, 3), (24, 32)])
def test_keeps_exactly_the_budget_in_order(name: str, grid: tuple[int, int]) -> None:
    tokens = grid[0] * grid[1]
    visual = make_visual(*grid, seed=3)
    for keep in sorted({1, max(1, tokens // 10), max(1, tokens // 3), tokens - 1 or 1, tokens}):
        selection = create(name, {}).select(visual, keep)
        kept = selection.kept.tolist()
        assert kept == sorted(set(kept))
        assert len(kept) == max(keep, 0 if selection.protected is None else int(selection.protected.sum()))
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
        visual = Visual(embeddings, (Group(0, 4, 4),), 0)
        assert 6 in create("mmr", {"balance": balance}).select(visual, 1).kept.tolist()


def test_uniform_spreads_over_rows_and_columns() -> None:
    """A quarter of an 8 x 8 grid: every second row, and in each row tokens from the left and the right half."""
    kept = create("uniform", {}).select(Visual(torch.zeros(64, 4), (Group(0, 8, 8),), 0), 16).kept
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
    assert budget(tokens, ratio, minimum) == expected


def test_bad_names_and_options_are_refused_in_words() -> None:
    with pytest.raises(
        ValueError,
        match="must be one of mmr, max_min, relevance, attention, dual_threshold, temporal, l2_norm, uniform, random",
    ):
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
