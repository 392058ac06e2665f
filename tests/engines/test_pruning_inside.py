"""Pruning inside the language model against slow paths that remove nothing, or that have no cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from engines.config import CompressionConfig, PruningConfig, SamplingConfig
from engines.decoding import Decoder
from engines.engine import Engine
from engines.memory import cache_bytes
from engines.pruning.inside import layer_of, why_not
from engines.results import EngineError, RunRequest, TokenReady
from engines.sequence import Sequence
from engines.structure import LayerCut, Structure
from tests.checkpoints import FAMILIES
from tests.engines.test_pruned_decoding import CASES, STEPS, build

LAYER = 2  # the only one possible in the tiny checkpoints
SETTINGS = ["pruning.method=attention", "pruning.keep_ratio=0.3"]


def whole_sequence(engine: Engine, paths: list[Path]) -> Sequence:
    with torch.inference_mode():
        return build(engine, paths, PruningConfig("random", 0.5))[0]


def choose_third(sequence: Sequence, received: list[torch.Tensor] | None = None) -> Any:
    """A chooser of the third of the visual tokens that received the most attention."""

    def choose(attention: torch.Tensor, _hidden: torch.Tensor) -> torch.Tensor:
        if received is not None:
            received.append(attention)
        visual = sequence.visual[0]
        keep = ~visual
        rows = visual.nonzero().flatten()
        keep[rows[attention[visual].topk(max(1, len(rows) // 3)).indices]] = True
        return keep

    return choose


def decode(engine: Engine, sequence: Sequence) -> tuple[torch.Tensor, list[int], torch.Tensor, Decoder]:
    """Logits of every step, the tokens, the rows that went on, and the decoder."""
    kept: list[torch.Tensor] = []
    choose = choose_third(sequence)
    cut = LayerCut(engine.checkpoint.structure, LAYER, lambda *seen: kept.append(choose(*seen)) or kept[-1])
    decoder = Decoder(engine.checkpoint.structure, cut)
    with torch.inference_mode():
        logits = [decoder.prefill(sequence)[0]]
        tokens = []
        for _ in range(STEPS):
            tokens.append(int(logits[-1].argmax()))
            logits.append(decoder.step(tokens[-1])[0])
    return torch.stack(logits), tokens, kept[0], decoder


def extended(structure: Structure, sequence: Sequence, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings (1, length, hidden) and positions (3, 1, length) of the prompt and the answer so far."""
    embed = structure.core.get_input_embeddings()
    ids = torch.tensor([tokens], dtype=torch.long)
    positions = (sequence.next_position + torch.arange(len(tokens))).expand(3, 1, -1)
    return torch.cat([sequence.embeddings, embed(ids)], 1), torch.cat([sequence.positions, positions], 2)


def logits_without_cache(
    structure: Structure, sequence: Sequence, keep: torch.Tensor, tokens: list[int]
) -> torch.Tensor:
    """Everything anew for every token, layer by layer, without a cache; after the layer only the kept rows."""
    model, logits = structure.language_model, []
    for count in range(len(tokens) + 1):
        hidden, positions = extended(structure, sequence, tokens[:count])
        rows = torch.cat([keep, torch.ones(count, dtype=torch.bool)])
        rotary = model.rotary_emb(hidden, positions)
        for index, layer in enumerate(model.layers):
            if index == LAYER:
                hidden, rotary = hidden[:, rows], tuple(part[:, rows] for part in rotary)
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
            if index < len(sequence.deepstack):
                hidden = hidden.clone()
                hidden[0, : sequence.length][sequence.visual[0]] += sequence.deepstack[index]
        logits.append(structure.model.lm_head(model.norm(hidden)[:, -1])[0])
    return torch.stack(logits)


