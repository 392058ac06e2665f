"""The compressed KV cache in real runs: every family and mix of media, beside pruning and expert skipping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from engines.config import CompressionConfig, KVConfig, SamplingConfig
from engines.decoding import Decoder
from engines.engine import Engine
from engines.kv.retention import WINDOW
from engines.kv.stage import KVStage, block_layers
from engines.media import load_all
from engines.memory import cache_bytes
from engines.prompt import build_prompt
from engines.results import EngineError, RunRequest, RunResult
from engines.sequence import Sequence, build_sequence
from engines.vision.torch_tower import encode_items
from tests.checkpoints import FAMILIES

CASES = {
    "image": ["wide"],
    "several images": ["wide", "tall"],
    "video": ["clip"],
    "mixed": ["tall", "clip", "wide"],
    "text alone": [],
}
QUESTION = "What colour is the block that is left of the red one, and how many are there?"
STEPS = 20
TOKENS = [5 + 3 * step for step in range(STEPS)]


def answer(
    engine: Engine, media_files: dict[str, Path], case: str, settings: list[str], tokens: int = 12, **named: Any
) -> RunResult:
    media = tuple(media_files[name] for name in CASES[case])
    request = RunRequest(QUESTION, media, sampling=SamplingConfig(max_new_tokens=tokens), **named)
    return engine.answer(request, CompressionConfig.full().with_settings(settings))


def build(engine: Engine, media_files: dict[str, Path], case: str) -> Sequence:
    request = RunRequest(QUESTION, tuple(media_files[name] for name in CASES[case]))
    checkpoint = engine.checkpoint
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
    images = encode_items(checkpoint.structure, prompt.images) if prompt.images else []
    videos = encode_items(checkpoint.structure, prompt.videos) if prompt.videos else []
    return build_sequence(checkpoint.structure, prompt, images, videos)


def decode(engine: Engine, sequence: Sequence, config: KVConfig, *, on_codes: bool = True) -> tuple[Tensor, Any]:
    """Logits after each of `TOKENS`, given after a plain prefill and the compression; and the cache."""
    structure = engine.checkpoint.structure
    stage, decoder = KVStage(structure, config), Decoder(structure)
    with torch.inference_mode():
        with stage.applied():
            stage.begin(sequence.visual[0])
            decoder.prefill(sequence)
            stage.compress(decoder.cache)
        for layer in block_layers(decoder.cache).values():
            layer.attended = on_codes
        with stage.applied() if on_codes else ExitStack():
            logits = [decoder.step(token)[0] for token in TOKENS]
    return torch.stack(logits), decoder.cache


NEUTRAL = [
    "kv.bits=0",
    "kv.block_tokens=16",
    "kv.sink_tokens=0",
    "kv.sparsity_threshold=0.0",
    "kv.visual_keep_ratio=1.0",
    "kv.importance=random",
    "kv.text_window=0",
    "kv.min_live_tokens=8",
    "kv.norm_floor=0.0",
    "kv.norm_steps=1",
]


@pytest.mark.parametrize("assignment", NEUTRAL)
def test_neutral_settings_leave_the_cache_plain(
    moe: Engine, media_files: dict[str, Path], assignment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    original = Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda self, token: seen.append(original(self, token)) or seen[-1])
    full = answer(moe, media_files, "image", [], warm_up=False)
    ours = answer(moe, media_files, "image", [assignment], warm_up=False)
    half = len(seen) // 2
    assert half
    assert all(torch.equal(*pair) for pair in zip(seen[:half], seen[half:], strict=True))
    assert ours.tokens == full.tokens
    assert ours.kv_report is None
    assert "compress KV" not in {span.name for span in ours.trace.spans}
    assert ours.memory.kv_cache_bytes == full.memory.kv_cache_bytes


SETTINGS = {
    "8 bit": ["kv.bits=8"],
    "4 bit": ["kv.bits=4", "kv.block_tokens=16"],
    "sparse": ["kv.sparsity_threshold=0.1", "kv.block_tokens=16"],
    "retention": ["kv.visual_keep_ratio=0.1", "kv.text_window=12", "kv.min_live_tokens=8"],
    "random": ["kv.visual_keep_ratio=0.3", "kv.importance=random"],
    "norms": ["kv.norm_floor=0.92", "kv.block_tokens=8"],
    "all": ["kv.bits=4", "kv.visual_keep_ratio=0.5", "kv.text_window=20", "kv.norm_floor=0.5", "kv.block_tokens=8"],
}


RUNS = [
    *((family, case, "all") for family in FAMILIES for case in CASES),
    *(("qwen3_vl_moe", case, name) for case in ("mixed", "text alone") for name in SETTINGS if name != "all"),
    *(("qwen3_5_moe", "image", name) for name in SETTINGS if name != "all"),
]


@pytest.mark.parametrize(("family", "case", "name"), RUNS)
def test_every_setting_answers_on_every_family(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str, name: str
) -> None:
    engine = engines[family]
    result = answer(engine, media_files, case, SETTINGS[name], tokens=6, warm_up=False)
    report = result.kv_report
    assert report is not None
    assert [layer.layer for layer in report.layers] == list(engine.checkpoint.structure.attention_layers)
    for layer in report.layers:
        # The last token of an answer is not run through the model.
        assert layer.tokens_seen == result.prompt_tokens + len(result.tokens) - 1
        assert 0 < layer.tokens_held <= layer.tokens_seen
        assert layer.visual_held <= layer.visual_seen == result.visual_tokens
    span = next(span for span in result.trace.spans if span.name == "compress KV")
    assert span.attributes["tokens_after"] <= span.attributes["tokens_before"] == result.prompt_tokens
    if name in ("8 bit", "4 bit", "retention"):
        assert span.attributes["bytes_after"] < span.attributes["bytes_before"] or result.prompt_tokens < 70
    assert result.to_dict()["kv_report"]["bytes"] == report.bytes
    # The whole cache is these layers and, in a hybrid, the states of linear attention.
    assert result.memory.kv_cache_bytes >= report.bytes
    assert (result.memory.kv_cache_bytes > report.bytes) is (family == "qwen3_5_moe")


def test_the_first_token_is_that_of_the_full_model_and_a_run_can_be_repeated(
    moe: Engine, media_files: dict[str, Path]
) -> None:
    before = moe.checkpoint.structure.language_model.config._attn_implementation
    full = answer(moe, media_files, "mixed", [])
    first, second = (answer(moe, media_files, "mixed", SETTINGS["all"]) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.kv_report == second.kv_report
    assert first.tokens[0] == full.tokens[0]
    assert answer(moe, media_files, "mixed", []).tokens == full.tokens
    assert moe.checkpoint.structure.language_model.config._attn_implementation == before


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("implementation", "name"), [("sdpa", "4 bit"), ("sdpa", "retention"), ("eager", "retention"), ("eager", "8 bit")]
)
def test_reading_codes_equals_writing_the_cache_out(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, implementation: str, name: str
) -> None:
    """The same cache, unchanged, with attention of ours and with the model's own over decoded rows."""
    config = CompressionConfig.full().with_settings([*SETTINGS[name], "kv.block_tokens=8"]).kv
    model = engines[family].checkpoint.structure.language_model
    sequence = build(engines[family], media_files, "mixed")
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        ours, _ = decode(engines[family], sequence, config)
        theirs, _ = decode(engines[family], sequence, config, on_codes=False)
    finally:
        model.set_attn_implementation(before)
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


