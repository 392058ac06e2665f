"""Precisions against slow references, and what they leave behind: nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from engines import precision
from engines.checkpoint import DEMO_FOLDER
from engines.config import PARTS, CompressionConfig, PrecisionConfig, SamplingConfig
from engines.engine import Engine
from engines.precision import int4, int8
from engines.precision.base import Conversion
from engines.precision.int4 import Int4Matrix, quantise_groups
from engines.precision.int8 import Int8Matrix, int8_matmul
from engines.precision.layers import Activations, QuantisedMatrix, quantise_rows
from engines.results import EngineError, RunRequest

BITS = {"int8": Int8Matrix, "int4": Int4Matrix}
# Sizes that divide by nothing, one row, less than a group, and more than one chunk of the packed layout.
SHAPES = [(16, 24), (1, 32), (100, 70), (192, 129), (64, 256)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference_int8(inputs: Tensor, weight: Tensor) -> Tensor:
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
    inputs, weight = random(rows, 24, seed=rows), random(16, 24, seed=50 + rows)
    weight[3] = 0.0
    inputs[0] *= 100.0
    quantised, scales = quantise_rows(weight)
    product = int8_matmul(*quantise_rows(inputs), quantised, scales[:, 0])
    expected = reference_int8(inputs, weight)
    # A value on a rounding edge may fall either way, by one step of one product.
    torch.testing.assert_close(product, expected, rtol=1e-2, atol=float(expected.abs().max()) * 2e-3)


def test_int8_error_is_bounded() -> None:
    """Half a step per value: at most |x| scale_w / 2 + |w| scale_x / 2 + a quarter step squared, summed."""
    inputs, weight = random(8, 64, seed=1), random(32, 64, seed=2)
    quantised, scales = quantise_rows(weight)
    rows, input_scales = quantise_rows(inputs)
    error = (int8_matmul(rows, input_scales, quantised, scales[:, 0]) - inputs @ weight.T).abs()
    bound = (
        inputs.abs().sum(1, keepdim=True) * scales.T / 2
        + input_scales / 2 * weight.abs().sum(1)
        + 64 * input_scales * scales.T / 4
    )
    assert (error <= bound).all()


def reference_int4(weight: Tensor, group: int) -> Tensor:
    """The dequantised weights, group by group in float64: every clip is tried, and the best by its error kept."""
    out = torch.zeros(weight.shape, dtype=torch.float64)
    for i, row in enumerate(weight.double()):
        scale = float(row.abs().max()) / 112 or 1.0
        for start in range(0, len(row), group):
            steps = row[start : start + group] / scale
            found = []
            for clip in int4.CLIPS:
                needed = max(1.0, float(steps.abs().max()) / 7) * clip
                multiplier = min(16, max(1, -int(-needed // 1)))
                values = (steps / multiplier).round().clamp(-8, 7) * multiplier
                found.append((float((values - steps).square().sum()), values))
            out[i, start : start + group] = min(found, key=lambda one: one[0])[1] * scale
    return out


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_groups_equal_the_reference(group: int) -> None:
    weight = random(12, 256, seed=group)
    weight[3] = 0.0
    weight[4, 7] = 40.0  # an outlier, beside which the other groups are small
    codes, multipliers, scales = quantise_groups(weight, group)
    assert int(codes.min()) >= 0
    assert int(codes.max()) <= 15
    assert set(multipliers.unique().tolist()) <= set(range(1, 17))
    ours = (codes.double() - 8) * multipliers.repeat_interleave(group, dim=1) * scales[:, None]
    expected = reference_int4(weight, group)
    # Where two clips are as good, or a value is on an edge, either may be taken: the error is what counts.
    errors = [float((one - weight).square().sum()) for one in (ours, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)
    assert ((ours - expected).abs() < 1e-5).double().mean() > 0.99


def test_int4_error_is_bounded_by_half_a_step_or_the_clip() -> None:
    weight = random(16, 128, seed=3)
    codes, multipliers, scales = quantise_groups(weight, 64)
    step = multipliers.repeat_interleave(64, dim=1) * scales[:, None]
    error = ((codes.float() - 8) * step - weight).abs()
    clipped = weight.abs() > 7 * step
    assert (error[~clipped] <= step[~clipped] / 2 * 1.0001).all()
    assert (error <= 0.35 * weight.abs() + step).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9, 33])
def test_every_kernel_multiplies_the_dequantised_weights(shape: tuple[int, int], name: str, rows: int) -> None:
    """Few rows and many rows take other kernels; both see the same weights, and err no more than their activations."""
    weight, inputs = random(*shape, seed=4), random(rows, shape[1], seed=5)
    matrix = BITS[name](weight, Conversion())
    stands_for = matrix.dequantised()
    assert stands_for.shape == shape
    assert (stands_for - weight).norm() / weight.norm() < (0.12 if name == "int4" else 0.01)
    out = matrix.product(Activations(inputs))
    exact = (inputs.double() @ stands_for.double().T).float()
    assert out.dtype is torch.float32
    # bf16 rounds at 2^-9, int8 activations of so few channels at a hundredth.
    allowed = {"int8": 0.015, "int4": 0.006}[name]
    assert (out - exact).norm() <= allowed * exact.norm()
    assert sum(matrix.kernels.values()) == 1


@pytest.mark.parametrize("processor", ["bf16 tiles", "byte products", "neither", "unknown layout"])
@pytest.mark.parametrize("rows", [1, 20, 300])
def test_other_processors(monkeypatch: pytest.MonkeyPatch, processor: str, rows: int) -> None:
    """What this machine would not choose is tried all the same; each is as exact as its activations."""
    if processor == "unknown layout":
        monkeypatch.setattr(int4, "layout_on", lambda device: "nibbles")
    for file in (int4, int8):
        monkeypatch.setattr(file, "has_bf16_tiles", lambda: processor == "bf16 tiles")
    monkeypatch.setattr(int4, "has_byte_products", lambda: processor in ("bf16 tiles", "byte products"))
    weight, inputs = random(96, 160, seed=6), random(rows, 160, seed=7)
    matrix = Int4Matrix(weight, Conversion())
    exact = inputs @ matrix.dequantised().T
    error = (matrix.product(Activations(inputs)) - exact).norm() / exact.norm()
    few = rows <= int4.FEW_ROWS
    assert error <= (1e-4 if processor == "unknown layout" or (not few and processor != "bf16 tiles") else 0.006)
    of_bytes = Int8Matrix(weight, Conversion())
    exact = inputs @ of_bytes.dequantised().T
    assert (of_bytes.product(Activations(inputs)) - exact).norm() <= 0.015 * exact.norm()
    assert precision.METHODS["int4"].kernel(torch.device("cpu"))
    monkeypatch.undo()
    torch.testing.assert_close(matrix.dequantised(), Int4Matrix(weight, Conversion()).dequantised())


@pytest.mark.parametrize("name", BITS)
def test_experts_equal_expert_by_expert(moe: Engine, name: str) -> None:
    experts = moe.checkpoint.structure.moe_layers[0].experts
    hidden, weights = random(11, experts.hidden_dim, seed=8), torch.rand(11, 3)
    generator = torch.Generator().manual_seed(2)
    index = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(11)])
    index[4, 1] = 8  # "no expert", as skipping marks it
    index[6] = 8
    with torch.inference_mode():
        quantised: Any = precision.METHODS[name].convert(experts, Conversion())
        out = quantised(hidden, index, weights)
        expected = torch.zeros_like(hidden)
        for token in range(11):
            for place in range(3):
                expert = int(index[token, place])
                if expert == 8:
                    continue
                gate, up = (hidden[token] @ quantised.gate_up.dequantised(expert).T).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                expected[token] += weights[token, place] * (inner @ quantised.down.dequantised(expert).T)
    assert (out - expected).norm() <= 0.02 * expected.norm()
    assert not out[6].any()
    assert sum(quantised.gate_up.kernels.values()) == 2 * len(set(index.flatten().tolist()) - {8})


def test_experts_quantise_their_inputs_once(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from engines.precision import layers

    experts, seen = moe.checkpoint.structure.moe_layers[0].experts, []
    original = layers.quantise_rows

    def counted(values: Tensor, largest: int = 127) -> tuple[Tensor, Tensor]:
        seen.append(tuple(values.shape))
        return original(values, largest)

    monkeypatch.setattr(layers, "quantise_rows", counted)
    hidden, index = random(40, experts.hidden_dim), torch.arange(40)[:, None] % 2
    with torch.inference_mode():
        precision.METHODS["int8"].convert(experts, Conversion())(hidden, index, torch.ones(40, 1))
    assert seen.count((40, experts.hidden_dim)) == 1
    assert seen.count((20, experts.hidden_dim)) == 0


@pytest.mark.parametrize("name", BITS)
def test_patch_embedding_is_close_to_the_convolution(moe: Engine, name: str) -> None:
    convolution = moe.checkpoint.structure.visual.patch_embed.proj
    pixels = random(10, 3, 2, 16, 16, seed=3)
    with torch.inference_mode():
        exact = convolution(pixels).flatten(1)
        close = precision.METHODS[name].convert(convolution, Conversion())(pixels)
    assert (close - exact).norm() / exact.norm() < (0.13 if name == "int4" else 0.02)


@pytest.mark.parametrize(("name", "group", "most"), [("int8", 64, 0.012), ("int4", 32, 0.12), ("int4", 128, 0.14)])
def test_real_weights_keep_their_layers_outputs(name: str, group: int, most: float) -> None:
    """Every product of the bundled checkpoint: the output's error over all its channels, for inputs that are alike."""
    with safe_open(DEMO_FOLDER / "model.safetensors", "pt") as file:
        for path in file.keys():  # noqa: SIM118
            weight = file.get_tensor(path).float()
            if weight.ndim < 2 or "embed_tokens" in path or "pos_embed" in path or path.endswith("mlp.gate.weight"):
                continue
            weight = weight if weight.ndim == 3 else weight.flatten(1)
            weight = weight[:2] if weight.ndim == 3 else weight[:512]
            matrix: QuantisedMatrix = BITS[name](weight, Conversion(group_size=group))
            for expert in range(len(weight)) if weight.ndim == 3 else (None,):
                exact = weight if expert is None else weight[expert]
                assert (matrix.dequantised(expert) - exact).norm() <= most * exact.norm(), path


