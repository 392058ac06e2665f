"""The dual threshold through the engine: what it protects stays, and where it protects everything it is off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.config import CompressionConfig
from engines.engine import Engine
from engines.pruning.spans import budget, cut_spans
from engines.results import EngineError
from engines.structure import Structure
from tests.engines.test_off_is_identical import capture_logits, make_request

METHOD = ["pruning.method=dual_threshold", "pruning.keep_ratio=0.1"]


def config_of(*options: str) -> CompressionConfig:
    return CompressionConfig.full().with_settings([*METHOD, *(f"pruning.options.{option}" for option in options)])


@pytest.mark.parametrize("options", [["entropy_before=0"], ["task_before=0"], ["layer=2", "entropy_late=0"]])
def test_a_threshold_of_0_is_the_full_model(moe: Engine, media_files: dict[str, Path], options: list[str]) -> None:
    request = make_request(media_files, ["wide", "clip", "tall"])
    logits, tokens = capture_logits(moe, request, CompressionConfig.full())
    same, same_tokens = capture_logits(moe, request, config_of(*options))
    assert torch.equal(same, logits)
    assert same_tokens == tokens
    report = moe.answer(request, config_of(*options)).prune_report
    assert (report.asked_keep_ratio, report.achieved_keep_ratio) == (0.1, 1.0)
    assert "its thresholds protect them" in report.notes[-1]


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("scope", ["frame", "item", "prompt"])
@pytest.mark.parametrize("least", [0.3, 0.9, 1.0])
def test_protected_tokens_stay_and_the_rest_fills_the_budget(
    moe: Engine, media_files: dict[str, Path], layer: int, scope: str, least: float
) -> None:
    """A score of 0 and above is protected. Also with a floor that makes groups give tokens to others."""
    names = ("entropy_before", "task_before") if layer == 0 else ("entropy_late", "task_late")
    config = config_of(f"layer={layer}", *(f"{name}={least}" for name in names))
    config = config.with_settings([f"pruning.scope={scope}", "pruning.min_tokens=4"])
    result = moe.answer(make_request(media_files, ["wide", "clip", "tall"], tokens=3), config)
    report = result.prune_report
    assert report.layer == (layer or None)
    protected = 0
    for frame in report.frames:
        assert frame.scores is not None
        assert sum(frame.kept) >= 4
        protected += sum(score >= 0 for score in frame.scores)
        assert all(kept for score, kept in zip(frame.scores, frame.kept, strict=True) if score >= 0)
    sizes = [(frame.item, len(frame.kept)) for frame in report.frames]
    spans = [[tokens for _, tokens in sizes[span.start : span.stop]] for span in cut_spans(sizes, scope)]
    allowed = sum(budget(sum(span), 0.1, 4 * len(span)) for span in spans)
    assert report.tokens_after >= max(protected, allowed)
    assert [f"keeps {report.tokens_after - allowed} visual tokens more" in note for note in report.notes] == (
        [True] if report.tokens_after > allowed else []
    )


def test_a_layer_that_cannot_be_is_refused_in_words(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Structure, "inner_layers", ())
    moe.check(config_of("layer=0"))
    with pytest.raises(EngineError, match=r"pruning.options.layer=2 is not available with this checkpoint"):
        moe.check(config_of("layer=2"))
