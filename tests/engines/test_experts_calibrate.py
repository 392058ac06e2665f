"""Calibration: the search against brute force, and what is measured, kept and used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engines.checkpoint import Checkpoint, load_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.experts import calibration, describe_methods
from engines.experts.calibrate import Trials, calibrate
from engines.experts.calibration import Calibration
from engines.experts.frontier import best_of, frontier, spread
from engines.experts.modality import ModalityThresholds
from engines.results import RunRequest

MODALITY = CompressionConfig.full().with_settings(["experts.method=modality"])


def rising(steps: int, most: int, seed: int) -> list[int]:
    drawn = torch.randint(0, most, (steps,), generator=torch.Generator().manual_seed(seed))
    return drawn.sort().values.tolist()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("target", [0.01, 0.3, 0.6])
def test_the_frontier_equals_brute_force(seed: int, target: float) -> None:
    visual, text = rising(9, 40 if seed % 2 else 5, seed), rising(7, 40, 100 + seed)
    enough = {(v, t) for v in range(9) for t in range(7) if visual[v] + text[t] >= target * 60}
    lowest = {(v, t) for v, t in enough if (v - 1, t) not in enough and (v, t - 1) not in enough}
    if not lowest:
        with pytest.raises(ValueError, match=f"target is {target}.*at most"):
            frontier(visual, text, 60, target)
        return
    walked = frontier(visual, text, 60, target)
    assert set(walked) == lowest
    assert len(walked) == len(lowest)

    def damage(point: tuple[int, int]) -> float:
        """Never less for a higher threshold."""
        return point[0] ** 1.5 + 2.1 * point[1]

    assert best_of(walked, damage)[1] == min(map(damage, enough))


def test_of_a_long_frontier_some_points_are_tried() -> None:
    points = [(place, 100 - place) for place in range(50)]
    tried = spread(points, 12)
    assert len(set(tried)) == 12
    assert (tried[0], tried[-1]) == (points[0], points[-1])
    assert spread(points[:3], 12) == points[:3]


@pytest.fixture(scope="module")
def checkpoint(tiny_folders: dict[str, Path]) -> Checkpoint:
    return load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")


@pytest.fixture
def requests(media_files: dict[str, Path]) -> list[RunRequest]:
    return [RunRequest("What?", (media_files[name],)) for name in ("wide", "tall")] + [RunRequest("Why?")]


@pytest.fixture
def found(checkpoint: Checkpoint, requests: list[RunRequest]) -> Calibration:
    return calibrate(checkpoint, requests, 0.5)


def test_importances_are_the_damage_of_one_expert_in_one_layer(
    checkpoint: Checkpoint, requests: list[RunRequest], found: Calibration
) -> None:
    """Against transformers' own forward pass with the router's top-k of one layer set to 1."""
    from engines.media import load_all
    from engines.prompt import build_prompt

    model, damages = checkpoint.model, []
    media = [load_all(one.media, limits=one.limits, sampling=one.frames) for one in requests]
    prompts = [
        build_prompt(one, found, checkpoint.processor, checkpoint.device)
        for one, found in zip(requests, media, strict=True)
    ]

    def distributions() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [model(**p.inputs, logits_to_keep=1).logits[0, -1].double().softmax(-1) for p in prompts]

    full = distributions()
    for layer in checkpoint.structure.moe_layers:
        layer.router.top_k = 1
        other = distributions()
        layer.router.top_k = 4
        damages.append(sum(float((a * (a / b).log()).sum()) for a, b in zip(full, other, strict=True)))
    mean = sum(damages) / len(damages)
    assert found.importances == pytest.approx([damage / mean for damage in damages], rel=1e-3)
    assert sum(found.importances) == pytest.approx(len(damages))


def test_the_thresholds_skip_the_target_and_are_the_best_tried(found: Calibration) -> None:
    assert found.skipped == pytest.approx(0.5, abs=0.03)
    assert found.divergence >= 0
    assert found.prompts == 3
    for value in found.options["modality"].values():
        assert value == round(value, 3)


def test_damage_is_the_mean_divergence(checkpoint: Checkpoint, requests: list[RunRequest]) -> None:
    from engines.experts.calibrate import _prepare

    with torch.inference_mode():
        trials = Trials(checkpoint, [_prepare(checkpoint, request) for request in requests])
        assert trials.damage(ModalityThresholds(0.0, 0.0)) == (0.0, 0.0)
        divergence, skipped = trials.damage(ModalityThresholds(1.0, 1.0))
    assert divergence > 0
    assert skipped == 0.75


def test_it_is_kept_and_used_from_then_on(
    checkpoint: Checkpoint, found: Calibration, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv(calibration.CACHE_VARIABLE, str(tmp_path))
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    before = Engine(checkpoint)
    result = before.answer(request, MODALITY)
    assert result.expert_report is not None
    assert result.expert_report.calibrated is False
    assert "not calibrated" in result.warnings[0]
    assert any("Not calibrated" in item.detail for item in before.capabilities().skipping)

    assert found.save() == tmp_path / "experts" / f"{checkpoint.digest}.json"
    assert calibration.load(checkpoint.digest, 3) == found
    engine = Engine(checkpoint)
    assert engine.capabilities().calibration == found
    assert any("Calibrated on 3 prompts" in item.detail for item in engine.capabilities().skipping)
    defaults = {p[0]: p[1] for m in describe_methods(found) if m.name == "modality" for p in m.parameters}
    assert defaults == {**found.options["modality"], "keep_best": True}
    result = engine.answer(request, MODALITY)
    assert result.expert_report is not None
    assert result.expert_report.calibrated is True
    assert result.warnings == ()
    explicit = [f"experts.options.{name}={value}" for name, value in found.options["modality"].items()]
    again = engine.answer(request, MODALITY.with_settings(explicit)).expert_report
    assert again == result.expert_report
    off = ["experts.options.visual_threshold=0", "experts.options.text_threshold=0"]
    report = engine.answer(request, MODALITY.with_settings(off)).expert_report
    assert report is not None
    assert report.skipped_share == 0, "an option that is given wins"


@pytest.mark.parametrize("content", ["{", "[]", '{"digest": "x"}', "importances", "layers", "format"])
def test_a_file_that_cannot_be_used_is_said_in_a_sentence(
    found: Calibration, content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(calibration.CACHE_VARIABLE, str(tmp_path))
    path = found.save()
    assert calibration.load("another", 3) is None
    values = json.loads(path.read_text())
    if content in ("importances", "format"):
        values[content] = {"importances": [1.0, float("nan"), 1.0], "format": 99}[content]
        path.write_text(json.dumps(values))
    elif content != "layers":
        path.write_text(content)
    with pytest.raises(ValueError, match=r"The expert calibration .* cannot be used .*; delete it or run launch\.py"):
        calibration.load(found.digest, 4 if content == "layers" else 3)


def test_what_cannot_be_calibrated(
    checkpoint: Checkpoint, requests: list[RunRequest], engines: dict[str, Engine]
) -> None:
    with pytest.raises(ValueError, match=r"The target is 0\.9; .* at most 0\.75"):
        calibrate(checkpoint, requests[:1], 0.9)
    with pytest.raises(ValueError, match="no prompt"):
        calibrate(checkpoint, [], 0.5)
    with pytest.raises(ValueError, match="dense"):
        calibrate(engines["qwen3_vl"].checkpoint, requests, 0.5)


def test_the_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(calibration.CACHE_VARIABLE)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert calibration.cache_folder() == Path("/cache/qwen-vl-moe-workbench")
    monkeypatch.setattr("sys.platform", "darwin")
    assert calibration.cache_folder().parts[-3:] == ("Library", "Caches", "qwen-vl-moe-workbench")
