"""The prefix cache in runs: only new tokens are prefilled, answers stay the same, and nothing crosses a tenant."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engines.cache import content
from engines.cache.plan import BY_MEDIA
from engines.cache.prefix import LEVEL
from engines.cache.scope import Scope
from engines.checkpoint import load_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.pruning import METHODS, Visual, create
from engines.pruning.base import Group
from engines.reports import CacheStats
from engines.results import EngineError, RunRequest, RunResult, Turn
from tests.engines.test_off_is_identical import capture_logits

CACHED = CompressionConfig.full().with_settings(["cache.prefix=true"])
HALF = ["pruning.keep_ratio=0.5"]


def ask(
    engine: Engine, config: CompressionConfig, *paths: Path, question: str = "What colour?", **more: Any
) -> RunResult:
    sampling = SamplingConfig(max_new_tokens=more.pop("tokens", 6))
    return engine.answer(RunRequest(question, paths, sampling=sampling, warm_up=False, **more), config)


def of_run(result: RunResult) -> CacheStats:
    return result.cache_stats.run[LEVEL]


def prefilled(result: RunResult) -> int:
    (span,) = result.trace.named("prefill")
    return int(span.attributes["tokens"])


def without(config: CompressionConfig) -> CompressionConfig:
    return config.with_settings(["cache.prefix=false"])


@pytest.fixture(autouse=True)
def _forget(moe: Engine) -> Iterator[None]:
    yield
    moe.clear_caches()


@pytest.mark.parametrize("names", [["wide"], ["clip"], ["wide", "tall"], ["tall", "clip", "wide"]])
@pytest.mark.parametrize("settings", [[], HALF, [*HALF, "pruning.merge=true", "pruning.scope=prompt"]])
def test_another_question_runs_its_own_tokens_alone(
    moe: Engine, media_files: dict[str, Path], names: list[str], settings: list[str]
) -> None:
    paths, config = [media_files[name] for name in names], CACHED.with_settings(settings)
    first = ask(moe, config, *paths)
    assert of_run(first).hits == 0
    second = ask(moe, config, *paths, question="And what is the largest thing to be seen here?")
    assert not {"vision encode", "encoder-cache lookup", "prune"} & {span.name for span in second.trace.spans}
    assert prefilled(second) == second.prompt_tokens - of_run(second).tokens < 40
    assert of_run(second).saved_s > 0
    assert of_run(second).bytes > 0
    plain = ask(moe, without(config), *paths, question="And what is the largest thing to be seen here?")
    assert second.tokens == plain.tokens
    assert second.prune_report == plain.prune_report
    assert second.visual_tokens == plain.visual_tokens
    assert second.memory.kv_cache_bytes == plain.memory.kv_cache_bytes


def test_a_chat_of_five_turns_about_a_clip(moe: Engine, media_files: dict[str, Path]) -> None:
    """A turn prefills what was not there when the one before it ended: its template, question, and last token."""
    history: tuple[Turn, ...] = ()
    before, clip = 0, media_files["clip"]
    for turn in range(5):
        question = f"Question number {turn}: what moves?"
        result = ask(moe, CACHED, clip, question=question, history=history)
        assert result.tokens == ask(moe, without(CACHED), clip, question=question, history=history).tokens
        assert of_run(result).tokens == before
        assert prefilled(result) == result.prompt_tokens - before
        again = moe.checkpoint.tokenizer(result.answer, add_special_tokens=False)["input_ids"]
        ran = list(result.tokens[:-1])
        # Text that the tokenizer splits otherwise than the model wrote it is new as well.
        same = next((at for at, pair in enumerate(zip(again, ran, strict=False)) if pair[0] != pair[1]), None)
        before = result.prompt_tokens + (len(ran) if same is None and len(again) >= len(ran) else 0)
        history = (*history, Turn(question, result.answer))


def test_logits_are_those_of_the_whole_prompt(moe: Engine, media_files: dict[str, Path]) -> None:
    """Up to rounding: sums in two parts have another order."""
    ask(moe, CACHED, media_files["wide"], question="Something else")
    request = RunRequest("What colour?", (media_files["wide"],), sampling=SamplingConfig(6), warm_up=False)
    whole, _ = capture_logits(moe, request, CompressionConfig.full())
    cached, _ = capture_logits(moe, request, CACHED)
    torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-4)


def test_the_same_request_runs_one_token(moe: Engine, media_files: dict[str, Path]) -> None:
    for names in ([], ["wide"]):
        paths = [media_files[name] for name in names]
        first, second = ask(moe, CACHED, *paths), ask(moe, CACHED, *paths)
        assert prefilled(second) == 1
        assert second.tokens == first.tokens


def test_what_is_cached_is_not_warmed_up_for(moe: Engine, media_files: dict[str, Path]) -> None:
    """Else the whole prompt would be run untimed for every question of another length."""
    moe._warm.clear()
    ran: list[int] = []
    layer = moe.checkpoint.structure.language_model.layers[0]
    handle = layer.register_forward_pre_hook(lambda _, inputs: ran.append(inputs[0].shape[1]))
    before = moe.cache_totals()[LEVEL]
    for question in ("What colour?", "And what is the largest thing here?"):
        ran.clear()
        request = RunRequest(question, (media_files["wide"],), sampling=SamplingConfig(1))
        result = moe.answer(request, CACHED)
        assert result.warnings == ()
    handle.remove()
    assert ran == [prefilled(result)]
    assert moe.cache_totals()[LEVEL].queries - before.queries < 2 * result.prompt_tokens, "each prompt counts once"


def test_the_content_counts_and_not_the_name(moe: Engine, media_files: dict[str, Path], tmp_path: Path) -> None:
    copy, other_format, changed = tmp_path / "other name.png", tmp_path / "a.bmp", tmp_path / "b.png"
    shutil.copy(media_files["wide"], copy)
    with Image.open(media_files["wide"]) as image:
        image.save(other_format)
        pixels = np.array(image)
    pixels[17, 23, 1] ^= 1
    Image.fromarray(pixels).save(changed)
    pruned = CACHED.with_settings(HALF)
    ask(moe, pruned, media_files["wide"])
    for path in (copy, other_format):
        result = ask(moe, pruned, path)
        assert prefilled(result) == 1
        assert [frame.name for frame in result.prune_report.frames] == [path.name]
    for config in (pruned, CACHED):
        ask(moe, config, media_files["wide"])
        before_the_picture = 4
        assert of_run(ask(moe, config, changed)).hits <= before_the_picture


@pytest.mark.parametrize(
    "setting",
    [
        "precision.language=bf16", "precision.vision=int8", "precision.experts=int8", "experts.top_k=2",
        "experts.method=modality", "pruning.keep_ratio=0.75", "pruning.method=random", "pruning.merge=true",
        "pruning.options.balance=0.9", "vision.keep_ratio=0.5",
    ],
)  # fmt: skip
def test_no_stale_hit_after_a_setting_changed(moe: Engine, media_files: dict[str, Path], setting: str) -> None:
    config = CACHED.with_settings(HALF)
    ask(moe, config, media_files["wide"])
    changed = ask(moe, config.with_settings([setting]), media_files["wide"])
    assert of_run(changed).queries > 0
    assert of_run(changed).hits == 0
    assert changed.tokens == ask(moe, without(config.with_settings([setting])), media_files["wide"]).tokens
    assert prefilled(ask(moe, config, media_files["wide"])) == 1


def test_the_seed_is_part_of_what_pruning_keeps(moe: Engine, media_files: dict[str, Path]) -> None:
    config = CACHED.with_settings([*HALF, "pruning.method=random"])
    for seed in (1, 2):
        request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(6, seed=seed), warm_up=False)
        result = moe.answer(request, config)
        assert result.prune_report == moe.answer(request, without(config)).prune_report


def test_what_is_chosen_for_the_question_is_chosen_anew(moe: Engine, media_files: dict[str, Path]) -> None:
    config = CACHED.with_settings([*HALF, "pruning.method=relevance", "pruning.options.theta=1.0"])
    for question in ("What colour?", "How many blocks?", "What colour?"):
        result = ask(moe, config, media_files["wide"], question=question)
        plain = ask(moe, without(config), media_files["wide"], question=question)
        assert result.tokens == plain.tokens
        assert result.prune_report == plain.prune_report
    assert prefilled(result) == 1, "the same question keeps the same tokens"


@pytest.mark.parametrize("name", BY_MEDIA)
def test_methods_said_to_look_at_the_media_alone_do(name: str) -> None:
    torch.manual_seed(0)
    embeddings = torch.randn(24, 8)
    groups = (Group(0, 3, 4), Group(12, 3, 4)) if name == "temporal" else (Group(0, 4, 6),)
    method = create(name, {})
    assert METHODS[name]().asked_layer is None
    choices = [
        method.select(Visual(embeddings, groups, 7, text), 15).kept.tolist() for text in (None, torch.randn(5, 8))
    ]
    assert choices[0] == choices[1]


@pytest.mark.parametrize(
    "setting", ["kv.bits=8", "kv.visual_keep_ratio=0.5", "kv.text_window=8", "kv.importance=random"]
)
def test_kv_compression_starts_from_what_was_cached(moe: Engine, media_files: dict[str, Path], setting: str) -> None:
    """Plain keys and values are kept, so that runs with and without compression share them."""
    settings = [setting, "kv.visual_keep_ratio=0.5"] if "importance" in setting else [setting]
    config = CACHED.with_settings(settings)
    ask(moe, CACHED, media_files["wide"], question="Something else")
    for question in ("What colour is the large block?", "What colour?", "What colour?"):
        result = ask(moe, config, media_files["wide"], question=question, tokens=12)
        assert of_run(result).hits > 0
        assert result.tokens == ask(moe, without(config), media_files["wide"], question=question, tokens=12).tokens
    history = (Turn("What colour?", result.answer),)
    turn = ask(moe, config, media_files["wide"], question="Why?", history=history)
    assert of_run(turn).tokens <= result.prompt_tokens, "an answer made from compressed keys is not kept"


@pytest.mark.parametrize(
    "setting",
    [
        "experts.method=entropy", "experts.method=alignment", "experts.method=random", "attention.cross_modal=true",
        "pruning.method=attention",
    ],
)  # fmt: skip
def test_what_depends_on_the_whole_prompt_rules_it_out_and_says_so(
    moe: Engine, media_files: dict[str, Path], setting: str
) -> None:
    config = CACHED.with_settings([*HALF, setting])
    for _ in range(2):
        result = ask(moe, config, media_files["wide"])
        assert of_run(result) == CacheStats()
        assert any("prefix cache was not used" in warning for warning in result.warnings)
    assert result.tokens == ask(moe, without(config), media_files["wide"]).tokens


def test_a_checkpoint_with_linear_attention_says_why_not(engines: dict[str, Engine]) -> None:
    with pytest.raises(EngineError, match="linear or windowed attention"):
        engines["qwen3_5_moe"].check(CACHED)
    offered = {item.name: item for item in engines["qwen3_5_moe"].capabilities().others}
    assert not offered["prefix cache"].available
    assert all("prefix cache" in {item.name for item in engine.capabilities().others} for engine in engines.values())


def test_a_dense_checkpoint_has_one_too(engines: dict[str, Engine], media_files: dict[str, Path]) -> None:
    engine = engines["qwen3_vl"]
    first, second = (ask(engine, CACHED, media_files["clip"]) for _ in range(2))
    assert prefilled(second) == 1
    assert second.tokens == first.tokens
    engine.clear_caches()


def test_off_neither_reads_nor_writes(moe: Engine, media_files: dict[str, Path]) -> None:
    before = moe.cache_totals()[LEVEL]
    ask(moe, CompressionConfig.full(), media_files["wide"])
    after = moe.cache_totals()[LEVEL]
    assert (after.queries, after.entries) == (before.queries, 0)


def test_a_cancelled_run_leaves_nothing_half_done(moe: Engine, media_files: dict[str, Path]) -> None:
    import threading

    cancel = threading.Event()
    layer = moe.checkpoint.structure.language_model.layers[0]
    handle = layer.register_forward_hook(lambda *_: cancel.set())
    result = ask(moe, CACHED, media_files["wide"], cancel=cancel)
    handle.remove()
    assert result.finish_reason == "cancelled"
    assert moe.cache_totals()[LEVEL].entries == 0
    assert not any(block.users for block in moe._prefixes._order)


def test_closing_a_run_lets_go_of_its_blocks(moe: Engine, media_files: dict[str, Path]) -> None:
    ask(moe, CACHED, media_files["wide"])
    request = RunRequest("What colour?", (media_files["wide"],), warm_up=False)
    events = moe.run(request, CACHED)
    for event in events:
        if getattr(event, "index", None) == 0:
            assert any(block.users for block in moe._prefixes._order)
            break
    events.close()
    assert not any(block.users for block in moe._prefixes._order)


def test_a_run_is_charged_for_the_evictions_that_it_causes(
    tiny_folders: dict[str, Path], media_files: dict[str, Path]
) -> None:
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    engine = Engine(checkpoint, encoder_cache_bytes=48 * 64 * 4 * 3, prefix_cache_bytes=200_000)
    evicted = {LEVEL: 0, "encoder": 0}
    for name in ("wide", "tall", "clip", "wide"):
        result = ask(engine, CACHED.with_settings(["cache.encoder=true", "cache.scope=user"]), media_files[name])
        for level, stats in engine.cache_totals().items():
            evicted[level] += result.cache_stats.run[level].evictions
            assert result.cache_stats.run[level].scopes["user"].evictions == result.cache_stats.run[level].evictions
            assert stats.evictions == stats.scopes["user"].evictions == evicted[level]
            assert stats.entries == stats.scopes["user"].entries
            assert stats.bytes <= stats.budget_bytes
    assert min(evicted.values()) > 0


# ---- tenants ----

BOTH = CACHED.with_settings(["cache.encoder=true", *HALF])


def hits(result: RunResult) -> int:
    return sum(stats.hits for stats in result.cache_stats.run.values())


@pytest.mark.parametrize("level", ["session", "resource", "user", "tenant", "global"])
def test_nothing_is_found_across_tenants(moe: Engine, media_files: dict[str, Path], level: str) -> None:
    """Whatever a request says of itself beside its tenant, which is not its to say."""
    victim = Scope("a", "user", "session", "resource")
    config = BOTH.with_settings([f"cache.scope={level}"])
    ask(moe, config, media_files["wide"], scope=victim)
    for forged in (
        Scope("b", "user", "session", "resource"),
        Scope("b", "a", "a", "a"),
        Scope('b","user', "session", "resource"),
        Scope("", "user", "session", "resource"),
    ):
        for other in ("session", "resource", "user", "tenant", "global"):
            result = ask(moe, config.with_settings([f"cache.scope={other}"]), media_files["wide"], scope=forged)
            assert of_run(result).queries > 0
            if other == "session":  # the first of this tenant; later levels are new to it as well
                assert hits(result) == 0
        moe.clear_caches(tenant=forged.tenant)
    assert hits(ask(moe, config, media_files["wide"], scope=victim)) > 0


def test_clearing_is_for_ones_own(moe: Engine, media_files: dict[str, Path]) -> None:
    for tenant in ("a", "b"):
        ask(moe, BOTH, media_files["wide"], scope=Scope(tenant))
    held = moe.cache_totals()
    moe.clear_caches(LEVEL, "b")
    after = moe.cache_totals()
    assert after[LEVEL].bytes * 2 == held[LEVEL].bytes
    assert after["encoder"].entries == held["encoder"].entries == 2
    moe.clear_caches(tenant="b")
    assert moe.cache_totals()["encoder"].entries == 1
    assert prefilled(ask(moe, BOTH, media_files["wide"], scope=Scope("a"))) == 1


def test_everyone_shares_the_media_part_of_bundled_samples(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    shutil.copy(media_files["wide"], samples)
    monkeypatch.setattr(content, "SAMPLES", samples)
    content._bundled.cache_clear()
    config = CACHED.with_settings(["cache.scope=global"])
    first = ask(moe, config, media_files["wide"], scope=Scope("a"))
    second = ask(moe, config, media_files["wide"], scope=Scope("b"))
    assert 0 < of_run(second).tokens < second.prompt_tokens - 5, "the media, and not the question"
    assert second.tokens == first.tokens
    private = ask(moe, config, media_files["tall"], scope=Scope("a"))
    assert any("bundled samples alone" in warning for warning in private.warnings)
    assert of_run(ask(moe, config, media_files["tall"], scope=Scope("b"))).hits == 0
    content._bundled.cache_clear()


def test_a_level_without_its_name_caches_nothing_and_says_so(moe: Engine, media_files: dict[str, Path]) -> None:
    config = BOTH.with_settings(["cache.scope=session"])
    for _ in range(2):
        result = ask(moe, config, media_files["wide"], scope=Scope("a", user="", session=""))
        assert hits(result) == 0
        assert any("the request names none" in warning for warning in result.warnings)
    assert all(stats.entries == 0 for stats in moe.cache_totals().values())
