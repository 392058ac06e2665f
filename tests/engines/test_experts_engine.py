"""Expert skipping in whole runs: off means identical, counts are true, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.config import CompressionConfig, ExpertConfig, SamplingConfig
from engines.decoding import Decoder
from engines.engine import Engine
from engines.experts import METHODS
from engines.experts.base import Routing, Skipper, keep_first
from engines.experts.stage import ExpertStage
from engines.media import load_all
from engines.prompt import build_prompt
from engines.reports import ExpertReport
from engines.results import EngineError, Finished, RunRequest, StageStarted
from engines.sequence import Sequence
from tests.engines.test_experts_methods import NEUTRAL
from tests.engines.test_off_is_identical import capture_logits, make_request

FULL = CompressionConfig.full()
MOE = ("qwen3_vl_moe", "qwen3_5_moe")
CASES = {"text alone": [], "image": ["wide"], "several images": ["wide", "tall", "wide"], "video": ["clip"]}
SKIPPING = [name for name in METHODS if name != "off"]
# Tokens differ little in a random checkpoint: these skip some pairs of every prompt with media, and not all.
ACTIVE = {
    "modality": ["experts.options.visual_threshold=0.2", "experts.options.text_threshold=0.1"],
    "entropy": ["experts.options.temperature=0.1", "experts.options.upper_bound=3"],
}


def settings(method: str, options: dict[str, float] | None = None) -> CompressionConfig:
    given = ACTIVE.get(method, []) if options is None else [f"experts.options.{k}={v}" for k, v in options.items()]
    return FULL.with_settings([f"experts.method={method}", *given])


def left_behind(engine: Engine) -> tuple[int, object, set[int]]:
    structure = engine.checkpoint.structure
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in structure.model.modules())
    return hooks, structure.model.get_experts_implementation(), {layer.router.top_k for layer in structure.moe_layers}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", MOE)
def test_neutral_equals_off(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, case: str, method: str
) -> None:
    request = make_request(media_files, CASES[case], tokens=3)
    logits, tokens = capture_logits(engines[family], request, FULL)
    neutral, neutral_tokens = capture_logits(engines[family], request, settings(method, NEUTRAL[method]))
    assert torch.equal(neutral, logits)
    assert neutral_tokens == tokens


@contextmanager
def chosen_experts(engine: Engine) -> Iterator[list[tuple[int, Tensor]]]:
    """(layer, expert indices) of every call of the experts."""
    seen: list[tuple[int, Tensor]] = []
    handles = [
        layer.experts.register_forward_pre_hook(
            lambda module, inputs, place=place: seen.append((place, inputs[1].clone()))
        )
        for place, layer in enumerate(engine.checkpoint.structure.moe_layers)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def naive_counts(engine: Engine, request: RunRequest, seen: list[tuple[int, Tensor]]) -> dict[str, list[list[int]]]:
    """By kind of token and layer [computed, skipped], pair by pair; only the first pass holds visual tokens."""
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, engine.checkpoint.processor, engine.checkpoint.device)
    config = engine.checkpoint.structure.config
    visual = [token in (config.image_token_id, config.video_token_id) for token in prompt.input_ids[0].tolist()]
    layers = len(engine.checkpoint.structure.moe_layers)
    counts = {kind: [[0, 0] for _ in range(layers)] for kind in ("text", "visual")}
    for call, (layer, index) in enumerate(seen):
        kinds = visual if call < layers else [False] * len(index)
        for is_visual, experts in zip(kinds, index.tolist(), strict=True):
            own = counts["visual" if is_visual else "text"][layer]
            computed = sum(expert < 8 for expert in experts)
            own[0] += computed
            own[1] += 4 - computed
    return counts


@pytest.mark.parametrize("more", [[], ["experts.top_k=2"], ["experts.top_k=2", "experts.renormalise=false"]])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", MOE)
def test_the_report_equals_a_naive_count(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, method: str, more: list[str]
) -> None:
    engine = engines[family]
    request = RunRequest(
        "What?", (media_files["wide"], media_files["clip"]), sampling=SamplingConfig(max_new_tokens=3), warm_up=False
    )
    with chosen_experts(engine) as seen:
        report = engine.answer(request, settings(method).with_settings(more)).expert_report
    assert report is not None
    counts = naive_counts(engine, request, seen)
    for kind in ("text", "visual"):
        pairs = getattr(report, kind)
        assert [list(pair) for pair in zip(pairs.computed, pairs.skipped, strict=True)] == counts[kind]
    assert report.pairs_computed == sum(sum(layer) for layer in report.layers)
    assert report.pairs_full == report.text.total + report.visual.total
    assert (report.method, report.top_k, report.own_top_k) == (method, 2 if more else 4, 4)
    share = report.visual.skipped_share
    assert share is not None
    assert (share > 0) is (method != "off" or bool(more))


@pytest.mark.parametrize("method", METHODS)
def test_tokens_that_leave_between_two_layers_are_counted_only_before(
    moe: Engine, media_files: dict[str, Path], method: str
) -> None:
    stage = ExpertStage.of(moe.checkpoint.structure, settings(method).experts, None)
    embeddings = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(1))
    visual, keep = torch.arange(9) < 5, torch.arange(9) % 3 > 0
    layers = moe.checkpoint.structure.moe_layers
    with torch.inference_mode(), stage.applied(), stage.counting():
        stage.begin(visual)
        stage._watch(None, (), {"inputs_embeds": embeddings})
        layers[0].block(embeddings)
        stage.narrow(keep)
        for layer in layers[1:]:
            layer.block(embeddings[:, keep])
    report = stage.report()
    assert report is not None
    assert [c + s for c, s in zip(report.visual.computed, report.visual.skipped, strict=True)] == [20, 12, 12]
    assert [c + s for c, s in zip(report.text.computed, report.text.skipped, strict=True)] == [16, 12, 12]


@pytest.mark.parametrize("precision", [[], *([f"precision.experts={name}"] for name in ("int8", "int4", "bf16"))])
@pytest.mark.parametrize("method", SKIPPING)
def test_skipping_changes_the_answer_and_leaves_nothing_behind(
    moe: Engine, media_files: dict[str, Path], method: str, precision: list[str]
) -> None:
    request = make_request(media_files, ["wide", "clip"], tokens=3)
    before, logits = left_behind(moe), capture_logits(moe, request, FULL.with_settings(precision))[0]
    skipped = capture_logits(moe, request, settings(method).with_settings(precision))[0]
    assert torch.isfinite(skipped).all()
    assert not torch.equal(skipped, logits)
    assert left_behind(moe) == before
    assert torch.equal(capture_logits(moe, request, FULL.with_settings(precision))[0], logits)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_experts_compute_no_skipped_pair(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    from engines.precision import int4, int8

    rows: list[int] = []
    for matrix in (int4.Int4Matrix, int8.Int8Matrix):
        original = matrix.product

        def counted(self: Any, inputs: Any, *arguments: Any, original: Any = original) -> Tensor:
            rows.append(len(inputs))
            return original(self, inputs, *arguments)

        monkeypatch.setattr(matrix, "product", counted)
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    report = moe.answer(request, settings("random").with_settings([f"precision.experts={precision}"])).expert_report
    assert report is not None
    assert sum(rows) == 2 * report.pairs_computed < 2 * report.pairs_full


@pytest.mark.parametrize("when", ["warming up", "prefill", "closed"])
def test_nothing_is_left_of_a_run_that_was_cancelled(moe: Engine, media_files: dict[str, Path], when: str) -> None:
    before = left_behind(moe)
    cancel = threading.Event()
    config = settings("random").with_settings(["experts.top_k=2", "experts.renormalise=false"])
    request = RunRequest(
        f"What is {when}?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=4), cancel=cancel
    )
    events = moe.run(request, config)
    for event in events:
        if isinstance(event, StageStarted) and event.name == ("prefill" if when == "closed" else when):
            if when == "closed":
                events.close()
                break
            cancel.set()
        if isinstance(event, Finished):
            assert event.result.finish_reason == "cancelled"
    assert left_behind(moe) == before


@dataclass(frozen=True)
class FirstTwo(Skipper):
    name = "first two"

    def keep(self, routing: Routing) -> Tensor:
        return keep_first(torch.full(routing.weights.shape[:1], 2), routing.weights.shape[1])


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("family", MOE)
def test_two_of_four_kept_equals_a_top_k_of_two(engines: dict[str, Engine], family: str, renormalise: bool) -> None:
    structure = engines[family].checkpoint.structure
    embeddings = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(1))
    sequence = Sequence(embeddings, torch.arange(9).repeat(3, 1, 1), torch.arange(9)[None] < 4, (), 9)
    found: list[Tensor] = []
    reports: list[ExpertReport | None] = []
    for config, method in (
        (ExpertConfig(top_k=2, renormalise=renormalise), None),
        (ExpertConfig(renormalise=renormalise), FirstTwo()),
    ):
        stage = ExpertStage(structure, config, method)
        with torch.inference_mode(), stage.applied(), stage.counting():
            stage.begin(sequence.visual[0])
            found.append(Decoder(structure).prefill(sequence))
        reports.append(stage.report())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    one, other = reports
    assert one is not None
    assert other is not None
    assert (one.text, one.visual, one.layers) == (other.text, other.visual, other.layers)


def test_what_a_checkpoint_cannot_do_is_said_in_a_sentence(engines: dict[str, Engine]) -> None:
    request = RunRequest("What?")
    with pytest.raises(EngineError, match="this checkpoint is dense"):
        engines["qwen3_vl"].answer(request, settings("alignment"))
    with pytest.raises(ValueError, match=r"experts\.options\.kappa is 200; it must be a number at least 0"):
        engines["qwen3_vl_moe"].answer(request, settings("alignment", {"kappa": 200}))
    with pytest.raises(ValueError, match=r"experts\.method is 'all'; it must be one of off"):
        engines["qwen3_vl_moe"].answer(request, settings("all", {}))