# ---- D3 against masking ----


@contextmanager
def masked(structure: Any, masks: dict[int, Tensor]) -> Iterator[None]:
    """While open, each layer of `masks`, by index, attends only where its mask (keys,) is true."""

    def hide(mask: Tensor) -> Any:
        return lambda _module, inputs, named: (inputs, named | {"attention_mask": mask.view(1, 1, 1, -1)})

    with ExitStack() as stack:
        for index, mask in masks.items():
            handle = structure.language_model.layers[index].register_forward_pre_hook(hide(mask), with_kwargs=True)
            stack.callback(handle.remove)
        yield


def kept_by_loops(structure: Any, sequence: Sequence, config: KVConfig) -> dict[int, list[bool]]:
    """For each attention layer the visual tokens that stay, from the attention maps of the eager function."""
    model, maps = structure.language_model, {}
    handles = [
        model.layers[number - 1].self_attn.register_forward_hook(
            lambda _module, _inputs, output, number=number: maps.__setitem__(number - 1, output[1][0])
        )
        for number in structure.attention_layers
    ]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        Decoder(structure).prefill(sequence)
    finally:
        model.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    visual = [token for token, is_visual in enumerate(sequence.visual[0].tolist()) if is_visual]
    kept = {}
    for index, attention in maps.items():
        received = attention[:, -WINDOW:].mean(dim=(0, 1))
        best = sorted(visual, key=lambda token: -float(received[token]))
        best = best[: max(1, round(config.visual_keep_ratio * len(visual)))]
        kept[index] = [token in best for token in range(sequence.length)]
    return kept


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("case", "window"), [("mixed", 0), *((case, 15) for case in CASES)])
def test_retention_equals_masking_what_it_dropped(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str, window: int
) -> None:
    structure = engines[family].checkpoint.structure
    config = KVConfig(visual_keep_ratio=0.3, text_window=window, block_tokens=8, sink_tokens=3)
    with torch.inference_mode():
        sequence = build(engines[family], media_files, case)
        ours, cache = decode(engines[family], sequence, config)
        kept = kept_by_loops(structure, sequence, config)
        visual = sequence.visual[0].tolist()
        slow = Decoder(structure)
        slow.prefill(sequence)
        expected = []
        for step, token in enumerate(TOKENS):
            is_visual = visual + [False] * (step + 1)
            texts = [place for place, seen in enumerate(is_visual) if not seen]
            in_window = set(texts[-window:] if window else texts) | set(range(config.sink_tokens))
            masks = {
                index: torch.tensor(
                    [choice[place] if seen else place in in_window for place, seen in enumerate(is_visual)]
                )
                for index, choice in kept.items()
            }
            with masked(structure, masks):
                expected.append(slow.step(token)[0])
    torch.testing.assert_close(ours, torch.stack(expected), rtol=2e-4, atol=2e-4)
    held = sum(masks[min(masks)].tolist())
    assert block_layers(cache)[min(masks)].report(1).tokens_held == held


