"""What a stage computes and moves, against PyTorch's own counter; the estimate made of it; the matrix units' rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.shape_true import TEXT, VISION
from engines.config import CompressionConfig
from engines.device.matrix_units import cpu_rules, misfits, rules_of, tensor_core_rules
from engines.device.rates import measure_rates
from engines.device.report import Rates, Stage
from engines.device.roofline import estimate, estimates
from engines.device.work import Load, stages
from engines.engine import Engine
from tests.checkpoints import FAMILIES
from tests.engines.test_off_is_identical import make_request

CPU = torch.device("cpu")
# Ours over PyTorch's. Gated DeltaNet is counted in its recurrent form; its prefill runs in chunks, which compute more.
TOLERANCE = {"qwen3_vl_moe": 0.01, "qwen3_vl": 0.01, "qwen3_5_moe": 0.15}


def counted(engine: Engine, request: object) -> dict[str, float]:
    """FLOPs of the stages of one run, as PyTorch's counter sees them."""
    structure = engine.checkpoint.structure
    found: dict[str, float] = {}
    counters: list[FlopCounterMode] = []

    def begin(*_: object) -> None:
        counters.append(FlopCounterMode(display=False))
        counters[-1].__enter__()

    def end(stage: str) -> None:
        counters[-1].__exit__(None, None, None)
        found[stage] = found.get(stage, 0.0) + counters.pop().get_total_flops()

    calls = {"language": 0}

    def after_head(*_: object) -> None:
        calls["language"] += 1
        end("prefill" if calls["language"] == 1 else "decode, a token")

    handles = [
        structure.visual.register_forward_pre_hook(begin),
        structure.visual.register_forward_hook(lambda *_: end("vision encode")),
        structure.language_model.register_forward_pre_hook(begin),
        structure.lm_head.register_forward_hook(after_head),
    ]
    before = structure.model.get_experts_implementation()
    # The counter follows gradients, which the engine's own mode has none of.
    structure.model.requires_grad_(False)
    try:
        # The counter knows neither fused attention on a CPU nor grouped products.
        if structure.moe_layers:
            structure.model.set_experts_implementation("eager")
        with sdpa_kernel(SDPBackend.MATH):
            engine.answer(request, CompressionConfig.full())  # type: ignore[arg-type]
    finally:
        structure.model.set_experts_implementation(before)
        structure.model.requires_grad_(True)
        for counter in counters:
            counter.__exit__(None, None, None)
        for handle in handles:
            handle.remove()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_are_those_that_pytorch_counts(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str
) -> None:
    engine = engines[family]
    request = make_request(media_files, ["wide"], tokens=2)
    result = engine.answer(request, CompressionConfig.full())
    theirs = counted(engine, request)
    load = Load(result.visual_tokens, result.prompt_tokens - result.visual_tokens)
    ours = {stage.name: stage.flops for stage in stages(engine.checkpoint.structure, load, 4)}
    assert ours.keys() == theirs.keys()
    for name, flops in ours.items():
        assert flops == pytest.approx(theirs[name], rel=TOLERANCE[family] if name != "vision encode" else 0.01), name


def test_weights_are_read_once_and_only_the_experts_that_are_chosen(engines: dict[str, Engine]) -> None:
    structure = engines["qwen3_vl_moe"].checkpoint.structure
    encode, prefill, decode = stages(structure, Load(4000, 96), 2)
    products = sum(
        2 * tensor.numel()
        for part in ("vision", "projector")
        for slot in structure.slots(part)
        for tensor in slot.module.parameters()
        if tensor.ndim > 1
    )
    assert encode.weight_bytes == products
    experts = sum(2 * tensor.numel() for layer in structure.moe_layers for tensor in layer.experts.parameters())
    # 8 experts, 4 a token: one token reads half of them, thousands all of them.
    assert prefill.weight_bytes - decode.weight_bytes == pytest.approx(experts / 2)
    config = structure.text_config
    row = 2 * 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    assert decode.kv_bytes == row * (4096 + 2)
    assert prefill.kv_bytes == row * 2 * 4096


