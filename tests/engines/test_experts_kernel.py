"""The kernel of kept pairs against a plain loop, and that skipped pairs cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engines.engine import Engine
from engines.experts import kernel
from engines.experts.kernel import kept_pairs_experts, only_kept_pairs
from engines.precision import METHODS
from engines.precision.base import Conversion

EXPERTS, HIDDEN = 8, 64
MOE = ("qwen3_vl_moe", "qwen3_5_moe")


def make_case(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (tokens, hidden), index (tokens, 4) with EXPERTS for a skipped pair, weights (tokens, 4)."""
    random = torch.Generator().manual_seed(len(name))
    tokens = 1 if name.startswith("one token") else 13
    hidden = torch.randn(tokens, HIDDEN, generator=random)
    index = torch.stack([torch.randperm(EXPERTS, generator=random)[:4] for _ in range(tokens)])
    weights = torch.rand(tokens, 4, generator=random)
    skipped = torch.rand(tokens, 4, generator=random) < 0.5
    if name == "unused experts":
        skipped |= (index == 0) | (index == 5) | (index == EXPERTS - 1)
    elif name.endswith("best only"):
        skipped = torch.arange(4).repeat(tokens, 1) > 0
    elif name == "tokens without any":
        skipped[0] = skipped[6] = skipped[-1] = True
    elif name.endswith("nothing kept"):
        skipped[:] = True
    elif name.endswith("nothing skipped"):
        skipped[:] = False
    return hidden, index.masked_fill(skipped, EXPERTS), weights.masked_fill(skipped, 0.0)


CASES = [
    "half of them", "unused experts", "best only", "tokens without any", "nothing kept", "nothing skipped",
    "one token", "one token, best only", "one token, nothing kept",
]  # fmt: skip


def loop(experts: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(hidden)
    for token in range(hidden.shape[0]):
        for expert, weight in zip(index[token].tolist(), weights[token].tolist(), strict=True):
            if expert < EXPERTS:
                gate, up = (experts.gate_up_proj[expert] @ hidden[token]).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                out[token] += weight * (experts.down_proj[expert] @ inner)
    return out


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", MOE)
def test_equals_the_loop(engines: dict[str, Engine], family: str, case: str) -> None:
    layer = engines[family].checkpoint.structure.moe_layers[0]
    inputs = make_case(case)
    with torch.inference_mode(), only_kept_pairs(engines[family].checkpoint.model):
        found = layer.experts(*inputs)
        assert torch.equal(layer.experts(*inputs), found)
        torch.testing.assert_close(found, loop(layer.experts, *inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", ["eager", "grouped_mm", "batched_mm"])
def test_without_skipped_pairs_the_models_own_kernel_runs(moe: Engine, own: str) -> None:
    model, experts = moe.checkpoint.model, moe.checkpoint.structure.moe_layers[0].experts
    before = model.get_experts_implementation()
    inputs = make_case("nothing skipped")
    try:
        model.set_experts_implementation(own)
        with torch.inference_mode():
            theirs = experts(*inputs)
            with only_kept_pairs(model):
                assert model.get_experts_implementation()[""] != own
                assert torch.equal(experts(*inputs), theirs)
                inputs = make_case("half of them")
                torch.testing.assert_close(experts(*inputs), loop(experts, *inputs), rtol=1e-4, atol=1e-4)
        assert set(model.get_experts_implementation().values()) == {own}
    finally:
        model.set_experts_implementation(before)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_in_other_number_formats(moe: Engine, case: str, kind: str) -> None:
    experts = moe.checkpoint.structure.moe_layers[0].experts
    hidden, index, weights = make_case(case)
    with torch.inference_mode():
        exact = loop(experts, hidden, index, weights)
        if kind != "bf16":
            found = METHODS[kind].convert(experts, Conversion())(hidden, index, weights)
        else:
            half = _InBf16(experts)
            found = kept_pairs_experts(half, hidden.bfloat16(), index, weights.bfloat16(), own="grouped_mm").float()
    assert (found - exact).norm() <= (0.4 if kind == "int4" else 0.03) * exact.norm()


class _InBf16(torch.nn.Module):
    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.__class__.forward = type(experts).forward  # type: ignore[method-assign]
        self.gate_up_proj, self.down_proj = experts.gate_up_proj.bfloat16(), experts.down_proj.bfloat16()
        for name in ("num_experts", "is_transposed", "has_gate", "has_bias", "has_post_expert_norm"):
            setattr(self, name, getattr(experts, name))
        self._is_expert_parallel, self.act_fn, self._apply_gate = False, experts.act_fn, experts._apply_gate


def test_skipped_pairs_enter_no_product(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    original = kernel._grouped_linear

    def counted(inputs: Tensor, *arguments: Any, **named: Any) -> Tensor:
        rows.append(inputs.shape[0])
        return original(inputs, *arguments, **named)

    monkeypatch.setattr(kernel, "_grouped_linear", counted)
    experts = moe.checkpoint.structure.moe_layers[0].experts
    for case in ("half of them", "best only", "unused experts"):
        hidden, index, weights = make_case(case)
        rows.clear()
        with torch.inference_mode():
            kept_pairs_experts(experts, hidden, index, weights)
        assert rows == [int((index < EXPERTS).sum())] * 2


def test_the_models_kernel_comes_back_after_an_error(moe: Engine) -> None:
    model = moe.checkpoint.model
    before = model.get_experts_implementation()
    with pytest.raises(RuntimeError, match="inside"), only_kept_pairs(model):
        raise RuntimeError("inside")
    assert model.get_experts_implementation() == before
