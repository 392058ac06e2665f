"""The auxiliary losses against their slow and obvious forms."""

from __future__ import annotations

import math

import pytest
import torch

from engines.demo.build import build_processor
from engines.demo.losses import NO_THING, VisualHeads
from engines.demo.words import LANGUAGES, PLACES


@pytest.fixture(scope="module")
def heads() -> VisualHeads:
    torch.manual_seed(0)
    return VisualHeads(24, build_processor().tokenizer)


def test_pointing_is_least_for_tokens_that_are_the_answers(heads: VisualHeads) -> None:
    """In all languages: a token that is the mean word of its thing's place loses least."""
    tokenizer = build_processor().tokenizer
    embedding = torch.randn(len(tokenizer), 24)
    ninths = torch.tensor([1, 8])
    still = {"motion": torch.zeros(2, 4, dtype=torch.long)}
    names = [PLACES[0][1], PLACES[2][2]]
    words = [[i for language in LANGUAGES for i in tokenizer(language.word(name)).input_ids] for name in names]
    tokens = torch.stack([embedding[ids].mean(0) for ids in words])
    told = heads.pointing_loss(tokens, still, ninths, embedding)
    assert told < heads.pointing_loss(tokens.flip(0), still, ninths, embedding)
    moving = {"motion": torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])}
    assert heads.pointing_loss(tokens, moving, ninths, embedding) > told


def test_tokens_that_show_nothing_should_point_nowhere(heads: VisualHeads) -> None:
    embedding = torch.randn(len(build_processor().tokenizer), 24)
    still = {"motion": torch.zeros(1, 4, dtype=torch.long)}
    nothing = torch.tensor([NO_THING])
    rows = torch.stack([embedding[ids].mean(0) for ids in heads.place_answers])
    nowhere = torch.linalg.svd(rows).Vh[-1:]  # at right angles to every place
    least = heads.pointing_loss(nowhere, still, nothing, embedding)
    assert least.item() == pytest.approx(math.log(9), abs=1e-4)
    assert heads.pointing_loss(rows[:1], still, nothing, embedding) > least
