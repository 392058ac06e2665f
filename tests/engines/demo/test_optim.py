"""Muon: steps are orthogonal, stacks are stacks of matrices, and no parameter is forgotten or taken twice."""

from __future__ import annotations

import pytest
import torch

from engines.demo import build
from engines.demo.losses import VisualHeads
from engines.demo.optim import Muon, Optimizers, orthogonalise

TINY = {"width": 96, "text_layers": 2, "vision_layers": 1, "experts": 4, "expert_width": 16}


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (3, 16, 40)])
def test_singular_values_become_alike(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_a_stack_is_updated_like_its_matrices() -> None:
    start, gradient = torch.randn(3, 8, 12), torch.randn(3, 8, 12)
    stack = torch.nn.Parameter(start.clone())
    alone = [torch.nn.Parameter(part.clone()) for part in start]
    stack.grad = gradient.clone()
    for parameter, part in zip(alone, gradient, strict=True):
        parameter.grad = part.clone()
    for parameters in ([stack], alone):
        Muon(parameters, lr=0.1, weight_decay=0.1).step()
    assert torch.allclose(stack, torch.stack(list(alone)), atol=1e-6)


def test_every_parameter_has_one_optimizer() -> None:
    tokenizer = build.build_processor().tokenizer
    model = build.build_model(tokenizer, **TINY)
    heads = VisualHeads(96, tokenizer)
    taken = [id(p) for p in Optimizers(model, heads, 1e-3, 0.1).parameters]
    assert sorted(taken) == sorted(id(p) for p in [*model.parameters(), *heads.parameters()])