def test_dense_models_have_no_experts_to_count(engines: dict[str, Engine]) -> None:
    structure = engines["qwen3_vl"].checkpoint.structure
    one, two = (stages(structure, Load(64, 16), size)[2] for size in (2, 4))
    assert two.weight_bytes == 2 * one.weight_bytes
    assert two.flops == one.flops


RATES = Rates(1e9, {"fp32": 1e11, "bf16": 4e11}, transfer_bytes_per_s=1e8)


@pytest.mark.parametrize(
    ("stage", "bound", "seconds"),
    [
        (Stage("a", 1e12, 1e9, 0.0), "compute", 10.0),
        (Stage("b", 1e9, 1e9, 5e8, 5e8), "memory", 2.0),
        (Stage("c", 1e9, 1e9, 0.0, transfer_bytes=1e9), "transfer", 11.0),
    ],
)
def test_the_slowest_of_computing_and_moving_bounds_a_stage(stage: Stage, bound: str, seconds: float) -> None:
    found = estimate(stage, "fp32", RATES)
    assert (found.bound, found.seconds) == (bound, pytest.approx(seconds))


def test_every_stage_is_estimated_at_every_format_that_was_measured(engines: dict[str, Engine]) -> None:
    found = estimates(engines["qwen3_vl_moe"].checkpoint.structure, Load(64, 16), RATES)
    assert [(one.dtype, one.stage.name) for one in found] == [
        (dtype, name) for dtype in ("fp32", "bf16") for name in ("vision encode", "prefill", "decode, a token")
    ]
    assert all(one.seconds > 0 for one in found)


def test_rates_are_measured(media_files: dict[str, Path]) -> None:
    found = measure_rates(CPU, budget_s=0.05)
    assert found.bytes_per_s > 1e6
    assert set(found.flops_per_s) == {"fp32", "bf16"}
    assert all(rate > 1e6 for rate in found.flops_per_s.values())
    assert found.transfer_bytes_per_s is None


# ---- dimensions ----


def test_rules_by_unit() -> None:
    tensor_cores = {(rule.dtype, rule.inner) for rule in tensor_core_rules((8, 7))}
    assert tensor_cores == {("fp16", 64), ("bf16", 64), ("int8", 128)}
    assert {(rule.dtype, rule.inner) for rule in tensor_core_rules((7, 5))} == {("fp16", 8), ("int8", 16)}
    assert tensor_core_rules((6, 1)) == ()
    assert {(rule.dtype, rule.inner, rule.outer) for rule in cpu_rules(amx=True, vnni=True)} == {
        ("bf16", 32, 16), ("int8", 64, 16),
    }  # fmt: skip
    assert [(rule.unit, rule.inner) for rule in cpu_rules(amx=False, vnni=True)] == [("VNNI", 4)]
    assert cpu_rules(amx=False, vnni=False) == ()
    assert rules_of(torch.device("mps")) == ()


def test_layers_that_miss_a_rule_are_named_once_a_kind(engines: dict[str, Engine]) -> None:
    """The tiny checkpoint's MLPs are 96 wide, which is no multiple of 64; its experts are 32 wide."""
    structure = engines["qwen3_vl_moe"].checkpoint.structure
    found = misfits(structure, tensor_core_rules((8, 0)))
    named = {(one.dtype, one.path.rpartition("visual.")[2]): one for one in found}
    mlp = named["bf16", "blocks.*.mlp.linear_fc1"]
    assert (mlp.count, mlp.outer, mlp.inner, mlp.why) == (3, 96, 64, "96 outputs, wants 64")
    assert any(one.path.endswith("experts.down_proj") and "32 inputs, wants 64" in one.why for one in found)
    # The demo's vocabulary has no size that any unit wants.
    assert [one.path for one in misfits(structure, cpu_rules(amx=False, vnni=True))] == ["lm_head"]


def test_the_published_tower_is_no_multiple_of_what_the_newer_units_want() -> None:
    """What the check is for: 4304 and 1152 were chosen for no unit in particular."""
    rule = tensor_core_rules((9, 0))[1]
    assert VISION["intermediate_size"] % rule.inner
    assert not TEXT["moe_intermediate_size"] % rule.inner  # type: ignore[operator]
