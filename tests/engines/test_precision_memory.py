"""Weights at several precisions in a bounded pool: what is held, what comes back, and that nothing grows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.checkpoint import load_checkpoint
from engines.config import PARTS, CompressionConfig, PrecisionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import RunRequest

FULL = CompressionConfig.full()


def settings(*assignments: str) -> CompressionConfig:
    return FULL.with_settings(assignments)


@pytest.fixture
def small(tiny_folders: dict[str, Path]) -> Engine:
    """An engine of its own that may hold nothing but what is in use."""
    return Engine(load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32"), weight_pool_bytes=1)


def own_weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in engine.checkpoint.model.named_parameters()}


def ask(media_files: dict[str, Path]) -> RunRequest:
    return RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=4), warm_up=False)


def test_own_weights_are_given_up_and_come_back_to_the_bit(small: Engine, media_files: dict[str, Path]) -> None:
    before, full = own_weights(small), small.answer(ask(media_files), FULL)
    held = small.answer(ask(media_files), settings("precision.all=int4")).precision_report
    away = [name for name, value in small.checkpoint.model.named_parameters() if value.is_meta]
    assert any(name.endswith("experts.gate_up_proj") for name in away)
    assert not any("embed_tokens" in name or "norm" in name or name.endswith("mlp.gate.weight") for name in away)
    assert held is not None
    assert full.precision_report is not None
    assert held.held_bytes < 0.32 * full.precision_report.held_bytes
    assert small.checkpoint.parameters == sum(value.numel() for value in before.values())
    again = small.answer(ask(media_files), FULL)
    assert again.tokens == full.tokens
    after = own_weights(small)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_held_bytes_stay_within_the_bound(tiny_folders: dict[str, Path]) -> None:
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    probe = Engine(checkpoint)._pool
    bound = int(1.3 * probe.held_bytes())
    pool = Engine(checkpoint, weight_pool_bytes=bound)._pool
    for name in ("int8", "bf16", "int4", "native", "int8", "fp16"):
        pool.prepare(PrecisionConfig.all(name))
        in_use = sum(pool._variants[key].bytes for key in pool._wanted(PrecisionConfig.all(name)) if key[1] != "native")
        assert pool.held_bytes() <= max(bound, in_use)
        assert pool.missing(PrecisionConfig.all(name)) == []


def test_a_roomy_pool_keeps_everything(moe: Engine) -> None:
    for name in ("int8", "native", "int4"):
        moe._pool.prepare(PrecisionConfig.all(name))
    assert moe._pool.missing(PrecisionConfig.all("int8")) == []
    assert moe._pool.missing(PrecisionConfig()) == []
    assert not any(value.is_meta for value in moe.checkpoint.model.parameters())


def test_a_part_at_two_group_sizes_is_two_variants(moe: Engine) -> None:
    pool, config = moe._pool, PrecisionConfig(experts="int4")
    pool.prepare(config)
    assert pool.missing(PrecisionConfig(experts="int4", group_size=32)) == [("experts", "int4")]
    # What does not matter for the part does not convert it again.
    assert pool.missing(PrecisionConfig(experts="int4", tied_head=True, compensation_share=0.5)) == []


def test_weights_that_their_file_does_not_hold_are_kept(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """A changed file must not change the model; and transposed experts, as published, are found."""
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    tensors = load_file(tiny_folders["qwen3_vl_moe"] / "model.safetensors")
    names = [name for name in tensors if name.endswith("gate_up_proj")]
    tensors[names[0]] = tensors[names[0]] + 1.0
    tensors[names[1]] = tensors[names[1]].mT.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    object.__setattr__(checkpoint, "folder", tmp_path)
    engine = Engine(checkpoint, weight_pool_bytes=1)
    before = own_weights(engine)
    engine._pool.prepare(PrecisionConfig.all("int8"))
    values = dict(engine.checkpoint.model.named_parameters())
    assert not values[names[0]].is_meta
    assert values[names[1]].is_meta
    engine._pool.prepare(PrecisionConfig())
    after = own_weights(engine)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_every_part_can_stay_native_beside_the_others(small: Engine, media_files: dict[str, Path]) -> None:
    full = small.answer(ask(media_files), FULL).memory.weights
    for part in PARTS:
        mixed = small.answer(
            ask(media_files), settings("precision.all=int8", f"precision.{part}=native")
        ).memory.weights
        for ours, theirs in zip(mixed, full, strict=True):
            assert (ours == theirs) is (ours.part == part)


def test_switching_back_and_forth_neither_grows_nor_changes(tiny_folders: dict[str, Path]) -> None:
    """Resident memory of a process of its own, whose peaks no other test has raised."""
    done = subprocess.run(
        [sys.executable, "-c", _SWITCH, str(tiny_folders["qwen3_vl_moe"])], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same answers"


_SWITCH = """
import sys
import psutil
from engines.checkpoint import load_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import RunRequest

request = RunRequest("What?", sampling=SamplingConfig(max_new_tokens=4), warm_up=False)
configs = [CompressionConfig.full().with_settings([f"precision.all={name}"]) for name in ("native", "int8", "int4")]
engine = Engine(load_checkpoint(sys.argv[1], "cpu", "fp32"), weight_pool_bytes=1)
answers, sizes = [], []
for _ in range(21):
    answers.append([engine.answer(request, config).tokens for config in configs])
    sizes.append(psutil.Process().memory_info().rss)
assert all(one == answers[0] for one in answers), answers
assert sizes[-1] <= 1.03 * sizes[0], sizes
print("same answers")
"""
