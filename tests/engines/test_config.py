"""Settings: described once, checked always, the same in JSON, on the command line and in memory."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from engines.config import CompressionConfig, PrecisionConfig, PruningConfig, SamplingConfig


def test_default_is_full() -> None:
    assert CompressionConfig() == CompressionConfig.full()
    assert not CompressionConfig.full().pruning.active


def test_json_round_trip() -> None:
    config = CompressionConfig.full().with_settings(
        ["pruning.keep_ratio=0.25", "pruning.options.balance=0.3", "experts.top_k=2", "precision.experts=int8"]
    )
    assert CompressionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_precision_all_sets_every_part() -> None:
    assert CompressionConfig.full().with_settings(["precision.all=int8"]).precision == PrecisionConfig.all("int8")


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("pruning.keep_ratio=0", "must be a number above 0 and at most 1"),
        ("pruning.keep_ratio=1.5", "must be a number above 0 and at most 1"),
        ("pruning.keep_ratio=NaN", "must be a number above 0 and at most 1"),
        ("pruning.keep_ratio=half", "pruning.keep_ratio is 'half'"),
        ("pruning.keep_ratio=true", "pruning.keep_ratio is True"),
        ("pruning.scope=clip", "must be one of frame, item, prompt"),
        ("pruning.min_tokens=1.5", "must be a whole number at least 1 and at most 64"),
        ("experts.top_k=0", "must be a whole number at least 1"),
        ("precision.vision=int3", "must be one of native, fp32, bf16, fp16, int8, int4"),
        ("precision.group_size=48", "must be one of 32, 64, 128"),
        ("precision.compensation_rank=-1", "must be a whole number at least 0 and at most 64"),
        ("modality.image=1", "must be true or false"),
        ("cache.encoder=yes", "must be true or false"),
        ("pruning.ratio=0.5", "Unknown setting pruning.ratio; pruning has method, keep_ratio"),
        ("prune.keep_ratio=0.5", "Unknown group of settings 'prune'"),
        ("keep_ratio=0.5", "not of the form group.name=value"),
        ("pruning.keep_ratio", "not of the form group.name=value"),
        ("pruning.keep_ratio.deep=1", "names no setting"),
    ],
)
def test_bad_settings_say_what_is_allowed(assignment: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        CompressionConfig.full().with_settings([assignment])


def test_fingerprint_follows_the_settings_not_their_order() -> None:
    one = CompressionConfig.full().with_settings(["experts.top_k=2", "pruning.keep_ratio=0.5"])
    two = CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5", "experts.top_k=2"])
    assert one.fingerprint() == two.fingerprint()
    assert one.fingerprint() != CompressionConfig.full().fingerprint()


@pytest.mark.parametrize("section", [*CompressionConfig().to_dict(), "sampling"])
def test_every_setting_is_described(section: str) -> None:
    """Each has a label, one line of help and bounds or choices: the page is made from them."""
    instance = SamplingConfig() if section == "sampling" else getattr(CompressionConfig(), section)
    for item in dataclasses.fields(instance):
        if item.name == "options":
            continue
        assert item.metadata["label"]
        assert item.metadata["help"].endswith(".")
        if item.metadata["choices"] is None and str(item.type).startswith(("int", "float")):
            assert item.metadata["high"] is not None
            assert item.metadata["low"] is not None or item.metadata["above"] is not None


def test_made_by_hand_is_checked_too() -> None:
    with pytest.raises(ValueError, match="keep_ratio"):
        PruningConfig(keep_ratio=math.inf)
    with pytest.raises(ValueError, match="temperature"):
        SamplingConfig(temperature=-1.0)
