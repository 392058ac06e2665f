"""A lower expert top-k: right by a slow reference, and the skipped pairs are really not computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.experts.top_k import lower_top_k
from engines.results import RunRequest


def reference(block: torch.nn.Module, hidden: torch.Tensor, top_k: int) -> torch.Tensor:
    """Token by token: softmax over all experts, the k best, weights summing to one."""
    router, experts = block.gate, block.experts
    out = torch.zeros_like(hidden)
    for token in range(hidden.shape[0]):
        probabilities = (router.weight.detach() @ hidden[token]).softmax(dim=-1)
        best = sorted(range(len(probabilities)), key=lambda expert: -float(probabilities[expert]))[:top_k]
        total = sum(float(probabilities[expert]) for expert in best)
        for expert in best:
            gate, up = (experts.gate_up_proj[expert] @ hidden[token]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            out[token] += float(probabilities[expert]) / total * (experts.down_proj[expert] @ inner)
    return out


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
def test_equals_the_reference(moe: Engine, top_k: int) -> None:
    layer = moe.checkpoint.structure.moe_layers[1]
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(top_k))
    with torch.inference_mode(), lower_top_k(moe.checkpoint.structure.moe_layers, top_k):
        out = layer.block(hidden[None])[0]
    torch.testing.assert_close(out, reference(layer.block, hidden, top_k), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_5_moe"])
def test_skipped_pairs_are_not_computed(engines: dict[str, Engine], media_files: dict[str, Path], family: str) -> None:
    """Every row that enters an expert's products is counted; a quarter of the experts, a quarter of the rows."""
    engine = engines[family]
    rows = {1: 0, 4: 0}
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=1), warm_up=False)
    for top_k in rows:
        handles = [
            layer.experts.register_forward_pre_hook(
                lambda module, inputs, k=top_k: rows.__setitem__(k, rows[k] + inputs[1].numel())
            )
            for layer in engine.checkpoint.structure.moe_layers
        ]
        report = engine.answer(
            request, CompressionConfig.full().with_settings([f"experts.top_k={top_k}"])
        ).expert_report
        for handle in handles:
            handle.remove()
        assert report is not None
        assert report.pairs_computed == rows[top_k]
        assert report.pairs_full == rows[top_k] * 4 // top_k
        assert sum(sum(layer) for layer in report.layers) == rows[top_k]
    assert rows[4] == 4 * rows[1]


def test_own_top_k_comes_back_after_an_error(moe: Engine) -> None:
    layers = moe.checkpoint.structure.moe_layers
    with pytest.raises(RuntimeError, match="inside"), lower_top_k(layers, 1):
        raise RuntimeError("inside")
    assert {layer.router.top_k for layer in layers} == {4}
    with pytest.raises(ValueError, match="at most 4"), lower_top_k(layers, 9):
        pass


def test_dense_checkpoint_has_no_expert_report(engines: dict[str, Engine]) -> None:
    result = engines["qwen3_vl"].answer(RunRequest("Hi?"), CompressionConfig.full())
    assert result.expert_report is None
    assert [entry.part for entry in result.memory.weights] == ["vision", "projector", "language"]
