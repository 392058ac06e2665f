"""What shares one budget, and the promise to every image and frame group in every scope."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engines.cache.encoder import Features
from engines.config import CompressionConfig, PruningConfig
from engines.media import Media
from engines.prompt import VisualItem
from engines.pruning import METHODS, create
from engines.pruning import stage as pruning_stage
from engines.pruning.base import Group, Selection
from engines.pruning.spans import budget, cut_spans, keep_promises
from engines.pruning.stage import choose_rows
from engines.reports import PruneReport
from engines.sequence import Sequence

SCOPES = ("frame", "item", "prompt")
# (frame groups, rows, columns) after the merge of 2 x 2 patches; None of groups is an image
MIXED = [(None, 3, 4), (4, 2, 3), (None, 1, 1), (3, 3, 2)]
SIZES = [(item, rows * columns) for item, (groups, rows, columns) in enumerate(MIXED) for _ in range(groups or 1)]


def test_spans_reach_as_far_as_the_scope() -> None:
    assert cut_spans(SIZES, "frame") == [range(i, i + 1) for i in range(9)]
    assert cut_spans(SIZES, "item") == [range(0, 1), range(1, 5), range(5, 6), range(6, 9)]
    assert cut_spans(SIZES, "prompt") == [range(0, 9)]
    assert cut_spans([], "prompt") == []


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("largest", [1, 7, 12, 20, 55])
def test_a_span_never_outgrows_the_limit(scope: str, largest: int) -> None:
    spans = cut_spans(SIZES, scope, largest)
    assert [index for span in spans for index in span] == list(range(9))
    for span in spans:
        assert len(span) == 1 or sum(tokens for _, tokens in SIZES[span.start : span.stop]) <= largest


@pytest.mark.parametrize("seed", range(40))
def test_promises_are_kept_at_the_lowest_price(seed: int) -> None:
    """Against the obvious: every group's best tokens first, then the best of the rest."""
    draw = random.Random(seed)
    groups: list[Group] = []
    for _ in range(draw.randint(1, 5)):
        start = sum(group.tokens for group in groups)
        groups.append(Group(start, draw.randint(1, 4), draw.randint(1, 5)))
    tokens = sum(group.tokens for group in groups)
    # Few different values, so that there are ties.
    scores = torch.tensor([float(draw.randint(0, 6)) for _ in range(tokens)])
    floors = [min(group.tokens, draw.randint(1, 6)) for group in groups]
    keep = budget(tokens, draw.random(), sum(floors))
    best = sorted(range(tokens), key=lambda token: (-scores[token].item(), token))
    selection = Selection(torch.tensor(sorted(best[:keep])), scores)

    expected = set()
    for group, floor in zip(groups, floors, strict=True):
        own = [token for token in best if group.start <= token < group.start + group.tokens]
        expected |= set(own[:floor])
    for token in best:
        if len(expected) < keep:
            expected.add(token)
    mask = keep_promises(selection, tuple(groups), floors)
    assert set(mask.nonzero().flatten().tolist()) == expected


def make_prompt(seed: int = 0) -> tuple[Sequence, list[tuple[VisualItem, Features]]]:
    """Images and videos with text before, between and after; random features."""
    generator = torch.Generator().manual_seed(seed)
    items = []
    visual: list[bool] = []
    for index, (groups, rows, columns) in enumerate(MIXED):
        frames = 2 * groups if groups else 1
        times = tuple(0.5 * frame for frame in range(frames)) if groups else ()
        pixels = np.zeros((frames, 4, 4, 3), dtype=np.uint8)
        media = Media("video" if groups else "image", f"{index}", pixels, times, None, None, "0" * 64)
        item = VisualItem(index, media, (groups or 1, 2 * rows, 2 * columns), torch.zeros(0))
        tokens = (groups or 1) * rows * columns
        items.append((item, Features(torch.randn(tokens, 8, generator=generator), ())))
        for _ in range(groups or 1):
            visual += [False, False, *[True] * (rows * columns)]
    visual += [False] * 3
    length = len(visual)
    embeddings = torch.randn(1, length, 8, generator=generator)
    positions = torch.arange(length).expand(3, 1, length)
    return Sequence(embeddings, positions, torch.tensor([visual]), (), length), items