def test_states_of_linear_attention_are_left_alone(engines: dict[str, Engine], media_files: dict[str, Path]) -> None:
    engine = engines["qwen3_5_moe"]
    structure, sequence = engine.checkpoint.structure, build(engine, media_files, "image")
    stage, decoder = KVStage(structure, KVConfig(bits=4, block_tokens=8)), Decoder(structure)
    with torch.inference_mode():
        stage.begin(sequence.visual[0])
        decoder.prefill(sequence)
        plain = list(decoder.cache.layers)
        states = cache_bytes(DynamicLayers([layer for index, layer in enumerate(plain) if index in (0, 2)]))
        stage.compress(decoder.cache)
    assert [layer is old for layer, old in zip(decoder.cache.layers, plain, strict=True)] == [True, False, True, False]
    assert states > 0
    assert isinstance(decoder.cache, DynamicCache)
    report = stage.report(decoder.cache)
    assert report is not None
    assert cache_bytes(decoder.cache) == report.bytes + states


class DynamicLayers:
    """Only the layers of a cache."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


@pytest.mark.parametrize("family", FAMILIES)
def test_it_works_inside_and_beside_pruning_and_expert_skipping(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str
) -> None:
    engine = engines[family]
    experts = [] if family == "qwen3_vl" else ["experts.method=random", "experts.options.skip=0.5"]
    for pruning in (["pruning.method=mmr"], ["pruning.method=attention"]):
        settings = [*SETTINGS["all"], *experts, *pruning, "pruning.keep_ratio=0.4", "cache.encoder=true"]
        result = answer(engine, media_files, "mixed", settings)
        report = result.kv_report
        assert report is not None
        last, first = report.layers[-1], report.layers[0]
        assert last.visual_seen == result.visual_tokens == result.prune_report.tokens_after
        # Layers before the cut have cached all; each keeps half of what it has.
        inside = result.prune_report.layer is not None
        assert inside is (pruning == ["pruning.method=attention"])
        assert first.visual_seen == (result.prune_report.tokens_before if inside else last.visual_seen)
        for layer in report.layers:
            assert layer.visual_held <= round(0.5 * layer.visual_seen)


def test_four_bits_come_with_a_warning(engines: dict[str, Engine], media_files: dict[str, Path]) -> None:
    for settings, warned in ((["kv.bits=4"], True), (["kv.bits=8"], False)):
        warnings = answer(engines["qwen3_vl"], media_files, "image", settings, tokens=2).warnings
        assert any("kv.bits=4 is coarse" in warning for warning in warnings) is warned


def test_what_cannot_be_combined_is_said(moe: Engine) -> None:
    config = CompressionConfig.full().with_settings(["kv.bits=8", "attention.cross_modal=true"])
    with pytest.raises(EngineError, match="switch one of them off"):
        moe.check(config)


@pytest.mark.parametrize(
    ("assignment", "allowed"),
    [
        ("kv.bits=3", "one of 0, 8, 4"),
        ("kv.bits=false", "one of 0, 8, 4"),
        ("kv.block_tokens=2", "at least 4"),
        ("kv.visual_keep_ratio=0", "above 0"),
        ("kv.norm_floor=1.5", "at most 1"),
    ],
)
def test_settings_out_of_range_are_refused(assignment: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        CompressionConfig.full().with_settings([assignment])
