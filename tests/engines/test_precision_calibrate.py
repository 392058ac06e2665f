"""Calibration, compensation and the check of fp16: against plain computations, and what they change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.checkpoint import Checkpoint, load_checkpoint
from engines.config import PARTS, CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.experts.calibration import CACHE_VARIABLE
from engines.precision import METHODS, statistics
from engines.precision.base import Conversion, LayerMoments
from engines.precision.calibrate import calibrate
from engines.precision.collapse import count, measure_collapse
from engines.precision.compensation import low_rank, share_out
from engines.precision.statistics import Statistics, joint
from engines.results import RunRequest
from launch import main

FULL = CompressionConfig.full()
EXPERTS = "model.language_model.layers.1.mlp.experts"
QUERY = "model.language_model.layers.1.self_attn.q_proj"


def settings(*assignments: str) -> CompressionConfig:
    return FULL.with_settings(assignments)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def checkpoint(tiny_folders: dict[str, Path]) -> Checkpoint:
    return load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")


@pytest.fixture
def requests(media_files: dict[str, Path]) -> list[RunRequest]:
    return [RunRequest("What is in this picture?", (media_files[name],)) for name in ("wide", "clip")]


@pytest.fixture
def found(checkpoint: Checkpoint, requests: list[RunRequest]) -> Statistics:
    return calibrate(checkpoint, requests, "two files")


# ---- C4: what is measured ----


def test_moments_are_those_of_the_inputs(checkpoint: Checkpoint, requests: list[RunRequest]) -> None:
    """Against all rows of one layer kept aside; at percentile 100 nothing is clipped."""
    model, rows, visual = checkpoint.model, [], []
    query = dict(model.named_modules())[QUERY]
    hook = query.register_forward_pre_hook(lambda module, inputs: rows.append(inputs[0][0]))
    token = model.config.image_token_id, model.config.video_token_id
    from engines.media import load_all
    from engines.prompt import build_prompt

    for request in requests:
        media = load_all(request.media, limits=request.limits, sampling=request.frames)
        prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
        with torch.inference_mode():
            model(**prompt.inputs)
        visual.append(torch.isin(prompt.input_ids[0], torch.tensor(token)))
    hook.remove()
    kept, is_visual = torch.cat(rows), torch.cat(visual)
    power = query.weight.detach().square().sum(dim=0)
    means = [kept[is_visual == kind].square().mean(dim=0) for kind in (False, True)]
    expected = sum(mean / (mean * power).sum() for mean in means)
    measured = calibrate(checkpoint, requests, "two files", percentile=100.0)
    ours = measured.layers[QUERY].inputs
    torch.testing.assert_close(ours, expected / expected.mean(), rtol=1e-3, atol=1e-5)
    assert measured.prompts == 2


def test_every_product_is_measured_and_no_hook_is_left(checkpoint: Checkpoint, found: Statistics) -> None:
    slots = [
        slot for part in ("vision", "projector", "language", "experts") for slot in checkpoint.structure.slots(part)
    ]
    assert len(found.layers) == len(slots)
    inner = found.layers[EXPERTS].inner
    assert inner is not None
    assert inner.shape == (8, 32)
    assert found.signals["model.visual.blocks.0.attn.qkv"].text_db is None
    assert found.signals[QUERY].text_db is not None
    assert found.signals[QUERY].visual_db is not None
    assert not any(module._forward_pre_hooks for module in checkpoint.model.modules())


def test_neither_kind_decides_by_being_loud_or_frequent() -> None:
    text, visual, power = random(16, seed=1).square(), random(16, seed=2).square(), random(16, seed=3).square()
    both = joint(text, visual, power)
    torch.testing.assert_close(joint(text * 1000, visual, power), both)
    torch.testing.assert_close(joint(text, visual * 1e-4, power), both)
    torch.testing.assert_close(joint(torch.zeros(16), visual, power), visual / visual.mean())
    assert float(both.mean()) == pytest.approx(1.0)
    assert torch.equal(joint(torch.zeros(4), torch.zeros(4), torch.ones(4)), torch.ones(4))


def test_outliers_are_clipped_at_the_percentile(checkpoint: Checkpoint, requests: list[RunRequest]) -> None:
    with_all = calibrate(checkpoint, requests, "x", percentile=100.0).layers[QUERY].inputs
    clipped = calibrate(checkpoint, requests, "x", percentile=90.0).layers[QUERY].inputs
    assert clipped.max() / clipped.median() < with_all.max() / with_all.median()


@pytest.mark.parametrize("percentile", [49.0, 100.5, float("nan")])
def test_a_percentile_out_of_range_is_refused(checkpoint: Checkpoint, percentile: float) -> None:
    with pytest.raises(ValueError, match="at least 50 and at most 100"):
        calibrate(checkpoint, [RunRequest("What?")], "x", percentile)


def test_there_must_be_a_prompt(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="no prompt"):
        calibrate(checkpoint, [], "x")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5_moe"])
def test_other_families_are_measured_too(engines: dict[str, Engine], media_files: dict[str, Path], family: str) -> None:
    found = calibrate(engines[family].checkpoint, [RunRequest("What?", (media_files["tall"],))], "x")
    assert all(bool(layer.inputs.isfinite().all()) for layer in found.layers.values())


def test_it_is_kept_and_used_from_then_on(
    checkpoint: Checkpoint, found: Statistics, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert statistics.load(checkpoint.digest) is None
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    before = Engine(checkpoint).answer(request, settings("precision.all=int4")).precision_report
    assert before is not None
    assert before.calibrated is False
    assert found.save() == tmp_path / "precision" / f"{checkpoint.digest}.safetensors"
    again = statistics.load(checkpoint.digest)
    assert again is not None
    assert again.signals == found.signals
    assert all(torch.equal(again.layers[path].inputs, found.layers[path].inputs) for path in found.layers)
    engine = Engine(checkpoint)
    after = engine.answer(request, settings("precision.all=int4")).precision_report
    unused = engine.answer(request, settings("precision.all=int4", "precision.use_calibration=false")).precision_report
    assert after is not None
    assert after.calibrated is True
    assert unused is not None
    assert unused.layers == before.layers
    assert after.layers != before.layers
    # Full precision has no use for it.
    full = engine.answer(request, FULL).precision_report
    assert full is not None
    assert full.calibrated is None
    assert full.layers == ()


@pytest.mark.parametrize("content", ["text", "other checkpoint", "infinite"])
def test_a_file_that_cannot_be_used_is_said_in_a_sentence(
    checkpoint: Checkpoint, found: Statistics, content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    if content == "infinite":
        infinite = LayerMoments(torch.full((64,), torch.inf))
        found = replace(found, layers={**found.layers, QUERY: infinite})
    path = found.save()
    digest = checkpoint.digest
    if content == "text":
        path.write_text("{")
    elif content == "other checkpoint":
        digest = "0" * 64
        path.rename(statistics.path_of(digest))
    with pytest.raises(ValueError, match=r"precision calibration .* cannot be used .*; delete it or run launch\.py"):
        statistics.load(digest)


def test_the_command_measures_a_folder(
    tiny_folders: dict[str, Path], media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "media").mkdir()
    for name in ("wide", "clip"):
        (tmp_path / "media" / media_files[name].name).write_bytes(media_files[name].read_bytes())
    (tmp_path / "media" / "notes.txt").write_text("not a picture")
    command = ["calibrate", "precision", str(tmp_path / "media"), "--device", "cpu"]
    assert main([*command, "--model", str(tiny_folders["qwen3_vl_moe"])]) == 0
    said = capsys.readouterr().out
    assert "on 2 prompts from the folder media" in said
    assert "visual tokens at int4" in said
    (kept,) = (tmp_path / "cache" / "precision").iterdir()
    assert str(kept) in said
    for wrong, sentence in (
        (["calibrate", "precision", str(tmp_path / "none")], "There is no folder"),
        (["calibrate", "precision", str(tmp_path / "cache")], "holds no image or video"),
        (["calibrate", "precision", "--percentile", "10"], "--percentile is 10"),
        (["calibrate", "experts", str(tmp_path)], "takes no folder"),
    ):
        assert main(wrong) == 2
        assert sentence in capsys.readouterr().err


# ---- what the calibration is for ----


def weighed_error(matrix: Any, weight: Tensor, moments: Tensor) -> float:
    return float(((matrix.dequantised() - weight).square() * moments).sum())


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_calibrated_scales_err_less_where_it_matters(name: str) -> None:
    weight, moments = random(64, 128, seed=1), random(128, seed=2).square() ** 3
    linear = torch.nn.Linear(128, 64, bias=False)
    linear.weight.data = weight
    with torch.inference_mode():
        plain: Any = METHODS[name].convert(linear, Conversion())
        tuned: Any = METHODS[name].convert(linear, Conversion(moments=LayerMoments(moments)))
    ours, theirs = (weighed_error(one.matrix, weight, moments) for one in (tuned, plain))
    assert ours < theirs


# ---- C5: compensation ----


@pytest.mark.parametrize("shape", [(24, 40), (600, 520)])
def test_the_factors_are_the_best_of_their_rank(shape: tuple[int, int]) -> None:
    """Against the singular values of the weighed error, which no product of that rank can beat."""
    error, moments = random(*shape, seed=1), random(shape[1], seed=2).square() + 0.01
    weighed = (error * moments.sqrt()).double()
    values = torch.linalg.svdvals(weighed)
    down, up, gains = low_rank(error, moments, 8)
    left = float((((error - up @ down) * moments.sqrt()) ** 2).sum())
    best = float(values[8:].square().sum())
    # Subspace iteration leaves a little of what is hardly smaller than what it found.
    assert best * 0.999 <= left <= best * (1.001 if min(shape) <= 512 else 1.01)
    assert float((weighed**2).sum() - gains.sum()) == pytest.approx(left, rel=1e-3)
    again = low_rank(error, moments, 8)
    assert torch.equal(down, again[0])


def test_compensation_lowers_the_error_of_the_output() -> None:
    linear = torch.nn.Linear(96, 80)
    inputs = random(200, 96, seed=1) * random(96, seed=2).abs()
    how = Conversion(rank=8, moments=LayerMoments(inputs.square().mean(dim=0)))
    with torch.inference_mode():
        exact = linear(inputs)
        bias = linear.bias.detach()
        plain = METHODS["int4"].convert(linear, Conversion(moments=how.moments))(inputs)
        ours = METHODS["int4"].convert(linear, how)(inputs)
    (record,) = how.records
    before, after = ((out - exact).norm() / (exact - bias).norm() for out in (plain, ours))
    assert after < before
    assert record.error().before == pytest.approx(float(before), rel=0.2)
    assert record.error().after == pytest.approx(float(after), rel=0.2)
    assert record.error().added_parameters == 8 * (96 + 80)


def test_a_share_is_kept_within_and_goes_where_it_gains_most() -> None:
    small, large = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)
    # The error of one layer is almost of rank 1, because one channel is hard to quantise and loud.
    hard = torch.ones(64)
    hard[5] = 1e4
    records, modules = [], []
    for linear, moments in ((small, torch.ones(64)), (large, hard)):
        how = Conversion(rank=8, moments=LayerMoments(moments))
        with torch.inference_mode():
            modules.append(METHODS["int4"].convert(linear, how))
        records += how.records
    share_out(records, 0.05)
    ranks = [module.compensation.rank for module in modules]  # type: ignore[union-attr]
    added = sum(record.error().added_parameters for record in records)
    assert 0 < added <= 0.05 * 2 * 64 * 64
    assert ranks[1] >= 1
    share_out(records, 1e-6)
    assert [module.compensation.rank for module in modules] == [0, 0]  # type: ignore[union-attr]
    for record in records:
        assert record.error().before == record.error().after
    with torch.inference_mode():
        modules[0](random(3, 64))


def test_rank_0_adds_nothing_and_rank_8_shows_its_share(checkpoint: Checkpoint, media_files: dict[str, Path]) -> None:
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=3), warm_up=False)
    engine = Engine(checkpoint)
    off = engine.answer(request, settings("precision.all=int4"))
    none = engine.answer(request, settings("precision.all=int4", "precision.compensation_rank=0"))
    assert off.tokens == none.tokens
    assert off.precision_report is not None
    assert off.precision_report.added_share == 0.0
    on = engine.answer(
        request, settings("precision.all=int4", "precision.compensation_rank=8", "precision.compensation_share=0.3")
    )
    report = on.precision_report
    assert report is not None
    assert 0.1 < (report.added_share or 0) <= 0.3
    assert all(layer.after <= layer.before for layer in report.layers)
    assert any(layer.after < 0.95 * layer.before for layer in report.layers if layer.path.endswith("experts"))
    assert on.memory.weight_bytes > off.memory.weight_bytes
    assert on.to_dict()["precision_report"]["added_share"] == report.added_share


# ---- C6: fp16 ----


def test_losses_are_counted_value_by_value() -> None:
    values = torch.tensor([0.0, 1.0, -2e-8, 3e-8, 5e-5, -65_504.0, 65_520.0, -1e9, torch.inf, torch.nan])
    counts, largest = count(values)
    # 2e-8 rounds to 0 and 3e-8 to the smallest number; 65,520 is the first that rounds to infinity.
    assert counts.tolist() == [10, 1, 2, 2]
    assert float(largest) == pytest.approx(1e9)


def test_a_layer_that_overflows_is_found_and_the_hooks_are_gone(
    tiny_folders: dict[str, Path], media_files: dict[str, Path]
) -> None:
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=3))
    engine = Engine(checkpoint)
    answer = engine.answer(request, FULL)
    sound = engine.check_fp16(request)
    assert sound.overflowing == ()
    assert sound.prompt_tokens == answer.prompt_tokens
    assert sound.answer_tokens == len(answer.tokens)
    names = [layer.path for layer in sound.layers]
    assert len(names) == len(set(names))
    assert {layer.part for layer in sound.layers} == set(PARTS)
    assert EXPERTS in names
    assert all(layer.values > 0 for layer in sound.layers)

    value = dict(checkpoint.model.named_modules())[QUERY.replace("q_proj", "v_proj")]
    with torch.no_grad():
        value.weight.mul_(1e6)
    broken = measure_collapse(checkpoint, request)
    assert QUERY.replace("q_proj", "v_proj") in [layer.path for layer in broken.overflowing]
    assert not any(module._forward_hooks for module in checkpoint.model.modules())


def test_a_check_can_be_stopped(checkpoint: Checkpoint) -> None:
    import threading

    from engines.results import EngineError

    cancel = threading.Event()
    cancel.set()
    engine = Engine(checkpoint)
    with pytest.raises(EngineError, match="Stopped"):
        engine.check_fp16(RunRequest("What?", cancel=cancel))
    assert engine.check_fp16(RunRequest("What?", sampling=SamplingConfig(max_new_tokens=1))).answer_tokens == 1


def test_a_check_sees_the_own_weights_whatever_was_run_before(
    tiny_folders: dict[str, Path], media_files: dict[str, Path]
) -> None:
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    folder = str(tiny_folders["qwen3_vl_moe"])
    engine = Engine(load_checkpoint(folder, "cpu", "fp32"), weight_pool_bytes=1)
    before = engine.check_fp16(request)
    engine.answer(request, settings("precision.all=int4"))
    assert engine.check_fp16(request) == before