@contextmanager
def masked_after(structure: Structure, keep: torch.Tensor) -> Iterator[None]:
    """The later layers still compute every row, but nobody may look at the dropped ones."""

    def mask(_layer: Any, inputs: tuple[torch.Tensor, ...], named: dict[str, Any]) -> Any:
        queries = inputs[0].shape[1]
        length = queries if queries > 1 else named["cache"].get_seq_length(len(structure.language_model.layers) - 1) + 1
        seen = torch.cat([keep, torch.ones(length - len(keep), dtype=torch.bool)])
        causal = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
        return inputs, named | {"attention_mask": (causal & seen)[None, None]}

    layers = structure.language_model.layers[LAYER:]
    handles = [layer.register_forward_pre_hook(mask, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_cutting_equals_recomputing_without_a_cache(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str
) -> None:
    engine = engines[family]
    sequence = whole_sequence(engine, [media_files[name] for name in CASES[case]])
    logits, tokens, keep, decoder = decode(engine, sequence)
    with torch.inference_mode():
        expected = logits_without_cache(engine.checkpoint.structure, sequence, keep, tokens)
    torch.testing.assert_close(logits, expected, rtol=5e-4, atol=5e-4)
    full, kept = sequence.length + STEPS, int(keep.sum()) + STEPS
    lengths = [layer.keys.shape[-2] for layer in decoder.cache.layers if getattr(layer, "keys", None) is not None]
    assert lengths == ([full, kept] if family == "qwen3_5_moe" else [full, full, kept])


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl"])
@pytest.mark.parametrize("case", CASES)
def test_cutting_equals_masking(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str
) -> None:
    engine = engines[family]
    sequence = whole_sequence(engine, [media_files[name] for name in CASES[case]])
    logits, tokens, keep, _ = decode(engine, sequence)
    decoder = Decoder(engine.checkpoint.structure)
    with torch.inference_mode(), masked_after(engine.checkpoint.structure, keep):
        expected = [decoder.prefill(sequence)[0], *(decoder.step(token)[0] for token in tokens)]
    torch.testing.assert_close(logits, torch.stack(expected), rtol=2e-4, atol=2e-4)


@pytest.fixture
def eager(moe: Engine) -> Iterator[Engine]:
    moe.checkpoint.model.set_attn_implementation("eager")
    yield moe
    moe.checkpoint.model.set_attn_implementation("sdpa")


def test_kernels_that_take_a_mask_are_cut_too(moe: Engine, media_files: dict[str, Path], request: Any) -> None:
    sequence = whole_sequence(moe, [media_files[name] for name in CASES["mixed"]])
    expected, tokens, keep, _ = decode(moe, sequence)
    logits, eager_tokens, eager_keep, _ = decode(request.getfixturevalue("eager"), sequence)
    assert torch.equal(keep, eager_keep)
    assert tokens == eager_tokens
    torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_the_score_is_the_attention_of_the_last_token(eager: Engine, media_files: dict[str, Path]) -> None:
    """Against the weights that the slow attention itself hands out."""
    structure = eager.checkpoint.structure
    sequence = whole_sequence(eager, [media_files["wide"], media_files["clip"]])
    weights: list[torch.Tensor] = []
    attention = structure.language_model.layers[LAYER - 1].self_attn
    handle = attention.register_forward_hook(lambda module, inputs, output: weights.append(output[1]))
    received: list[torch.Tensor] = []
    with torch.inference_mode():
        Decoder(structure, LayerCut(structure, LAYER, choose_third(sequence, received))).prefill(sequence)
    handle.remove()
    torch.testing.assert_close(received[0], weights[0][0, :, -1].mean(dim=0), rtol=1e-4, atol=1e-6)
    assert received[0].sum().item() == pytest.approx(1.0, abs=1e-4)


def test_letting_every_row_go_on_changes_nothing(moe: Engine, media_files: dict[str, Path]) -> None:
    structure = moe.checkpoint.structure
    sequence = whole_sequence(moe, [media_files["wide"]])
    with torch.inference_mode():
        expected = Decoder(structure).prefill(sequence)
        assert torch.equal(Decoder(structure, LayerCut(structure, LAYER, lambda *_: None)).prefill(sequence), expected)


# ---- through the engine ----


def ask(media_files: dict[str, Path], *names: str, tokens: int = 4, **changes: Any) -> RunRequest:
    media = tuple(media_files[name] for name in names)
    return RunRequest("What is there?", media, sampling=SamplingConfig(max_new_tokens=tokens), **changes)


def hooks(engine: Engine) -> int:
    modules = list(engine.checkpoint.model.modules())
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scope", ["frame", "item", "prompt"])
def test_the_report_says_where_and_what(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, scope: str
) -> None:
    engine = engines[family]
    config = CompressionConfig.full().with_settings([*SETTINGS, f"pruning.scope={scope}"])
    request = ask(media_files, "tall", "clip", "wide")
    result = engine.answer(request, config)
    report = result.prune_report
    assert (report.method, report.layer, report.notes) == ("attention", LAYER, ())
    assert report.achieved_keep_ratio == pytest.approx(0.3, abs=0.05)
    assert result.visual_tokens == report.tokens_after == sum(sum(frame.kept) for frame in report.frames)
    for frame in report.frames:
        assert frame.scores is not None
        assert all(0.0 <= score <= 1.0 for score in frame.scores)
        kept = [score for score, cell in zip(frame.scores, frame.kept, strict=True) if cell]
        dropped = [score for score, cell in zip(frame.scores, frame.kept, strict=True) if not cell]
        assert min(kept) >= max(dropped, default=0.0)
    (prune,), (prefill,) = result.trace.named("prune"), result.trace.named("prefill")
    assert prune.attributes == {"method": "attention", "tokens_before": report.tokens_before, "after_layer": LAYER}
    assert prefill.attributes["visual_tokens"] == report.tokens_before
    assert prefill.attributes["pruned_after_layer"] == LAYER
    assert prefill.attributes["visual_tokens_after"] == report.tokens_after
    assert hooks(engine) == 0
    assert engine.answer(request, config).tokens == result.tokens


def test_later_layers_cache_and_compute_less(moe: Engine, media_files: dict[str, Path]) -> None:
    request = ask(media_files, "tall", "clip")
    full = moe.answer(request, CompressionConfig.full())
    pruned = moe.answer(request, CompressionConfig.full().with_settings(SETTINGS))
    report = pruned.prune_report
    row = cache_bytes(_cache_of_one_row(moe)) // 3
    steps = len(pruned.tokens) - 1
    dropped = report.tokens_before - report.tokens_after
    assert pruned.memory.kv_cache_bytes == row * (3 * (pruned.prompt_tokens + steps) - dropped)
    assert pruned.memory.kv_cache_bytes < full.memory.kv_cache_bytes
    experts = pruned.expert_report
    assert experts is not None
    loads = [sum(layer) for layer in experts.layers]
    assert loads[0] == loads[1] == loads[2] + 4 * dropped


def _cache_of_one_row(engine: Engine) -> DynamicCache:
    structure = engine.checkpoint.structure
    cache = DynamicCache(config=structure.text_config)
    with torch.inference_mode():
        structure.language_model(input_ids=torch.tensor([[5]]), cache=cache, use_cache=True)
    return cache


def test_expert_skipping_goes_with_it(moe: Engine, media_files: dict[str, Path]) -> None:
    """What looks at the kind of each token must know which ones went on."""
    config = CompressionConfig.full().with_settings([*SETTINGS, "experts.method=modality", "experts.top_k=2"])
    assert moe.answer(ask(media_files, "wide", "clip"), config).tokens


@pytest.mark.parametrize("names", [(), ("wide",)])
def test_nothing_to_drop_is_the_full_model(moe: Engine, media_files: dict[str, Path], names: tuple[str, ...]) -> None:
    """A prompt of text alone, and a minimum that keeps everything."""
    config = CompressionConfig.full().with_settings([*SETTINGS, "pruning.min_tokens=64"])
    result = moe.answer(ask(media_files, *names), config)
    assert result.tokens == moe.answer(ask(media_files, *names), CompressionConfig.full()).tokens
    assert result.prune_report.tokens_after == result.prune_report.tokens_before
    assert result.prune_report.layer == (LAYER if names else None)


@pytest.mark.parametrize("asked", [1, 3, 64])
def test_the_nearest_possible_layer_is_taken_and_named(moe: Engine, media_files: dict[str, Path], asked: int) -> None:
    config = CompressionConfig.full().with_settings([*SETTINGS, f"pruning.options.layer={asked}"])
    result = moe.answer(ask(media_files, "wide", tokens=1), config)
    assert result.prune_report.layer == LAYER
    assert len([warning for warning in result.warnings if f"after layer 2 instead of {asked}" in warning]) == 1


def test_possible_layers_have_all_deepstack_features_and_full_attention(engines: dict[str, Engine]) -> None:
    for family in FAMILIES:
        assert engines[family].checkpoint.structure.inner_layers == (LAYER,)
    config = PruningConfig("attention", 0.5, options={"layer": 5})
    structure = type("Deep", (), {"inner_layers": (4, 8, 12), "deepstack_layers": 3})()
    assert layer_of(config, structure)[0] == 8
    assert layer_of(PruningConfig("mmr", 0.5), structure) == (None, ())
    assert layer_of(PruningConfig("attention", 1.0), structure) == (None, ())


def test_what_cannot_be_done_is_refused_in_words(moe: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CompressionConfig.full().with_settings([*SETTINGS, "pruning.merge=true"])
    with pytest.raises(EngineError, match="switch one of them off"):
        moe.check(config)
    moe.check(config.with_settings(["pruning.keep_ratio=1"]))
    with pytest.raises(ValueError, match=r"layer is 0; it must be a whole number at least 1"):
        moe.check(CompressionConfig.full().with_settings([*SETTINGS, "pruning.options.layer=0"]))
    monkeypatch.setattr(Structure, "inner_layers", ())
    with pytest.raises(EngineError, match=r"attention is not available with this checkpoint: its language model"):
        moe.check(CompressionConfig.full().with_settings(SETTINGS))
    assert why_not("mmr", moe.checkpoint.structure) == ""
    offered = {capability.name: capability for capability in moe.capabilities().pruning}
    assert not offered["attention"].available
    assert offered["mmr"].available


@pytest.mark.parametrize("layer", [0, 2])
def test_hooks_are_gone_after_a_cancelled_prefill(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    cancel = threading.Event()
    block = moe.checkpoint.structure.language_model.layers[layer]
    original = block.input_layernorm.forward

    def forward(*args: Any) -> Any:
        cancel.set()
        return original(*args)

    monkeypatch.setattr(block.input_layernorm, "forward", forward)
    request = ask(media_files, "wide", tokens=9, cancel=cancel, warm_up=False)
    result = moe.answer(request, CompressionConfig.full().with_settings(SETTINGS))
    assert result.finish_reason == "cancelled"
    assert len(result.tokens) == (0 if layer == 0 else 1)
    assert hooks(moe) == 0


def test_hooks_are_gone_after_a_run_that_is_closed(moe: Engine, media_files: dict[str, Path]) -> None:
    events = moe.run(ask(media_files, "wide", tokens=9), CompressionConfig.full().with_settings(SETTINGS))
    for event in events:
        if isinstance(event, TokenReady) and event.index == 2:
            break
    events.close()
    assert hooks(moe) == 0
