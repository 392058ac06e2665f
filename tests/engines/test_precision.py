"""Precisions against slow references, and what they leave behind: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines import precision
from engines.config import CompressionConfig, PrecisionConfig, SamplingConfig
from engines.engine import Engine
from engines.precision.int8 import Int8Experts, Int8Linear, Int8PatchEmbedding, int8_matmul, quantise_rows
from engines.results import EngineError, RunRequest
from engines.structure import PARTS


def reference_int8(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Row by row, in Python integers."""
    out = torch.zeros(inputs.shape[0], weight.shape[0])
    for i, row in enumerate(inputs.tolist()):
        row_scale = max(abs(value) for value in row) / 127 or 1.0
        quantised_row = [round(value / row_scale) for value in row]
        for j, column in enumerate(weight.tolist()):
            column_scale = max(abs(value) for value in column) / 127 or 1.0
            quantised = [round(value / column_scale) for value in column]
            total = sum(a * b for a, b in zip(quantised_row, quantised, strict=True))
            out[i, j] = total * row_scale * column_scale
    return out


@pytest.mark.parametrize("rows", [1, 2, 17, 40])
def test_int8_product_equals_the_reference(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    inputs, weight = torch.randn(rows, 24, generator=generator), torch.randn(16, 24, generator=generator)
    weight[3] = 0.0
    inputs[0] *= 100.0
    quantised, scales = quantise_rows(weight)
    product = int8_matmul(inputs, quantised, scales[:, 0])
    expected = reference_int8(inputs, weight)
    # A value on a rounding edge may fall either way, by one step of one product.
    torch.testing.assert_close(product, expected, rtol=1e-2, atol=float(expected.abs().max()) * 2e-3)


def test_int8_error_is_bounded() -> None:
    """Half a step per value: at most |x| scale_w / 2 + |w| scale_x / 2 + a quarter step squared, summed."""
    generator = torch.Generator().manual_seed(1)
    inputs, weight = torch.randn(8, 64, generator=generator), torch.randn(32, 64, generator=generator)
    quantised, scales = quantise_rows(weight)
    error = (int8_matmul(inputs, quantised, scales[:, 0]) - inputs @ weight.T).abs()
    _, input_scales = quantise_rows(inputs)
    bound = (
        inputs.abs().sum(1, keepdim=True) * scales.T / 2
        + input_scales / 2 * weight.abs().sum(1)
        + 64 * input_scales * scales.T / 4
    )
    assert (error <= bound).all()


def test_int8_experts_equal_expert_by_expert(moe: Engine) -> None:
    experts = moe.checkpoint.structure.moe_layers[0].experts
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(11, experts.hidden_dim, generator=generator)
    index = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(11)])
    index[4, 1] = 8  # "no expert", as skipping marks it
    weights = torch.rand(11, 3, generator=generator)
    with torch.inference_mode():
        out = Int8Experts(experts)(hidden, index, weights)
        expected = torch.zeros_like(hidden)
        for token in range(11):
            for place in range(3):
                expert = int(index[token, place])
                if expert == 8:
                    continue
                gate_up = Int8Linear(experts.gate_up_proj[expert], None)(hidden[token : token + 1])
                gate, up = gate_up.chunk(2, dim=-1)
                down = Int8Linear(experts.down_proj[expert], None)(torch.nn.functional.silu(gate) * up)
                expected[token] += weights[token, place] * down[0]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_int8_patch_embedding_is_close_to_the_convolution(moe: Engine) -> None:
    convolution = moe.checkpoint.structure.visual.patch_embed.proj
    pixels = torch.randn(10, 3, 2, 16, 16, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        exact = convolution(pixels).flatten(1)
        close = Int8PatchEmbedding(convolution)(pixels)
    assert (close - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("name", precision.METHODS)
@pytest.mark.parametrize("part", PARTS)
def test_bytes_shown_are_the_bytes_in_use(moe: Engine, media_files: dict[str, Path], name: str, part: str) -> None:
    config = CompressionConfig(precision=PrecisionConfig(**{part: name}))
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    full = {entry.part: entry for entry in moe.answer(request, CompressionConfig.full()).memory.weights}
    ours = {entry.part: entry for entry in moe.answer(request, config).memory.weights}
    assert ours[part].precision == name
    for other in PARTS:
        if other != part:
            assert ours[other] == full[other]
    width = {"fp32": 4, "bf16": 2, "int8": 1}[name]
    products = sum(
        parameter.numel()
        for slot in moe.checkpoint.structure.slots(part)
        for parameter in slot.module.parameters()
        if parameter.ndim > 1
    )
    dtype = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}[name]
    assert ours[part].bytes_by_dtype[dtype] >= products * width
    if name == "int8":
        # All fused expert tensors are quantised, not only linear layers.
        assert ours[part].bytes_by_dtype["int8"] == products


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl", "qwen3_5_moe"])
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_every_family_answers_and_is_restored(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, name: str
) -> None:
    engine = engines[family]
    before = dict(engine.checkpoint.model.named_modules())
    request = RunRequest("What?", (media_files["clip"],), sampling=SamplingConfig(max_new_tokens=3), warm_up=False)
    engine.answer(request, CompressionConfig(precision=PrecisionConfig.all(name)))
    after = dict(engine.checkpoint.model.named_modules())
    assert before.keys() == after.keys()
    assert all(before[path] is after[path] for path in before)


def test_router_norms_and_embeddings_keep_their_format(moe: Engine) -> None:
    structure = moe.checkpoint.structure
    replaced = {id(slot.module) for part in PARTS for slot in structure.slots(part)}
    for path, module in structure.model.named_modules():
        if "norm" in path or path.endswith(("gate", "embed_tokens", "pos_embed")):
            assert id(module) not in replaced, path


def test_pool_drops_the_least_recently_used_variant(tiny_folders: dict[str, Path]) -> None:
    from engines.checkpoint import load_checkpoint

    engine = Engine(load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32"), weight_pool_bytes=1)
    for name in ("int8", "bf16", "int8"):
        config = PrecisionConfig(experts=name)
        engine._pool.prepare(config)
        assert engine._pool.missing(config) == []
        assert len(engine._pool._variants) == 1


def test_a_device_without_int8_says_so(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(precision.METHODS["int8"]), "unavailable", lambda self, device: "No kernel here.")
    config = CompressionConfig(precision=PrecisionConfig(experts="int8"))
    with pytest.raises(EngineError, match=r"precision\.experts=int8 is not available: No kernel here\."):
        next(moe.run(RunRequest("What?"), config))
