"""Cached equals uncached, over random settings, media, questions, histories and visitors; and bytes stay bounded."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engines.cache.scope import Scope
from engines.checkpoint import load_checkpoint
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import RunRequest, Turn

# Small enough that runs push one another out: a dozen prompts' worth.
PREFIX_BYTES, ENCODER_BYTES = 800_000, 120_000
QUESTIONS = ("What?", "What colour is it?", "How many blocks are there in all?")
CHOICES: tuple[tuple[str, ...], ...] = (
    ("pruning.keep_ratio=1.0", "pruning.keep_ratio=0.5", "pruning.keep_ratio=0.3"),
    ("pruning.method=mmr", "pruning.method=relevance", "pruning.method=random", "pruning.method=temporal"),
    ("pruning.merge=false", "pruning.merge=true"),
    ("pruning.scope=frame", "pruning.scope=prompt"),
    ("experts.method=off", "experts.method=modality"),
    ("precision.language=native", "precision.language=native", "precision.language=bf16"),
    ("kv.bits=0", "kv.bits=0", "kv.bits=8"),
    ("cache.encoder=true", "cache.encoder=false"),
    ("cache.scope=tenant", "cache.scope=session", "cache.scope=resource", "cache.scope=global"),
)


@pytest.mark.parametrize("seed", range(2))
def test_cached_equals_uncached(tiny_folders: dict[str, Path], media_files: dict[str, Path], seed: int) -> None:
    checkpoint = load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32")
    engine = Engine(checkpoint, encoder_cache_bytes=ENCODER_BYTES, prefix_cache_bytes=PREFIX_BYTES)
    draw = random.Random(seed)
    settings = [choices[0] for choices in CHOICES]
    media = tuple(media_files[name] for name in draw.sample(sorted(media_files), 2))
    history: tuple[Turn, ...] = ()
    hits = 0
    for _ in range(30):
        # One thing changes from run to run, so that a run often finds something of those before it.
        match draw.randrange(8):
            case 0 | 1 | 2:
                place = draw.randrange(len(CHOICES))
                settings[place] = draw.choice(CHOICES[place])
            case 3:
                names = draw.sample(sorted(media_files), draw.randrange(3))
                media, history = tuple(media_files[name] for name in names), ()
        config = CompressionConfig.full().with_settings(["cache.prefix=true", *settings])
        request = RunRequest(
            draw.choice(QUESTIONS),
            media,
            history,
            SamplingConfig(max_new_tokens=4, seed=draw.choice((0, 0, 0, 1))),
            warm_up=False,
            scope=Scope(draw.choice("aaab"), session=draw.choice("xxxy")),
        )
        cached = engine.answer(request, config)
        plain = engine.answer(request, replace(config, cache=CompressionConfig.full().cache))
        assert cached.tokens == plain.tokens, config
        assert cached.prune_report == plain.prune_report, config
        assert cached.memory.kv_cache_bytes == plain.memory.kv_cache_bytes, config
        hits += cached.cache_stats.run["prefix"].hits > 0
        totals = engine.cache_totals()
        assert totals["prefix"].bytes <= PREFIX_BYTES
        assert totals["encoder"].bytes <= ENCODER_BYTES
        if draw.random() < 0.6:
            history = (*history, Turn(request.question, cached.answer)) if len(history) < 3 else ()
    assert hits >= 5, "or nothing was tested"
    assert engine.cache_totals()["prefix"].evictions > 0
