"""Pruned decoding against a slow path that masks the dropped tokens out of attention instead of removing them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from engines.config import PruningConfig
from engines.decoding import Decoder
from engines.engine import Engine
from engines.media import load_all
from engines.prompt import build_prompt
from engines.pruning import METHODS
from engines.pruning.merge import merge_dropped
from engines.pruning.stage import choose_rows
from engines.results import RunRequest
from engines.sequence import Sequence, build_sequence, embed_question
from engines.vision.torch_tower import encode_items

CASES = {
    "image": ["wide"],
    "several images": ["wide", "tall"],
    "video": ["clip"],
    "mixed": ["tall", "clip", "wide"],
}
STEPS = 20


def build(engine: Engine, paths: list[Path], config: PruningConfig) -> tuple[Sequence, torch.Tensor, Sequence]:
    """The whole sequence, the rows to keep, and the pruned sequence."""
    request = RunRequest("What colour is the block?", tuple(paths))
    checkpoint = engine.checkpoint
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
    images = encode_items(checkpoint.structure, prompt.images) if prompt.images else []
    videos = encode_items(checkpoint.structure, prompt.videos) if prompt.videos else []
    whole = build_sequence(checkpoint.structure, prompt, images, videos)
    encoded = zip((*prompt.images, *prompt.videos), (*images, *videos), strict=True)
    items = sorted(encoded, key=lambda pair: pair[0].index)
    text = embed_question(checkpoint.structure, prompt)
    keep, report = choose_rows(whole, items, config, merge=2, temporal_patch=2, seed=0, text=text)
    assert keep is not None
    if config.merge:
        whole = merge_dropped(whole, keep, [len(frame.kept) for frame in report.frames])
    return whole, keep, whole.select(keep)


def masked_logits(engine: Engine, whole: Sequence, keep: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Logits after the prompt and after each token; dropped prompt rows are there but nobody may look at them."""
    structure = engine.checkpoint.structure
    cache = DynamicCache(config=structure.text_config)
    mask = keep.long()[None]
    logits = []
    embeddings = whole.embeddings
    positions = torch.cat([torch.arange(whole.length).view(1, 1, -1), whole.positions])
    visual = {"visual_pos_masks": whole.visual, "deepstack_visual_embeds": list(whole.deepstack)}
    for step in range(len(tokens) + 1):
        output = structure.language_model(
            inputs_embeds=embeddings,
            position_ids=positions,
            attention_mask=mask,
            cache=cache,
            use_cache=True,
            **visual,
        )
        logits.append(structure.model.lm_head(output.last_hidden_state[:, -1:])[0, -1])
        if step == len(tokens):
            break
        embeddings = structure.core.get_input_embeddings()(torch.tensor([[tokens[step]]]))
        place = whole.length + step
        positions = torch.full((4, 1, 1), whole.next_position + step)
        positions[0] = place
        mask = torch.cat([mask, torch.ones(1, 1, dtype=torch.long)], dim=1)
        visual = {}
    return torch.stack(logits)


CHOICES = {
    "half": PruningConfig("random", 0.5),
    "few": PruningConfig("random", 0.1),
    "one budget": PruningConfig("relevance", 0.2, scope="prompt"),
    "over time": PruningConfig("temporal", 0.4),
    "merged": PruningConfig("mmr", 0.3, merge=True),
}


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("choice", CHOICES)
def test_removing_equals_masking(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str, choice: str
) -> None:
    if choice == "over time" and "clip" not in CASES[case]:
        pytest.skip("images have no time: nothing is dropped")
    engine = engines[family]
    config = CHOICES[choice]
    with torch.inference_mode():
        whole, keep, pruned = build(engine, [media_files[name] for name in CASES[case]], config)
        decoder = Decoder(engine.checkpoint.structure)
        logits = [decoder.prefill(pruned)[0]]
        tokens = []
        for _ in range(STEPS):
            tokens.append(int(logits[-1].argmax()))
            logits.append(decoder.step(tokens[-1])[0])
        expected = masked_logits(engine, whole, keep, tokens)
    torch.testing.assert_close(torch.stack(logits), expected, rtol=2e-4, atol=2e-4)
    assert decoder.cache.get_seq_length() == int(keep.sum()) + STEPS


@pytest.mark.parametrize("case", CASES)
def test_rows_travel_together(moe: Engine, media_files: dict[str, Path], case: str) -> None:
    """Each kept token keeps its own embedding, its own position and its own row of every deepstack feature."""
    config = PruningConfig(method="random", keep_ratio=0.3)
    with torch.inference_mode():
        whole, keep, pruned = build(moe, [media_files[name] for name in CASES[case]], config)
    visual_row = 0
    place = 0
    for index in range(whole.length):
        is_visual = bool(whole.visual[0, index])
        if keep[index]:
            assert torch.equal(pruned.embeddings[0, place], whole.embeddings[0, index])
            assert torch.equal(pruned.positions[:, 0, place], whole.positions[:, 0, index])
            if is_visual:
                kept_row = int(pruned.visual[0, :place].sum())
                for kept, layer in zip(pruned.deepstack, whole.deepstack, strict=True):
                    assert torch.equal(kept[kept_row], layer[visual_row])
            place += 1
        else:
            assert is_visual, "only visual tokens may be dropped"
        visual_row += is_visual
    assert place == pruned.length
    assert pruned.next_position == whole.next_position


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_vl", "qwen3_5_moe"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ratio", [0.001, 0.4])
def test_every_method_answers_on_every_family(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, method: str, ratio: float
) -> None:
    from engines.config import CompressionConfig, SamplingConfig

    engine = engines[family]
    request = RunRequest(
        "What is there?",
        (media_files["tall"], media_files["clip"]),
        sampling=SamplingConfig(max_new_tokens=3),
        warm_up=False,
    )
    config = CompressionConfig(pruning=PruningConfig(method=method, keep_ratio=ratio))
    report = engine.answer(request, config).prune_report
    assert report.tokens_after == sum(sum(frame.kept) for frame in report.frames)
    assert report.tokens_before == sum(frame.rows * frame.columns for frame in report.frames)
    assert all(sum(frame.kept) >= 1 for frame in report.frames)
    assert all(len(frame.kept) == frame.rows * frame.columns for frame in report.frames)
