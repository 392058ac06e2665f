"""The encoder cache: the same content is encoded once, answers stay the same, and memory stays bounded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from engines.cache.encoder import LEVEL, EncoderCache, Features
from engines.checkpoint import load_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.reports import CacheStats
from engines.results import RunRequest, RunResult

CACHED = CompressionConfig.full().with_settings(["cache.encoder=true"])


def answer(engine: Engine, config: CompressionConfig, *paths: Path, question: str = "What colour?") -> RunResult:
    return engine.answer(RunRequest(question, paths, sampling=SamplingConfig(max_new_tokens=8)), config)


def of_run(result: RunResult) -> CacheStats:
    return result.cache_stats.run[LEVEL]


def test_second_run_hits_and_answers_the_same(moe: Engine, media_files: dict[str, Path]) -> None:
    first = answer(moe, CACHED, media_files["wide"])
    second = answer(moe, CACHED, media_files["wide"])
    assert (of_run(first).queries, of_run(first).hits) == (1, 0)
    assert (of_run(second).queries, of_run(second).hits) == (1, 1)
    assert of_run(second).saved_s > 0
    assert of_run(second).bytes > 0
    assert second.tokens == first.tokens == answer(moe, CompressionConfig.full(), media_files["wide"]).tokens
    assert second.trace.named("vision encode")[0].attributes["encoded_patches"] == 0


def test_the_content_counts_not_the_name(moe: Engine, media_files: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "other name.png"
    shutil.copy(media_files["wide"], copy)
    answer(moe, CACHED, media_files["wide"])
    assert of_run(answer(moe, CACHED, copy)).hits == 1
    assert of_run(answer(moe, CACHED, media_files["tall"])).hits == 0


def test_another_question_reuses_the_image(moe: Engine, media_files: dict[str, Path]) -> None:
    answer(moe, CACHED, media_files["wide"])
    assert of_run(answer(moe, CACHED, media_files["wide"], question="How many?")).hits == 1


@pytest.mark.parametrize("setting", ["precision.vision=int8", "precision.projector=bf16"])
def test_what_changes_the_features_changes_the_key(moe: Engine, media_files: dict[str, Path], setting: str) -> None:
    answer(moe, CACHED, media_files["wide"])
    assert of_run(answer(moe, CACHED.with_settings([setting]), media_files["wide"])).hits == 0
    assert of_run(answer(moe, CACHED.with_settings(["precision.language=int8"]), media_files["wide"])).hits == 1


def test_frame_groups_of_a_clip_are_cached_one_by_one(moe: Engine, media_files: dict[str, Path]) -> None:
    """A part of the frames found and the rest encoded gives what encoding all gives."""
    whole = answer(moe, CACHED, media_files["clip"])
    assert of_run(whole).queries == 2
    for keep in (0, 1):
        keys = list(moe._cache._entries)
        del moe._cache._entries[keys[keep]]
        again = answer(moe, CACHED, media_files["clip"])
        assert of_run(again).hits == 1
        assert again.tokens == whole.tokens


def test_off_neither_reads_nor_writes(moe: Engine, media_files: dict[str, Path]) -> None:
    before = moe.cache_totals()[LEVEL]
    answer(moe, CompressionConfig.full(), media_files["wide"])
    after = moe.cache_totals()[LEVEL]
    assert (after.queries, after.entries) == (before.queries, 0)


def test_warming_up_is_not_counted(moe: Engine, media_files: dict[str, Path]) -> None:
    moe._warm.clear()
    before = moe.cache_totals()[LEVEL]
    result = answer(moe, CACHED, media_files["wide"])
    assert result.prepare_s > 0
    assert moe.cache_totals()[LEVEL].queries == before.queries + 1
    assert of_run(result).hits == 0


def test_never_holds_more_than_its_bytes(tiny_folders: dict[str, Path], media_files: dict[str, Path]) -> None:
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    # Room for one image: 40 or 48 tokens of 64 floats, merged and two deepstack features.
    engine = Engine(checkpoint, encoder_cache_bytes=48 * 64 * 4 * 3)
    for name in ("wide", "tall", "wide"):
        assert of_run(answer(engine, CACHED, media_files[name])).hits == 0
        assert engine.cache_totals()[LEVEL].bytes <= 48 * 64 * 4 * 3
    assert engine.cache_totals()[LEVEL].evictions == 2


def test_an_entry_larger_than_the_cache_is_not_kept() -> None:
    cache = EncoderCache(capacity_bytes=100)
    assert not cache.put("key", Features(torch.zeros(10, 10), ()), 1.0)
    assert (cache.stats().entries, cache.stats().bytes, cache.stats().evictions) == (0, 0, 0)


def test_a_slice_does_not_keep_its_batch_alive() -> None:
    cache = EncoderCache(capacity_bytes=1 << 20)
    batch = torch.zeros(1000, 8)
    cache.put("key", Features(batch[:2], ()), 1.0)
    found = cache.get("key")
    assert found is not None
    assert found[0].pooled.untyped_storage().nbytes() == 2 * 8 * 4


def test_clearing_forgets_entries_and_keeps_counters(moe: Engine, media_files: dict[str, Path]) -> None:
    answer(moe, CACHED, media_files["wide"])
    queries = moe.cache_totals()[LEVEL].queries
    moe.clear_caches()
    assert moe.cache_totals()[LEVEL].entries == 0
    assert moe.cache_totals()[LEVEL].queries == queries
    assert of_run(answer(moe, CACHED, media_files["wide"])).hits == 0
