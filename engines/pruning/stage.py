"""Pruning before the language model: which rows of the sequence stay, and the report of it."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.cache.encoder import Features
from engines.config import PruningConfig
from engines.prompt import VisualItem, frame_groups
from engines.pruning import create
from engines.pruning.base import Selector, Visual
from engines.results import FramePruning, PruneReport
from engines.sequence import Sequence


def budget(tokens: int, config: PruningConfig) -> int:
    """How many of an image's or frame group's tokens are kept: the nearest whole number, within its bounds."""
    asked = int(tokens * config.keep_ratio + 0.5)
    return min(tokens, max(asked, config.min_tokens, 1))


def choose_rows(
    sequence: Sequence,
    items: list[tuple[VisualItem, Features]],
    config: PruningConfig,
    *,
    merge: int,
    temporal_patch: int,
    seed: int,
) -> tuple[Tensor | None, PruneReport]:
    """Choose per image and per frame group.

    `items` are in prompt order, so that their tokens one after the other are the visual rows of the sequence.
    Returns the rows to keep (length,) as bool, or None when all stay, and the report.
    """
    method = create(config.method, config.options) if config.active else None
    frames: list[FramePruning] = []
    kept_visual: list[Tensor] = []
    for item, features in items:
        rows, columns = item.grid[1] // merge, item.grid[2] // merge
        tokens = rows * columns
        for group, (shown, timestamp_s) in enumerate(frame_groups(item, temporal_patch)):
            visual = Visual(
                embeddings=features.pooled[group * tokens : (group + 1) * tokens],
                rows=rows,
                columns=columns,
                seed=seed + 1009 * item.index + group,
            )
            kept, scores = _choose(method, visual, budget(tokens, config))
            kept_visual.append(kept)
            frames.append(
                FramePruning(
                    item=item.index,
                    name=item.media.name,
                    kind=item.media.kind,
                    frames=shown,
                    timestamp_s=timestamp_s,
                    rows=rows,
                    columns=columns,
                    scores=None if scores is None else tuple(scores.tolist()),
                    kept=tuple(kept.tolist()),
                )
            )
    before = sequence.visual_tokens
    after = sum(sum(frame.kept) for frame in frames)
    report = PruneReport(
        method=config.method if config.active else None,
        asked_keep_ratio=config.keep_ratio,
        tokens_before=before,
        tokens_after=after,
        frames=tuple(frames),
    )
    if after == before:
        return None, report
    keep = torch.ones(sequence.length, dtype=torch.bool, device=sequence.embeddings.device)
    keep[sequence.visual[0]] = torch.cat(kept_visual).to(keep.device)
    return keep, report


def _choose(method: Selector | None, visual: Visual, keep: int) -> tuple[Tensor, Tensor | None]:
    tokens = visual.rows * visual.columns
    if method is None:
        return torch.ones(tokens, dtype=torch.bool), None
    selection = method.select(visual, keep)
    mask = torch.zeros(tokens, dtype=torch.bool)
    mask[selection.kept.cpu()] = True
    return mask, selection.scores
