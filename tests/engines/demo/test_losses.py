"""The auxiliary losses against their slow and obvious forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from engines.demo.build import build_processor
from engines.demo.losses import VisualHeads
from engines.demo.words import LANGUAGES, PLACES


@pytest.fixture(scope="module")
def heads() -> VisualHeads:
    torch.manual_seed(0)
    return VisualHeads(24, build_processor().tokenizer)


def test_asking_weighs_what_is_asked_about_against_all_there_is(heads: VisualHeads) -> None:
    states, tokens = torch.randn(5, 24), torch.randn(5, 7, 24)
    shows = torch.rand(5, 7) < 0.4
    shows[0, 0], shows[3] = True, False  # the fourth question is about nothing that is seen
    expected = []
    for state, scene, shown in zip(states, tokens, shows, strict=True):
        if shown.any():
            asked = heads.ask(state)
            weights = [math.exp(12 * F.cosine_similarity(token, asked, dim=0).item()) for token in scene]
            hit = sum(weight for weight, one in zip(weights, shown.tolist(), strict=True) if one)
            expected.append(-math.log(hit / sum(weights)))
    assert heads.asking_loss(states, tokens, shows).item() == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_asking_about_nothing_costs_nothing_and_still_has_a_gradient(heads: VisualHeads) -> None:
    loss = heads.asking_loss(torch.randn(2, 24), torch.randn(2, 3, 24), torch.zeros(2, 3, dtype=torch.bool))
    heads.ask.weight.grad = None
    loss.backward()
    assert loss.item() == 0
    assert heads.ask.weight.grad is not None
    assert not heads.ask.weight.grad.any()


def test_pointing_is_least_for_tokens_that_are_the_answers(heads: VisualHeads) -> None:
    """Answers on place in all languages: a token that is their mean word loses least, another one more."""
    tokenizer = build_processor().tokenizer
    embedding = torch.randn(len(tokenizer), 24)
    places = torch.tensor([[0.1, 0.5], [0.9, 0.9]])
    names = [PLACES[0][1], PLACES[2][2]]
    motion = {"motion": torch.zeros(2, 4, dtype=torch.long)}
    right = torch.stack(
        [
            embedding[[i for language in LANGUAGES for i in tokenizer(language.word(name)).input_ids]].mean(0)
            for name in names
        ]
    )
    told = heads.pointing_loss(right, motion, places, embedding)
    assert told < heads.pointing_loss(right.flip(0), motion, places, embedding)
    moving = {"motion": torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])}
    assert heads.pointing_loss(right, moving, places, embedding) > told
