"""The cross-modal top-k mask against a loop over heads, queries and keys, and inside real models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engines.attention import stage as stage_file
from engines.attention.stage import AttentionStage
from engines.config import AttentionConfig, CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import EngineError, RunRequest, RunResult, TokenReady
from tests.checkpoints import FAMILIES
from tests.engines.test_off_is_identical import capture_logits, make_request

ON = "attention.cross_modal=true"


def naive(query: Tensor, key: Tensor, value: Tensor, visual: list[bool], ks: dict[bool, int]) -> tuple[Tensor, Any]:
    """(queries, heads, size) and the pairs kept by (text, visual) queries: every head, query and key in a loop."""
    heads, queries, size = query.shape
    keys = key.shape[1]
    output, kept = torch.zeros(queries, heads, size), [0, 0]
    for head in range(heads):
        shared = head // (heads // key.shape[0])
        for row in range(queries):
            place = keys - queries + row
            score = {column: float(query[head, row] @ key[shared, column]) for column in range(place + 1)}
            own = [column for column in score if visual[column] == visual[place]]
            other = [column for column in score if visual[column] != visual[place]]
            if ks[visual[place]]:
                other = sorted(other, key=lambda column: (-score[column], column))[: ks[visual[place]]]
            kept[visual[place]] += len(other)
            weights = {column: math.exp(score[column] / math.sqrt(size)) for column in (*own, *other)}
            for column, weight in weights.items():
                output[row, head] += weight / sum(weights.values()) * value[shared, column]
    return output, kept


def stage_of(text_top_k: int, visual_top_k: int) -> AttentionStage:
    return AttentionStage(SimpleNamespace(), AttentionConfig(True, text_top_k, visual_top_k))  # type: ignore[arg-type]


MODULE = SimpleNamespace(layer_idx=0, num_key_value_groups=2, is_causal=True)
VISUAL = [False, False, *[True] * 7, False, *[True] * 5, False, False, False]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("text", "visual"), [(3, 2), (1, 1), (0, 2), (3, 0), (12, 24), (5, 3)])
@pytest.mark.parametrize("block_bytes", [1, 64 << 20])
def test_output_and_pairs_equal_the_loop(
    monkeypatch: pytest.MonkeyPatch, ties: bool, text: int, visual: int, block_bytes: int
) -> None:
    """Prefill in one block and in many, then two decode steps."""
    monkeypatch.setattr(stage_file, "_BLOCK_BYTES", block_bytes)
    generator = torch.Generator().manual_seed(text * 31 + visual)
    length, steps = len(VISUAL), 2
    query, key, value = (torch.randn(heads, length + steps, 8, generator=generator) for heads in (4, 2, 2))
    if ties:  # whole numbers: products are exact, and many of them are equal
        query, key = query.round(), key.round()
    stage = stage_of(text, visual)
    attend = stage._wrap(sdpa_attention_forward, sdpa_attention_forward)
    stage.begin(torch.tensor(VISUAL))
    flags, ks, total = [*VISUAL, *[False] * steps], {False: text, True: visual}, torch.zeros(2)
    for first, last in ((0, length), (length, length + 1), (length + 1, length + 2)):
        now = attend(MODULE, query[None, :, first:last], key[None, :, :last], value[None, :, :last], None)[0]
        expected, kept = naive(query[:, first:last], key[:, :last], value[:, :last], flags, ks)
        torch.testing.assert_close(now[0], expected, rtol=1e-5, atol=1e-5)
        total += torch.tensor(kept)
    report = stage.report()
    assert report is not None
    assert [report.text.kept, report.visual.kept] == total.tolist()
    everything = naive(query, key, value, flags, {False: 0, True: 0})[1]
    assert [report.text.total, report.visual.total] == everything


def test_a_given_mask_is_respected() -> None:
    """Kernels that take an additive mask hand one over; what it hides is no candidate."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, heads, len(VISUAL), 8, generator=generator) for heads in (4, 2, 2))
    additive = torch.full((len(VISUAL), len(VISUAL)), torch.finfo(torch.float32).min).triu(1)[None, None]
    outputs = []
    for mask in (None, additive, additive == 0):
        stage = stage_of(2, 2)
        stage.begin(torch.tensor(VISUAL))
        attend = stage._wrap(sdpa_attention_forward, sdpa_attention_forward)
        outputs.append(attend(MODULE, query, key, value, mask)[0])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


# ---- inside the models ----


def config_of(*assignments: str) -> CompressionConfig:
    return CompressionConfig.full().with_settings([ON, *assignments])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ks", [(256, 256), (0, 256), (0, 0)])
def test_keeping_every_key_is_the_full_model(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, ks: tuple[int, int]
) -> None:
    request = make_request(media_files, ["wide", "clip"])
    logits, tokens = capture_logits(engines[family], request, CompressionConfig.full())
    neutral = config_of(f"attention.text_top_k={ks[0]}", f"attention.visual_top_k={ks[1]}")
    same, same_tokens = capture_logits(engines[family], request, neutral)
    assert torch.equal(same, logits)
    assert same_tokens == tokens


