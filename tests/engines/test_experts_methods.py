"""Every expert-skipping method against a slow, obvious reference, ties included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engines.experts import METHODS, create
from engines.experts.base import Prompt, Routing, Skipper, Tokens
from engines.experts.stage import reweigh

HIDDEN, K = 16, 4
# With these nothing is skipped, whatever the tokens.
NEUTRAL: dict[str, dict[str, float]] = {
    "off": {},
    "modality": {"visual_threshold": 0, "text_threshold": 0},
    "alignment": {"kappa": 100},
    "entropy": {"lower_bound": 0, "upper_bound": 0},
    "random": {"skip": 0},
}


def make_embeddings(tokens: int, seed: int) -> Tensor:
    """Four entries of 1 or -1 each: similarities are exact quarters, so that many are equal."""
    random = torch.Generator().manual_seed(seed)
    found = torch.zeros(tokens, HIDDEN)
    for row in found:
        row[torch.randperm(HIDDEN, generator=random)[:4]] = torch.randint(0, 2, (4,), generator=random) * 2.0 - 1
    return found


def make_routing(tokens: int = 24, share: float = 0.6, seed: int = 0, **more: object) -> Routing:
    """Weights in falling order that are multiples of 1/32 and sum to one."""
    random = torch.Generator().manual_seed(100 + seed)
    parts = torch.randint(1, 5, (tokens, K), generator=random).float()
    parts[:, 0] += 32 - parts.sum(dim=1)
    weights = (parts / 32).sort(dim=1, descending=True).values
    visual = torch.rand(tokens, generator=random) < share
    embeddings = make_embeddings(tokens, seed)
    of_prompt = Tokens(embeddings, visual, Prompt(embeddings, visual))
    return Routing(weights, of_prompt, layer=1, layers=3, own_top_k=K, **more)  # type: ignore[arg-type]


def cosines(routing: Routing, token: int) -> list[float]:
    """Similarities of a token to the tokens of the other kind in the prompt."""
    tokens, prompt = routing.tokens, routing.tokens.prompt
    kind = bool(tokens.visual[token])
    others = [index for index in range(len(prompt.visual)) if bool(prompt.visual[index]) is not kind]
    own = tokens.embeddings[token]
    return [float(own @ prompt.embeddings[index]) / 4 for index in others]


def alignment_reference(routing: Routing, kappa: float = 30) -> list[list[bool]]:
    visual = [token for token in range(len(routing.weights)) if routing.tokens.visual[token]]
    nearest = sorted(visual, key=lambda token: (1 - max(cosines(routing, token), default=-math.inf), token))
    whole = set(nearest[: math.floor(len(visual) * kappa / 100 + 0.5)])
    return [
        [place == 0 or token not in visual or token in whole for place in range(K)]
        for token in range(len(routing.weights))
    ]


def entropy_reference(routing: Routing, lower: float = 0.8, upper: float = 1.6, heat: float = 0.02) -> list[list[bool]]:
    kept = []
    for token in range(len(routing.weights)):
        similarities = cosines(routing, token)
        powers = [math.exp((value - max(similarities)) / heat) for value in similarities]
        shares = [power / sum(powers) for power in powers]
        entropy = -sum(share * math.log(share) for share in shares if share > 0) if shares else math.inf
        number = routing.own_top_k // (4 if entropy < lower else 2 if entropy < upper else 1)
        kept.append([place < max(1, number) for place in range(routing.weights.shape[1])])
    return kept


def modality_reference(
    routing: Routing, visual: float = 0.15, text: float = 0.05, keep_best: bool = True
) -> list[list[bool]]:
    return [
        [
            (place == 0 and keep_best) or float(weight) * routing.importance >= (visual if is_visual else text)
            for place, weight in enumerate(row)
        ]
        for row, is_visual in zip(routing.weights, routing.tokens.visual, strict=True)
    ]


REFERENCES: list[tuple[str, dict[str, object], Callable[[Routing], list[list[bool]]]]] = [
    ("alignment", {}, alignment_reference),
    ("alignment", {"kappa": 0.0}, lambda routing: alignment_reference(routing, 0)),
    ("alignment", {"kappa": 75}, lambda routing: alignment_reference(routing, 75)),
    ("entropy", {}, entropy_reference),
    ("entropy", {"temperature": 0.1}, lambda routing: entropy_reference(routing, heat=0.1)),
    (
        "entropy",
        {"lower_bound": 2, "upper_bound": 2.3, "temperature": 1},
        lambda routing: entropy_reference(routing, 2, 2.3, 1),
    ),
    ("modality", {}, modality_reference),
    # Exactly a weight that occurs: equal is kept.
    (
        "modality",
        {"visual_threshold": 0.125, "text_threshold": 0.0625},
        lambda routing: modality_reference(routing, 0.125, 0.0625),
    ),
    (
        "modality",
        {"visual_threshold": 1, "text_threshold": 0.5, "keep_best": False},
        lambda routing: modality_reference(routing, 1, 0.5, False),
    ),
]


@pytest.mark.parametrize(("name", "options", "reference"), REFERENCES)
@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
def test_equals_the_reference(
    name: str, options: dict[str, object], reference: Callable[[Routing], list[list[bool]]], share: float
) -> None:
    for seed in range(4):
        routing = make_routing(share=share, seed=seed, importance=0.75)
        assert create(name, options).keep(routing).tolist() == reference(routing)


def test_ties_were_among_them() -> None:
    routing = make_routing()
    nearest = routing.tokens.distance[routing.tokens.visual].tolist()
    assert len(set(nearest)) < len(nearest)
    assert (routing.weights == 0.125).any()


def test_every_method_is_compared_and_has_a_neutral_setting() -> None:
    assert {name for name, _, _ in REFERENCES} | {"off", "random"} == set(METHODS) == set(NEUTRAL)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("tokens", [1, 24])
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_shape_first_expert_and_sameness(name: str, tokens: int, share: float) -> None:
    routing = make_routing(tokens, share)
    kept = create(name, {}).keep(routing)
    assert (kept.dtype, kept.shape) == (torch.bool, (tokens, K))
    assert kept[:, 0].all()
    assert torch.equal(create(name, {}).keep(routing), kept)
    assert create(name, NEUTRAL[name]).keep(routing).all()


@pytest.mark.parametrize("skip", [0.0, 0.25, 0.5, 1.0])
def test_random_skips_the_share_that_was_asked_for(skip: float) -> None:
    one, other = make_routing(), make_routing()
    kept = create("random", {"skip": skip}).keep(one)
    assert int((~kept).sum()) == min(round(24 * K * skip), 24 * (K - 1))
    object.__setattr__(other, "layer", 2)
    assert skip in (0.0, 1.0) or not torch.equal(create("random", {"skip": skip}).keep(other), kept)


def test_a_new_token_is_compared_with_the_prompt() -> None:
    before = make_routing(share=0.6).tokens
    new = Tokens(make_embeddings(1, 9), torch.tensor([False]), before.prompt)
    routing = Routing(make_routing(1).weights, new, 0, 3, K)
    assert create("entropy", {"temperature": 0.1}).keep(routing).tolist() == entropy_reference(routing, heat=0.1)
    assert create("alignment", {"kappa": 0}).keep(routing).all(), "text uses all experts"


def test_entropy_is_scaled_to_the_checkpoints_own_top_k() -> None:
    routing = make_routing()
    for own, k in ((8, 8), (8, 4), (2, 2), (1, 1)):
        weights = torch.full((24, k), 1 / k)
        scaled = Routing(weights, routing.tokens, 0, 3, own)
        assert create("entropy", {"temperature": 0.1}).keep(scaled).tolist() == entropy_reference(scaled, heat=0.1)


@pytest.mark.parametrize("renormalise", [True, False])
def test_weights_that_remain(renormalise: bool) -> None:
    routing = make_routing()
    keep = torch.rand(24, K, generator=torch.Generator().manual_seed(3)) < 0.6
    keep[0], keep[1] = True, False
    found = reweigh(routing.weights, keep, renormalise)
    for row, kept, new in zip(routing.weights.tolist(), keep.tolist(), found.tolist(), strict=True):
        left = sum(weight for weight, stays in zip(row, kept, strict=True) if stays)
        scale = sum(row) / left if renormalise and left else 1.0
        assert new == pytest.approx([weight * scale * stays for weight, stays in zip(row, kept, strict=True)])
    assert torch.equal(found[0], routing.weights[0]), "to the bit"
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("best", {}, "experts.method is 'best'; it must be one of off, modality, alignment"),
        ("off", {"kappa": 3}, "Unknown option experts.options.kappa; off has no options."),
        ("alignment", {"kapa": 3}, "Unknown option experts.options.kapa; alignment has kappa."),
        ("alignment", {"kappa": 101}, "experts.options.kappa is 101; it must be a number at least 0 and at most 100."),
        ("entropy", {"temperature": 0}, "experts.options.temperature is 0; it must be a number above 0"),
        ("entropy", {"lower_bound": 2.0}, "lower_bound is 2.0; it must be at most upper_bound, which is 1.6."),
        ("modality", {"keep_best": 1}, "experts.options.keep_best is 1; it must be true or false."),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        create(name, options)


def test_methods_describe_themselves() -> None:
    for method in METHODS.values():
        assert issubclass(method, Skipper)
        assert method.label
        assert method.help.endswith(".")
        assert method.source
