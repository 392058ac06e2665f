"""Promise 2 of the product: switched off means identical, for every family and every mix of media."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines import precision
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.media import load_all
from engines.prompt import build_prompt
from engines.pruning import METHODS
from engines.results import RunRequest
from tests.checkpoints import FAMILIES

CASES = {
    "image": ["wide"],
    "several images": ["wide", "tall", "wide"],
    "video": ["clip"],
    "image with video": ["tall", "clip"],
    "video between images": ["wide", "clip", "tall"],
    "text alone": [],
}


def make_request(media_files: dict[str, Path], names: list[str], tokens: int = 12) -> RunRequest:
    return RunRequest(
        "What colour is the block?",
        tuple(media_files[name] for name in names),
        sampling=SamplingConfig(max_new_tokens=tokens),
    )


def capture_logits(engine: Engine, request: RunRequest, config: CompressionConfig) -> tuple[torch.Tensor, list[int]]:
    """The logits of the prompt's last position and the answer's tokens, as the engine computes them in a run."""
    seen: list[torch.Tensor] = []
    head = engine.checkpoint.model.lm_head
    handle = head.register_forward_hook(lambda module, inputs, output: seen.append(output[:, -1].clone()))
    try:
        result = engine.answer(request, config)
    finally:
        handle.remove()
    # The warm-up, if any, comes first; the run itself makes one call a token.
    return seen[-len(result.tokens)], list(result.tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_full_equals_transformers(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str
) -> None:
    engine = engines[family]
    request = make_request(media_files, CASES[case])
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, engine.checkpoint.processor, engine.checkpoint.device)
    with torch.inference_mode():
        theirs = engine.checkpoint.model(**prompt.inputs, logits_to_keep=1).logits[:, -1]
        generated = engine.checkpoint.model.generate(**prompt.inputs, max_new_tokens=12, do_sample=False)
    logits, tokens = capture_logits(engine, request, CompressionConfig.full())
    assert torch.equal(logits, theirs)
    assert tokens == generated[0, prompt.length :].tolist()


NEUTRAL = [
    *(f"pruning.method={name}" for name in METHODS),
    "pruning.keep_ratio=1.0",
    "pruning.min_tokens=64",
    "pruning.scope=prompt",
    "pruning.merge=true",
    "attention.text_top_k=1",
    "experts.top_k=4",
    "precision.all=fp32",
    "precision.group_size=32",
    "precision.compensation_rank=8",
    "precision.tied_head=true",
    "modality.image=true",
]


@pytest.mark.parametrize("assignment", NEUTRAL)
def test_neutral_settings_equal_off(moe: Engine, media_files: dict[str, Path], assignment: str) -> None:
    request = make_request(media_files, ["wide", "clip"])
    logits, tokens = capture_logits(moe, request, CompressionConfig.full())
    neutral, neutral_tokens = capture_logits(moe, request, CompressionConfig.full().with_settings([assignment]))
    assert torch.equal(neutral, logits)
    assert neutral_tokens == tokens


ACTIVE = [
    "pruning.keep_ratio=0.3",
    "attention.cross_modal=true",
    "experts.top_k=1",
    "precision.all=bf16",
    "precision.vision=int8",
    "precision.projector=int8",
    "precision.language=int8",
    "precision.experts=int8",
    "precision.all=fp16",
    "precision.vision=int4",
    "precision.projector=int4",
    "precision.language=int4",
    "precision.experts=int4",
    "modality.image=false",
    "modality.video=false",
]


@pytest.mark.parametrize("assignment", ACTIVE)
def test_active_settings_change_the_logits(moe: Engine, media_files: dict[str, Path], assignment: str) -> None:
    """No switch that changes nothing; and after it, the model is as it was."""
    request = make_request(media_files, ["wide", "clip"])
    before, _ = capture_logits(moe, request, CompressionConfig.full())
    changed = moe.answer(request, CompressionConfig.full().with_settings([assignment]))
    after, _ = capture_logits(moe, request, CompressionConfig.full())
    assert torch.equal(before, after)
    hooked = capture_first_logits(moe, request, CompressionConfig.full().with_settings([assignment]))
    assert not torch.equal(hooked, before)
    assert changed.config.fingerprint() != CompressionConfig.full().fingerprint()


def capture_first_logits(engine: Engine, request: RunRequest, config: CompressionConfig) -> torch.Tensor:
    """Logits of the prompt's end at any precision, seen through the sampler rather than through a replaced head."""
    from engines import decoding

    seen: list[torch.Tensor] = []
    original = decoding.Decoder.prefill

    def prefill(self: decoding.Decoder, sequence: object) -> torch.Tensor:
        logits = original(self, sequence)  # type: ignore[arg-type]
        seen.append(logits.clone())
        return logits

    decoding.Decoder.prefill = prefill  # type: ignore[method-assign]
    try:
        engine.answer(request, config)
    finally:
        decoding.Decoder.prefill = original  # type: ignore[method-assign]
    return seen[-1]


def test_every_precision_has_a_case() -> None:
    covered = {assignment.rpartition("=")[2] for assignment in ACTIVE + NEUTRAL}
    assert set(precision.METHODS) <= covered