def test_a_prompt_without_media_is_the_full_model(moe: Engine) -> None:
    request = make_request({}, [])
    logits, _ = capture_logits(moe, request, CompressionConfig.full())
    assert torch.equal(capture_logits(moe, request, config_of())[0], logits)
    report = moe.answer(request, config_of()).attention_report
    assert report is not None
    assert (report.text.share, report.visual.share) == (None, None)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Which rows were visual, of every prompt that is run."""
    begin: Callable[..., None] = AttentionStage.begin
    found: list[list[bool]] = []

    def recording(self: AttentionStage, visual: Tensor) -> None:
        found.append(visual.tolist())
        begin(self, visual)

    monkeypatch.setattr(AttentionStage, "begin", recording)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_few_keys_change_the_logits_and_are_counted(
    engines: dict[str, Engine], media_files: dict[str, Path], layouts: list[list[bool]], family: str
) -> None:
    engine = engines[family]
    request = make_request(media_files, ["wide", "clip", "tall"], tokens=5)
    before = capture_logits(engine, request, CompressionConfig.full())[0]
    config = config_of("attention.text_top_k=2", "attention.visual_top_k=3")
    logits, _ = capture_logits(engine, request, config)
    assert not torch.equal(logits, before)
    result = engine.answer(request, config)
    assert_counts(engine, result, layouts[-1])
    (prefill,) = result.trace.named("prefill")
    assert 0 < prefill.attributes["visual_keys_kept"] < 0.5
    assert torch.equal(capture_logits(engine, request, CompressionConfig.full())[0], before)
    assert engine.answer(request, CompressionConfig.full()).attention_report is None


def assert_counts(engine: Engine, result: RunResult, layout: list[bool]) -> None:
    """Every query kept its top-k, or as many as there were; counted by hand from the prompt's layout."""
    structure = engine.checkpoint.structure
    report, config = result.attention_report, result.config.attention
    assert report is not None
    layers, heads = len(structure.attention_layers), structure.text_config.num_attention_heads
    flags = [*layout, *[False] * (len(result.tokens) - 1)]
    for visual, pairs, top_k in ((False, report.text, config.text_top_k), (True, report.visual, config.visual_top_k)):
        seen = [sum(flag != visual for flag in flags[:place]) for place, own in enumerate(flags) if own == visual]
        assert pairs.total == sum(seen) * layers * heads
        assert pairs.kept == sum(min(top_k, count) for count in seen) * layers * heads
        assert pairs.share == pairs.kept / pairs.total
        name = "visual" if visual else "text"
        assert result.to_dict()["attention_report"][name]["share"] == pairs.share


def test_it_goes_with_pruning_before_and_inside_the_language_model(moe: Engine, media_files: dict[str, Path]) -> None:
    request = make_request(media_files, ["wide", "clip"], tokens=4)
    for method in ("random", "attention"):
        result = moe.answer(
            request,
            config_of(f"pruning.method={method}", "pruning.keep_ratio=0.4", "attention.text_top_k=3"),
        )
        assert result.attention_report is not None
        assert result.attention_report.text.share is not None
        assert result.attention_report.text.share < 0.5


def test_the_slow_kernel_gives_the_same(moe: Engine, media_files: dict[str, Path]) -> None:
    request = make_request(media_files, ["wide", "clip"])
    logits, tokens = capture_logits(moe, request, config_of("attention.text_top_k=2"))
    moe.checkpoint.model.set_attn_implementation("eager")
    try:
        slow, slow_tokens = capture_logits(moe, request, config_of("attention.text_top_k=2"))
        full, _ = capture_logits(moe, request, CompressionConfig.full())
        neutral, _ = capture_logits(moe, request, config_of("attention.text_top_k=0", "attention.visual_top_k=256"))
    finally:
        moe.checkpoint.model.set_attn_implementation("sdpa")
    torch.testing.assert_close(slow, logits, rtol=2e-4, atol=2e-4)
    assert slow_tokens == tokens
    assert torch.equal(full, neutral)


def test_nothing_is_left_behind(moe: Engine, media_files: dict[str, Path]) -> None:
    """Also by a run that is closed in its middle."""
    functions, masks = set(ALL_ATTENTION_FUNCTIONS), set(ALL_MASK_ATTENTION_FUNCTIONS)
    media = (media_files["wide"],)
    events = moe.run(RunRequest("What?", media, sampling=SamplingConfig(max_new_tokens=9)), config_of())
    for event in events:
        if isinstance(event, TokenReady) and event.index == 2:
            assert moe.checkpoint.structure.text_config._attn_implementation != "sdpa"
            break
    events.close()
    assert moe.checkpoint.structure.text_config._attn_implementation == "sdpa"
    assert moe.checkpoint.structure.config.vision_config._attn_implementation == "sdpa"
    assert (set(ALL_ATTENTION_FUNCTIONS), set(ALL_MASK_ATTENTION_FUNCTIONS)) == (functions, masks)


def test_a_cache_that_changed_meanwhile_is_refused_in_words() -> None:
    stage = stage_of(1, 1)
    stage.begin(torch.tensor(VISUAL))
    attend = stage._wrap(sdpa_attention_forward, sdpa_attention_forward)
    tensors = [torch.zeros(1, heads, len(VISUAL) - 3, 8) for heads in (4, 2, 2)]
    with pytest.raises(EngineError, match="another setting changed the cache meanwhile"):
        attend(MODULE, *tensors, None)


def test_bad_values_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"attention.text_top_k is -1; it must be a whole number at least 0"):
        AttentionConfig(text_top_k=-1)
    assert not AttentionConfig(True, 0, 0).active
