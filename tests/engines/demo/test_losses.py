"""The auxiliary losses against their slow and obvious forms."""

from __future__ import annotations

import math

import pytest
import torch

from engines.demo.batches import NO_LABEL
from engines.demo.build import build_processor
from engines.demo.labels import KINDS
from engines.demo.losses import VisualHeads
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
    nothing = torch.tensor([NO_LABEL])
    rows = torch.stack([embedding[ids].mean(0) for ids in heads.place_answers])
    nowhere = torch.linalg.svd(rows).Vh[-1:]  # at right angles to every place
    least = heads.pointing_loss(nowhere, still, nothing, embedding)
    assert least.item() == pytest.approx(math.log(9), abs=1e-4)
    assert heads.pointing_loss(rows[:1], still, nothing, embedding) > least


def test_moments_are_least_for_states_that_are_the_seconds(heads: VisualHeads) -> None:
    """A token where something came at second 3 should be the word "3", one where nothing did no second at all."""
    tokenizer = build_processor().tokenizer
    embedding = torch.randn(len(tokenizer), 24)
    still = {"motion": torch.zeros(2, 4, dtype=torch.long)}
    three = embedding[tokenizer("3").input_ids].mean(0)
    states = torch.stack([three, heads.no_moment.detach()])
    told = heads.moment_loss(states, still, torch.tensor([3, NO_LABEL]), embedding)
    assert told < 0.5 * heads.moment_loss(states, still, torch.tensor([4, NO_LABEL]), embedding)
    assert told < 0.5 * heads.moment_loss(states.flip(0), still, torch.tensor([3, NO_LABEL]), embedding)


def test_a_token_that_shows_two_characters_points_to_both(heads: VisualHeads) -> None:
    tokenizer = build_processor().tokenizer
    embedding = torch.randn(len(tokenizer), 24)
    labels = {kind: torch.zeros(1, 4, dtype=torch.long) for kind in KINDS}
    names = KINDS["character"]
    labels["character"][0] = torch.tensor([1 + names.index("A"), 1 + names.index("7"), 0, 0])
    rows = {name: torch.nn.functional.normalize(embedding[tokenizer(name).input_ids[0]], dim=0) for name in "A7B"}

    def loss(token: torch.Tensor) -> float:
        return heads.word_loss(token[None], labels, embedding).item()

    assert loss(rows["A"] + rows["7"]) < loss(rows["A"]) < loss(rows["B"])