@pytest.mark.parametrize("name", precision.METHODS)
@pytest.mark.parametrize("part", PARTS)
def test_bytes_shown_are_the_bytes_in_use(moe: Engine, media_files: dict[str, Path], name: str, part: str) -> None:
    config = CompressionConfig(precision=PrecisionConfig(**{part: name}, tied_head=True))
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    full = {entry.part: entry for entry in moe.answer(request, CompressionConfig.full()).memory.weights}
    ours = {entry.part: entry for entry in moe.answer(request, config).memory.weights}
    assert ours[part].precision == name
    for other in PARTS:
        if other != part:
            assert ours[other] == full[other]
    weights = [
        parameter
        for slot in moe.checkpoint.structure.slots(part)
        for parameter in slot.module.parameters()
        if parameter.ndim > 1
    ]
    products = sum(weight.numel() for weight in weights)
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8", "int4": "uint8"}[name]
    if name == "int4":
        # Two weights a byte, in whole blocks of 64 outputs and whole groups of at least 32 inputs.
        padded = sum(_padded(weight) for weight in weights)
        assert ours[part].bytes_by_dtype[dtype] == padded // 2
    elif name == "int8":
        # All fused expert tensors are quantised, not only linear layers.
        assert ours[part].bytes_by_dtype[dtype] == products
    else:
        assert ours[part].bytes_by_dtype[dtype] >= products * {"fp32": 4, "bf16": 2, "fp16": 2}[name]
    assert bool(ours[part].ran) is (name in BITS)


