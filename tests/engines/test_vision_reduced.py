"""The reduced vision tower: against a tower written out layer by layer, and in whole runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.cache.encoder import LEVEL
from engines.config import CompressionConfig, SamplingConfig, VisionConfig
from engines.engine import Engine
from engines.media import load_all
from engines.prompt import VisualItem, build_prompt
from engines.results import RunRequest, RunResult
from engines.structure import Structure
from engines.vision import METHODS, create
from engines.vision.base import Units, units_kept
from engines.vision.fidelity import neighbour_overlap, neighbourhood_similarity
from engines.vision.reduced import reduced_tower
from engines.vision.torch_tower import encode_items
from tests.checkpoints import FAMILIES
from tests.engines.test_off_is_identical import capture_logits
from tests.timing import answer_undisturbed

HALF = CompressionConfig.full().with_settings(["vision.keep_ratio=0.5"])
CASES = {
    "image": ["wide"],
    "several images": ["wide", "tall", "wide"],
    "video": ["clip"],
    "image with video": ["tall", "clip"],
}


def make_request(media_files: dict[str, Path], *names: str, tokens: int = 6) -> RunRequest:
    paths = tuple(media_files[name] for name in names)
    return RunRequest("What colour is the block?", paths, sampling=SamplingConfig(max_new_tokens=tokens))


def items_of(engine: Engine, media_files: dict[str, Path], *names: str) -> list[VisualItem]:
    request = make_request(media_files, *names)
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    return build_prompt(request, media, engine.checkpoint.processor, engine.checkpoint.device).in_prompt_order()


def first_inputs(visual: Any, pixels: Tensor, grid: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """What the first block is given in a whole pass of the tower: patch embeddings, and positions by name."""
    seen: list[tuple[Tensor, dict[str, Any]]] = []
    handle = visual.blocks[0].register_forward_pre_hook(
        lambda _block, inputs, named: seen.append((inputs[0], named)), with_kwargs=True
    )
    visual(pixels, grid_thw=grid)
    handle.remove()
    return seen[0]


def slow_tower(structure: Structure, item: VisualItem, config: VisionConfig) -> tuple[Tensor, list[Tensor]]:
    """Frame group by frame group and unit by unit: what the docstring of TowerCut says, with loops."""
    visual, pooled, taps = structure.visual, [], []
    for group in range(item.groups):
        hidden, named = first_inputs(visual, item.group_pixels(group), torch.tensor([(1, *item.grid[1:])]))
        rows, (cos, sin) = hidden, named["position_embeddings"]
        members: dict[int, list[int]] = {}
        found = {}
        for number, block in enumerate(visual.blocks, start=1):
            if number == config.after_layer:
                heads = block.attn.num_heads
                keys = block.attn.qkv(block.norm1(rows)).view(len(rows), 3, heads, -1)[:, 1].mean(1)
                entered = rows
            length = torch.tensor([0, len(rows)], dtype=torch.int32)
            rows = block(rows, cu_seqlens=length, position_embeddings=(cos, sin))
            if number == config.after_layer:
                own = rows.view(-1, 4, rows.shape[-1])
                units = Units(*(part.reshape(len(own), -1) for part in (keys, entered, rows)))
                owner = create(config.method, config.options).assign(units, units_kept(len(own), config.keep_ratio))
                for place, stands in enumerate(owner.tolist()):
                    if stands >= 0:
                        members.setdefault(stands, []).append(place)
                members = dict(sorted(members.items()))
                start = torch.stack([own[places].mean(0) for places in members.values()])
                rows = start.flatten(0, 1)
                going = torch.tensor([patch for unit in members for patch in range(4 * unit, 4 * unit + 4)])
                cos, sin = cos[going], sin[going]
            whole = rows
            if number >= config.after_layer:
                now, back = rows.view(-1, 4, rows.shape[-1]), own.clone()
                for index, places in enumerate(members.values()):
                    for place in places:
                        back[place] = own[place] + now[index] - start[index]
                whole = back.flatten(0, 1)
            deepstack = list(getattr(visual, "deepstack_visual_indexes", []))
            if number - 1 in deepstack:
                found[number] = visual.deepstack_merger_list[deepstack.index(number - 1)](whole)
        pooled.append(visual.merger(whole))
        taps.append(list(found.values()))
    return torch.cat(pooled), [torch.cat(layer) for layer in zip(*taps, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layer", [1, 2])
def test_features_equal_the_slow_tower(
    engines: dict[str, Engine], media_files: dict[str, Path], family: str, method: str, layer: int
) -> None:
    """Several images at once, and a clip: nothing crosses an image or a frame group."""
    engine = engines[family]
    structure = engine.checkpoint.structure
    config = VisionConfig(method, 0.4, layer)
    with torch.inference_mode():
        for names in (["wide", "tall", "wide"], ["clip"]):
            items = items_of(engine, media_files, *names)
            for item, features in zip(items, encode_items(structure, items, config), strict=True):
                pooled, taps = slow_tower(structure, item, config)
                torch.testing.assert_close(features.pooled, pooled, atol=2e-4, rtol=2e-4)
                assert len(features.deepstack) == len(taps) == structure.deepstack_layers
                for ours, theirs in zip(features.deepstack, taps, strict=True):
                    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_a_unit_that_goes_on_alone_is_computed_to_the_bit_when_all_do(
    moe: Engine, media_files: dict[str, Path]
) -> None:
    """A ratio that rounds to every unit goes through the cut, and changes nothing."""
    items = items_of(moe, media_files, "wide", "tall")
    with torch.inference_mode():
        whole = encode_items(moe.checkpoint.structure, items)
        cut = encode_items(moe.checkpoint.structure, items, VisionConfig("merging", 0.9999, 2))
    for one, other in zip(whole, cut, strict=True):
        assert torch.equal(one.pooled, other.pooled)
        assert all(torch.equal(a, b) for a, b in zip(one.deepstack, other.deepstack, strict=True))


@pytest.mark.parametrize("assignment", [*(f"vision.method={name}" for name in METHODS), "vision.after_layer=2"])
def test_ratio_1_is_the_whole_tower(moe: Engine, media_files: dict[str, Path], assignment: str) -> None:
    request = make_request(media_files, "wide", "clip")
    full, tokens = capture_logits(moe, request, CompressionConfig.full())
    config = CompressionConfig.full().with_settings([assignment, "vision.measure_fidelity=true"])
    neutral, neutral_tokens = capture_logits(moe, request, config)
    assert torch.equal(neutral, full)
    assert neutral_tokens == tokens


@pytest.fixture
def tower_hooks(moe: Engine) -> Iterator[None]:
    """Afterwards no module of the tower has a hook."""
    yield
    for module in moe.checkpoint.structure.visual.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("tower_hooks")
def test_a_run_keeps_its_shapes_and_reports(moe: Engine, media_files: dict[str, Path], case: str) -> None:
    request = make_request(media_files, *CASES[case])
    full = moe.answer(request, CompressionConfig.full())
    half = moe.answer(request, HALF.with_settings(["vision.measure_fidelity=true"]))
    assert (half.prompt_tokens, half.visual_tokens) == (full.prompt_tokens, full.visual_tokens)
    assert full.vision_report is not None
    assert half.vision_report is not None
    assert full.vision_report.method is None
    assert full.vision_report.units_after == full.vision_report.units_before == full.visual_tokens
    assert half.vision_report.units_before == full.visual_tokens
    assert half.vision_report.achieved_keep_ratio == pytest.approx(0.5, abs=0.02)
    assert half.vision_report.fidelity is not None
    assert full.vision_report.fidelity is None
    frames = half.prune_report.frames
    assert [(frame.item, frame.frames) for frame in half.vision_report.fidelity] == [
        (frame.item, frame.frames) for frame in frames
    ]
    for frame in half.vision_report.fidelity:
        assert len(frame.similarity) == len(frame.overlap) == frame.rows * frame.columns
        assert frame.mean_similarity is not None
        assert -1 <= frame.mean_similarity < 1
        assert frame.mean_overlap is not None
        assert 0 <= frame.mean_overlap < 1
    span = half.trace.named("vision encode")[0]
    assert span.attributes["units_after"] == half.vision_report.units_after
    again, _ = capture_logits(moe, request, CompressionConfig.full())
    reduced, _ = capture_logits(moe, request, HALF)
    assert not torch.equal(again, reduced), "the switch changes something"


@pytest.mark.parametrize("method", METHODS)
def test_an_image_of_one_token_stays_as_it_is(moe: Engine, method: str) -> None:
    """Beside a larger one in the same pass, which does not."""
    structure = moe.checkpoint.structure
    pixels = torch.randn(4 + 24, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(0))
    grids = torch.tensor([(1, 2, 2), (1, 4, 6)])
    with torch.inference_mode():
        whole = structure.core.get_image_features(pixels, grids, return_dict=True)
        with reduced_tower(structure, VisionConfig(method, 0.05, 1)):
            reduced = structure.core.get_image_features(pixels, grids, return_dict=True)
    for full, ours in zip(
        (whole.pooler_output, *whole.deepstack_features), (reduced.pooler_output, *reduced.deepstack_features),
        strict=True,
    ):  # fmt: skip
        assert [len(one) for one in ours] == [1, 6]
        torch.testing.assert_close(ours[0], full[0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(reduced.pooler_output[1], whole.pooler_output[1], atol=1e-3)


def test_fidelity_is_outside_the_timed_run(moe: Engine, media_files: dict[str, Path]) -> None:
    measured = HALF.with_settings(["vision.measure_fidelity=true"])
    result = answer_undisturbed(moe, make_request(media_files, "wide"), measured)
    assert len(result.trace.named("vision encode")) == 1
    assert result.trace.unaccounted_s <= 0.03 * result.trace.total_s + 0.002
    report = json.loads(result.to_json())["vision_report"]
    assert report["achieved_keep_ratio"] == 0.5
    assert report["fidelity"][0]["mean_overlap"] is not None


def test_nothing_to_encode_is_nothing_to_report(moe: Engine, media_files: dict[str, Path]) -> None:
    assert moe.answer(make_request(media_files), HALF).vision_report is None


def test_pruning_works_on_top_of_it(moe: Engine, media_files: dict[str, Path]) -> None:
    result = moe.answer(make_request(media_files, "wide", "clip"), HALF.with_settings(["pruning.keep_ratio=0.5"]))
    assert result.prune_report.achieved_keep_ratio == pytest.approx(0.5, abs=0.05)


CACHED = CompressionConfig.full().with_settings(["cache.encoder=true"])
KEYS = {
    "ratio": ["vision.keep_ratio=0.25"],
    "layer": ["vision.keep_ratio=0.5", "vision.after_layer=2"],
    "method": ["vision.keep_ratio=0.5", "vision.method=still"],
}


@pytest.mark.parametrize("case", KEYS)
def test_a_reduced_towers_features_serve_only_the_same_reduction(
    moe: Engine, media_files: dict[str, Path], case: str
) -> None:
    """Whole, half and another reduction after one another, each twice: a hit only the second time, the same answer."""
    request = make_request(media_files, "wide", "clip", tokens=8)
    half = CACHED.with_settings(["vision.keep_ratio=0.5"])
    for config in (CACHED, half, CACHED.with_settings(KEYS[case])):
        first, second = moe.answer(request, config), moe.answer(request, config)
        assert hits(first) == 0
        assert hits(second) == second.cache_stats.run[LEVEL].queries
        uncached = moe.answer(request, config.with_settings(["cache.encoder=false"]))
        assert first.tokens == second.tokens == uncached.tokens
    neutral = CACHED.with_settings(["vision.method=still", "vision.measure_fidelity=true"])
    assert hits(moe.answer(request, neutral)) > 0, "switched off it is the whole tower, whatever the method"


def hits(result: RunResult) -> int:
    return result.cache_stats.run[LEVEL].hits


def test_a_layer_that_the_tower_does_not_have_is_refused(moe: Engine, media_files: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"vision\.after_layer is 3; this checkpoint's vision tower allows 1 to 2"):
        moe.answer(make_request(media_files, "wide"), HALF.with_settings(["vision.after_layer=3"]))
    assert moe.capabilities().tower_layers == 2


# ---- the figures ----


def slow_similarity(full: Tensor, reduced: Tensor, rows: int, columns: int) -> list[float]:
    found = []
    for row in range(rows):
        for column in range(columns):
            around = [
                r * columns + c
                for r in range(max(0, row - 1), min(rows, row + 2))
                for c in range(max(0, column - 1), min(columns, column + 2))
            ]
            one, other = ((part[around] - part[around].mean(0)).flatten() for part in (full, reduced))
            norms = one.norm(), other.norm()
            empty = [bool(norm < 1e-5) for norm in norms]
            if any(empty):
                found.append(float(all(empty)))
            else:
                found.append(float(one @ other / (norms[0] * norms[1])))
    return found


def slow_overlap(full: Tensor, reduced: Tensor, nearest: int) -> list[float]:
    found = []
    for token in range(len(full)):
        sets = []
        for rows in (full, reduced):
            likeness = torch.nn.functional.cosine_similarity(rows[token], rows, dim=-1).tolist()
            others = [other for other in range(len(rows)) if other != token]
            sets.append(set(sorted(others, key=lambda other: -likeness[other])[:nearest]))
        found.append(len(sets[0] & sets[1]) / len(sets[0]) if sets[0] else 1.0)
    return found


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (1, 7), (3, 3), (5, 9)])
def test_figures_equal_the_slow_ones(grid: tuple[int, int]) -> None:
    rows, columns = grid
    generator = torch.Generator().manual_seed(rows)
    # A large common offset, as features of a tower have.
    full = torch.randn(rows * columns, 12, generator=generator) + 3.0
    reduced = full + 0.5 * torch.randn(rows * columns, 12, generator=generator)
    similarity = neighbourhood_similarity(full, reduced, rows, columns)
    torch.testing.assert_close(
        similarity, torch.tensor(slow_similarity(full.double(), reduced.double(), rows, columns)).double(),
        atol=1e-6, rtol=1e-6,
    )  # fmt: skip
    nearest = min(4, rows * columns - 1)
    assert neighbour_overlap(full, reduced, 4).tolist() == pytest.approx(slow_overlap(full, reduced, nearest))
    assert neighbourhood_similarity(full, full, rows, columns).tolist() == pytest.approx([1.0] * len(full))
    assert neighbour_overlap(full, full).tolist() == [1.0] * len(full)


def test_a_neighbourhood_made_even_has_lost_its_response() -> None:
    full = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    even = torch.ones(9, 5) * 0.3
    assert neighbourhood_similarity(full, even, 3, 3).tolist() == [0.0] * 9
    assert neighbourhood_similarity(even, even, 3, 3).tolist() == [1.0] * 9
