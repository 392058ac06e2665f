"""Divergence along the full model's answer, against plain forward passes of transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from engines.compare import SideEvent
from engines.config import CompressionConfig, PruningConfig, SamplingConfig
from engines.divergence import measure, most_tokens
from engines.divergence_report import DivergenceReport
from engines.engine import Engine
from engines.results import EngineError, RunRequest, TokenReady
from tests.engines.test_pruned_decoding import build, masked_logits

TOKENS = 5
QUESTION = "What colour is the block?"


def request_of(*paths: Path, **changes: object) -> RunRequest:
    return RunRequest(QUESTION, paths, sampling=SamplingConfig(max_new_tokens=TOKENS), warm_up=False, **changes)


def report_of(steps: Iterator[SideEvent | DivergenceReport]) -> DivergenceReport:
    *_, last = steps
    assert isinstance(last, DivergenceReport)
    return last


def with_settings(*settings: str) -> CompressionConfig:
    return CompressionConfig.full().with_settings(settings)


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl", "qwen3_5_moe"])
def test_a_model_does_not_diverge_from_itself(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str
) -> None:
    engine = engines[family]
    request = request_of(media_files["wide"], media_files["clip"])
    report = report_of(engine.divergence(request, CompressionConfig.full()))
    assert report.first_difference is None
    assert [token.kl for token in report.tokens] == [0.0] * len(report.tokens)
    assert (report.agreement.mean_kl, report.agreement.same_top) == (0.0, 1.0)
    assert tuple(token.token for token in report.tokens) == engine.answer(request, CompressionConfig.full()).tokens
    assert report.attention is not None
    assert all(report.attention.dropped_share(index) == 0 for index in range(len(report.tokens)))


def test_it_is_the_divergence_of_plain_forward_passes(moe: Engine, media_files: dict[str, Path]) -> None:
    paths = [media_files["wide"], media_files["clip"]]
    pruning = PruningConfig("uniform", 0.3)
    answer = moe.answer(request_of(*paths), CompressionConfig.full()).tokens
    report = report_of(
        moe.divergence(request_of(*paths), with_settings("pruning.method=uniform", "pruning.keep_ratio=0.3"), answer)
    )
    with torch.no_grad():
        whole, keep, _ = build(moe, paths, pruning)
        full = masked_logits(moe, whole, torch.ones_like(keep), list(answer))[:-1].double().log_softmax(-1)
        pruned = masked_logits(moe, whole, keep, list(answer))[:-1].double().log_softmax(-1)
    expected = (full.exp() * (full - pruned)).sum(-1)
    assert expected.max() > 0
    torch.testing.assert_close(
        torch.tensor([token.kl for token in report.tokens]).double(), expected, rtol=2e-3, atol=1e-7
    )
    for index, token in enumerate(report.tokens):
        assert token.token == answer[index]
        assert token.full_probability == pytest.approx(float(full[index][token.token].exp()), rel=1e-3)
        assert token.compressed_probability == pytest.approx(float(pruned[index][token.token].exp()), rel=1e-3)
        assert token.full_top[0].token == int(full[index].argmax())
        assert token.same_top == (int(full[index].argmax()) == int(pruned[index].argmax()))


def test_where_it_looked_is_the_attention_of_the_eager_kernel(moe: Engine, media_files: dict[str, Path]) -> None:
    paths = [media_files["wide"], media_files["tall"]]
    report = report_of(
        moe.divergence(request_of(*paths), with_settings("pruning.method=random", "pruning.keep_ratio=0.5"))
    )
    structure = moe.checkpoint.structure
    with torch.no_grad():
        whole, keep, _ = build(moe, paths, PruningConfig("random", 0.5))
        own = structure.text_config._attn_implementation
        structure.model.set_attn_implementation("eager")
        try:
            seen = structure.language_model(
                inputs_embeds=whole.embeddings,
                position_ids=torch.cat([torch.arange(whole.length).view(1, 1, -1), whole.positions]),
                cache=DynamicCache(config=structure.text_config),
                visual_pos_masks=whole.visual,
                deepstack_visual_embeds=list(whole.deepstack),
                output_attentions=True,
            ).attentions
        finally:
            structure.model.set_attn_implementation(own)
    received = torch.stack([layer[0, :, -1].mean(0) for layer in seen]).mean(0)[whole.visual[0]]
    attention = report.attention
    assert attention is not None
    np.testing.assert_allclose(attention.shares[0], (received / received.sum()).numpy(), rtol=1e-3)
    assert attention.visual_share[0] == pytest.approx(float(received.sum()), rel=1e-3)
    dropped = ~keep[whole.visual[0]]
    assert attention.dropped_share(0) == pytest.approx(float(received[dropped].sum() / received.sum()), rel=1e-3)
    cells = [cell for frame in attention.frames(0) for cell in frame.kept]
    assert cells == (~dropped).tolist()


def test_a_modality_that_was_dropped_is_dropped_whole(moe: Engine, media_files: dict[str, Path]) -> None:
    request = request_of(media_files["wide"], media_files["clip"])
    report = report_of(moe.divergence(request, with_settings("modality.image=false")))
    assert report.attention is not None
    for frame in report.attention.frames(0):
        assert set(frame.kept) == {frame.kind == "video"}


def test_what_the_cache_gave_up_counts_from_the_second_token_on(moe: Engine, media_files: dict[str, Path]) -> None:
    report = report_of(moe.divergence(request_of(media_files["wide"]), with_settings("kv.visual_keep_ratio=0.25")))
    assert report.attention is not None
    assert report.attention.dropped_share(0) == 0
    assert report.attention.dropped_share(1) > 0
    assert report.tokens[0].kl == pytest.approx(0, abs=1e-9)


def test_a_question_without_media_has_nothing_to_look_at(moe: Engine) -> None:
    report = report_of(moe.divergence(request_of(), with_settings("experts.top_k=1")))
    assert report.attention is None
    assert report.agreement.max_kl > 0
    assert report.to_dict()["tokens"][0]["visual_attention"] is None


def test_a_long_answer_is_cut_and_says_so(moe: Engine, media_files: dict[str, Path]) -> None:
    request = request_of(media_files["wide"])
    answer = moe.answer(request, CompressionConfig.full()).tokens
    assert len(answer) == TOKENS
    config = with_settings("pruning.keep_ratio=0.5")
    steps = measure(moe, request, config, answer=answer, most=3, text_of=str)
    cut = report_of(steps)
    assert (cut.cut_short, len(cut.tokens)) == (True, 3)
    whole = report_of(moe.divergence(request, config, answer))
    assert (whole.cut_short, len(whole.tokens)) == (False, TOKENS)
    assert [token.kl for token in whole.tokens[:3]] == [token.kl for token in cut.tokens]


def test_the_bound_on_an_answer_is_one_on_memory() -> None:
    assert most_tokens(150_000) * 150_000 * 4 <= 128 << 20
    assert most_tokens(10**12) == 1


@pytest.mark.parametrize("side", ["full", "compressed"])
def test_a_cancelled_one_has_no_report(moe: Engine, media_files: dict[str, Path], side: str) -> None:
    request = replace(request_of(media_files["wide"]), cancel=threading.Event())
    assert request.cancel is not None
    steps = []
    for step in moe.divergence(request, with_settings("pruning.keep_ratio=0.5")):
        steps.append(step)
        if isinstance(step, SideEvent) and step.side == side and isinstance(step.event, TokenReady):
            request.cancel.set()
    assert not any(isinstance(step, DivergenceReport) for step in steps)
    assert moe.answer(request_of(media_files["wide"]), CompressionConfig.full()).finish_reason != "cancelled"


def test_settings_that_cannot_be_are_refused(moe: Engine, media_files: dict[str, Path]) -> None:
    with pytest.raises((EngineError, ValueError), match="top_k"):
        list(moe.divergence(request_of(media_files["wide"]), with_settings("experts.top_k=64")))


def hooks(engine: Engine) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in engine.checkpoint.model.modules()]


def test_no_hook_is_left(moe: Engine, media_files: dict[str, Path]) -> None:
    request = request_of(media_files["wide"])
    before = moe.answer(request, CompressionConfig.full())
    standing = hooks(moe)
    list(moe.divergence(request, with_settings("pruning.keep_ratio=0.5", "precision.experts=int8")))
    assert hooks(moe) == standing
    assert moe.answer(request, CompressionConfig.full()).tokens == before.tokens