def _padded(weight: Tensor) -> int:
    experts = weight.shape[0] if weight.ndim == 3 else 1
    rows, width = weight.shape[1:] if weight.ndim == 3 else weight.flatten(1).shape
    group = 64 if width > 32 else 32
    return experts * -(-rows // 64) * 64 * -(-width // group) * group


@pytest.mark.parametrize("name", BITS)
def test_a_tied_output_head_is_quantised_only_if_chosen(moe: Engine, media_files: dict[str, Path], name: str) -> None:
    assert moe.checkpoint.structure.tied_head
    request = RunRequest("What?", sampling=SamplingConfig(max_new_tokens=1), warm_up=False)
    head = moe.checkpoint.structure.lm_head
    for chosen, count in ((False, 0), (True, 1)):
        config = CompressionConfig(precision=PrecisionConfig(language=name, tied_head=chosen))
        report = moe.answer(request, config).precision_report
        assert report is not None
        assert [layer.path for layer in report.layers].count("lm_head") == count
        assert not any("norm" in layer.path or layer.path.endswith("mlp.gate") for layer in report.layers)
    assert moe.checkpoint.model.lm_head is head


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl", "qwen3_5_moe"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "int4"])
def test_every_family_answers_and_is_restored(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, name: str
) -> None:
    engine = engines[family]
    before = dict(engine.checkpoint.model.named_modules())
    request = RunRequest("What?", (media_files["clip"],), sampling=SamplingConfig(max_new_tokens=3), warm_up=False)
    result = engine.answer(request, CompressionConfig(precision=PrecisionConfig.all(name)))
    assert all(part.precision == name for part in result.memory.weights)
    after = dict(engine.checkpoint.model.named_modules())
    assert before.keys() == after.keys()
    assert all(before[path] is after[path] for path in before)


def test_router_norms_and_embeddings_keep_their_format(moe: Engine) -> None:
    structure = moe.checkpoint.structure
    replaced = {id(slot.module) for part in PARTS for slot in structure.slots(part)}
    for path, module in structure.model.named_modules():
        if "norm" in path or path.endswith(("gate", "embed_tokens", "pos_embed")):
            assert id(module) not in replaced, path


def test_the_kernels_that_ran_are_counted(moe: Engine, media_files: dict[str, Path]) -> None:
    """The prompt goes to one kernel and each new token to the other; a warm-up is not counted."""
    config = CompressionConfig(precision=PrecisionConfig(experts="int4"))
    sampling = SamplingConfig(max_new_tokens=4)
    cold = moe.answer(RunRequest("What?", (media_files["wide"],), sampling=sampling, warm_up=False), config)
    warm = moe.answer(RunRequest("What?", (media_files["wide"],), sampling=sampling), config)
    ran = {part.part: part.ran for part in cold.memory.weights}
    assert ran == {part.part: part.ran for part in warm.memory.weights}
    assert ran["vision"] == {}
    assert cold.expert_report is not None
    steps = len(cold.tokens) - 1
    assert sum(ran["experts"].values()) >= 2 * steps * 4 * len(cold.expert_report.layers)
    assert isinstance(ran["experts"], dict)
    assert not isinstance(ran["experts"], Counter)


def test_a_device_without_a_precision_says_so(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(precision.METHODS["int8"]), "unavailable", lambda self, device: "No kernel here.")
    config = CompressionConfig(precision=PrecisionConfig(experts="int8"))
    with pytest.raises(EngineError, match=r"precision\.experts=int8 is not available: No kernel here\."):
        next(moe.run(RunRequest("What?"), config))
    shown = {one.name: one for one in moe.capabilities().precisions}
    assert not shown["int8"].available
    assert shown["int8"].reason == "No kernel here."
    for name in ("fp32", "bf16", "fp16", "int4"):
        assert shown[name].available
        assert shown[name].detail


@pytest.mark.parametrize("name", BITS)
def test_other_devices_have_no_integer_kernel(name: str) -> None:
    assert "mps" in precision.METHODS[name].unavailable(torch.device("mps"))


def test_a_checkpoint_that_is_quantised_already_runs_as_it_is(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe.checkpoint.structure.config, "quantization_config", {"quant_method": "fp8"}, raising=False)
    config = CompressionConfig(precision=PrecisionConfig(vision="int8"))
    with pytest.raises(EngineError, match=r"precision\.vision=int8 is not available: .* quantised already \(fp8\)"):
        moe.check(config)
    assert not any(one.available for one in moe.capabilities().precisions)
    moe.check(CompressionConfig.full())