def prune(config: PruningConfig, seed: int = 0) -> tuple[torch.Tensor | None, PruneReport, Sequence]:
    sequence, items = make_prompt(seed)
    text = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
    attention = torch.rand(sequence.length, generator=torch.Generator().manual_seed(seed))
    keep, report = choose_rows(
        sequence, items, config, merge=2, temporal_patch=2, seed=seed, text=text, attention=attention
    )
    return keep, report, sequence


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_group_keeps_its_minimum_in_every_scope(method: str, scope: str) -> None:
    for least in (1, 3, 64):
        for ratio in (0.001, 0.2, 0.6):
            config = PruningConfig(method, ratio, scope, least)
            keep, report, sequence = prune(config, seed=least)
            for frame in report.frames:
                assert sum(frame.kept) >= min(least, len(frame.kept))
                assert frame.scores is None or len(frame.scores) == len(frame.kept)
            assert report.tokens_after == sum(sum(frame.kept) for frame in report.frames)
            rows = torch.ones(sequence.length, dtype=torch.bool) if keep is None else keep
            # Text, timestamps among it, stays; visual rows are those of the report, in its order.
            assert rows[~sequence.visual[0]].all()
            assert rows[sequence.visual[0]].tolist() == [cell for frame in report.frames for cell in frame.kept]


# Settings at which a method holds on to no more than the one best token of a span, whatever the budget.
UNPROTECTED = {"dual_threshold": {"entropy_before": 1.0, "task_before": 1.0}}


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].scope is None])
def test_the_budget_is_the_spans(method: str) -> None:
    """Kept tokens of a span are its share to the nearest whole number, however they fall on its groups."""
    kept = {}
    for scope in SCOPES:
        _, report, _ = prune(PruningConfig(method, 0.4, scope, options=UNPROTECTED.get(method, {})))
        kept[scope] = [sum(frame.kept) for frame in report.frames]
        for span in cut_spans(SIZES, scope):
            tokens = sum(SIZES[index][1] for index in span)
            assert sum(kept[scope][index] for index in span) == budget(tokens, 0.4, len(span))
    if method != "random":
        assert kept["item"] != kept["frame"]
        assert kept["prompt"] != kept["item"]


def test_frame_scope_chooses_each_group_as_if_it_were_alone() -> None:
    _, report, _ = prune(PruningConfig("mmr", 0.4))
    _, items = make_prompt()
    embeddings = torch.cat([features.pooled for _, features in items])
    start = 0
    for frame in report.frames:
        tokens = len(frame.kept)
        visual = pruning_stage.Visual(embeddings[start : start + tokens], (Group(0, frame.rows, frame.columns),), 0)
        start += tokens
        kept = create("mmr", {}).select(visual, budget(tokens, 0.4, 1)).kept.tolist()
        assert [index for index, cell in enumerate(frame.kept) if cell] == kept


def test_temporal_shares_over_the_video_and_leaves_images_whole() -> None:
    _, report, _ = prune(PruningConfig("temporal", 0.5, "frame"))
    assert [frame.kept.count(True) for frame in report.frames if frame.kind == "image"] == [12, 1]
    for item, tokens in ((1, 24), (3, 18)):
        groups = [frame for frame in report.frames if frame.item == item]
        assert all(groups[0].kept)
        assert sum(sum(frame.kept) for frame in groups) == tokens // 2
    assert report.achieved_keep_ratio == (12 + 12 + 1 + 9) / 55


def test_a_span_too_large_to_compare_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["mmr"], "largest_span", 20)
    _, report, _ = prune(PruningConfig("mmr", 0.4, "prompt"))
    assert len(report.notes) == 1
    assert "at most 20 visual tokens at once" in report.notes[0]
    assert "3 parts" in report.notes[0]
    _, report, _ = prune(PruningConfig("mmr", 0.4, "frame"))
    assert report.notes == ()


def test_an_unknown_scope_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"pruning\.scope is 'clip'; it must be one of frame, item, prompt"):
        CompressionConfig().with_settings(["pruning.scope=clip"])
