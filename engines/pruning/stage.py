"""Pruning of one prompt: which visual rows go on, where the others are dropped, and the report of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engines.cache.encoder import Features
from engines.config import PruningConfig
from engines.prompt import VisualItem, frame_groups
from engines.pruning import create
from engines.pruning.base import Group, Selector, Visual
from engines.pruning.inside import layer_of
from engines.pruning.merge import merge_dropped
from engines.pruning.spans import budget, cut_spans, keep_promises
from engines.results import FramePruning, PruneReport
from engines.sequence import Sequence
from engines.structure import LayerCut, Structure


class PruneStage:
    """Prunes one sequence, before the language model or after one of its layers; `report` is there once it is done."""

    def __init__(
        self,
        structure: Structure,
        config: PruningConfig,
        sequence: Sequence,
        items: list[tuple[VisualItem, Features]],
        *,
        temporal_patch: int,
        seed: int,
        text: Tensor | None,
    ) -> None:
        """The arguments are those of `choose_rows`."""
        self._structure, self._config, self._sequence, self._items = structure, config, sequence, items
        self._temporal_patch, self._seed, self._text = temporal_patch, seed, text
        self.report: PruneReport | None = None
        self.layer: int | None = None
        """The layer, counted from 1, after which tokens are dropped; None: before the first."""
        self._notes: tuple[str, ...] = ()
        if sequence.visual_tokens:
            self.layer, self._notes = layer_of(config, structure)

    def enter(self) -> Sequence:
        """The sequence as it enters the language model."""
        sequence = self._sequence
        keep = self._choose(None) if self.layer is None else None
        if keep is None:
            return sequence
        if self._config.merge:
            assert self.report is not None
            sequence = merge_dropped(sequence, keep, [len(frame.kept) for frame in self.report.frames])
        return sequence.select(keep)

    def cut(self, narrow: Callable[[Tensor], None]) -> LayerCut | None:
        """What drops the rows inside the language model, if that is where; `narrow` hears which (length,) go on."""
        if self.layer is None:
            return None

        def choose(attention: Tensor) -> Tensor | None:
            keep = self._choose(attention)
            if keep is not None:
                narrow(keep)
            return keep

        return LayerCut(self._structure, self.layer, choose)

    def attributes(self) -> dict[str, Any]:
        """For the span of this stage."""
        config = self._config
        found: dict[str, Any] = {
            "method": config.method if config.active else "off",
            "tokens_before": self._sequence.visual_tokens,
        }
        if self.report is None:
            return found | {"after_layer": self.layer}
        found["tokens_after"] = self.report.tokens_after
        if config.active and config.merge:
            found["merged_tokens"] = self.report.tokens_before - self.report.tokens_after
        return found

    def inside_attributes(self) -> dict[str, Any]:
        """For the span of the prefill, once it is over."""
        if self.layer is None or self.report is None:
            return {}
        return {"pruned_after_layer": self.layer, "visual_tokens_after": self.report.tokens_after}

    def _choose(self, attention: Tensor | None) -> Tensor | None:
        keep, report = choose_rows(
            self._sequence,
            self._items,
            self._config,
            merge=self._structure.merge_size,
            temporal_patch=self._temporal_patch,
            seed=self._seed,
            text=self._text,
            attention=attention,
        )
        self.report = replace(report, layer=self.layer, notes=self._notes + report.notes)
        return keep


def choose_rows(
    sequence: Sequence,
    items: list[tuple[VisualItem, Features]],
    config: PruningConfig,
    *,
    merge: int,
    temporal_patch: int,
    seed: int,
    text: Tensor | None = None,
    attention: Tensor | None = None,
) -> tuple[Tensor | None, PruneReport]:
    """Choose span by span, each with its own budget.

    `items` are in prompt order, so that their tokens one after the other are the visual rows of the sequence;
    `text` is the question's embeddings, `attention` (length,) what each row received in the layer after which the
    method prunes, if it prunes inside the language model. Returns the rows to keep (length,) as bool, or None when
    all stay, and the report.
    """
    method = create(config.method, config.options) if config.active else None
    frames = [frame for item, _ in items for frame in _whole_frames(item, merge, temporal_patch)]
    notes: list[str] = []
    if method is not None and frames:
        received = None if attention is None else attention[sequence.visual[0]]
        frames, notes = _prune(method, frames, items, config, seed, text, received)
    before = sequence.visual_tokens
    after = sum(sum(frame.kept) for frame in frames)
    report = PruneReport(
        method=config.method if config.active else None,
        asked_keep_ratio=config.keep_ratio,
        tokens_before=before,
        tokens_after=after,
        frames=tuple(frames),
        notes=tuple(notes),
    )
    if after == before:
        return None, report
    keep = torch.ones(sequence.length, dtype=torch.bool, device=sequence.embeddings.device)
    kept = [cell for frame in frames for cell in frame.kept]
    keep[sequence.visual[0]] = torch.tensor(kept, device=keep.device)
    return keep, report


def _whole_frames(item: VisualItem, merge: int, temporal_patch: int) -> list[FramePruning]:
    """The image or the frame groups of an item, nothing dropped."""
    rows, columns = item.grid[1] // merge, item.grid[2] // merge
    return [
        FramePruning(
            item=item.index,
            name=item.media.name,
            kind=item.media.kind,
            frames=shown,
            timestamp_s=timestamp_s,
            rows=rows,
            columns=columns,
            scores=None,
            kept=(True,) * (rows * columns),
        )
        for shown, timestamp_s in frame_groups(item, temporal_patch)
    ]


def _prune(
    method: Selector,
    frames: list[FramePruning],
    items: list[tuple[VisualItem, Features]],
    config: PruningConfig,
    seed: int,
    text: Tensor | None,
    attention: Tensor | None,
) -> tuple[list[FramePruning], list[str]]:
    """The frames with what the method drops of them, and notes for whoever asked."""
    rows = [features.pooled for _, features in items]
    embeddings = rows[0] if len(rows) == 1 else torch.cat(rows)
    sizes = [(frame.item, len(frame.kept)) for frame in frames]
    scope = method.scope or config.scope
    spans = cut_spans(sizes, scope, method.largest_span)
    notes = []
    if len(spans) > len(cut_spans(sizes, scope)):
        notes.append(
            f"{method.label} compares at most {method.largest_span:,} visual tokens at once, so these were chosen in "
            f"{len(spans)} parts, each with its share of the budget."
        )
    pruned: list[FramePruning] = []
    start = 0
    for span in spans:
        groups: list[Group] = []
        tokens = 0
        for frame in frames[span.start : span.stop]:
            groups.append(Group(tokens, frame.rows, frame.columns))
            tokens += groups[-1].tokens
        first = frames[span.start]
        own_seed = seed + 1009 * first.item + span.start - [item for item, _ in sizes].index(first.item)
        own = slice(start, start + tokens)
        start += tokens
        received = None if attention is None else attention[own]
        visual = Visual(embeddings[own], tuple(groups), own_seed, text, received)
        floors = method.floors(visual.groups, config.min_tokens)
        selection = method.select(visual, budget(tokens, config.keep_ratio, sum(floors)))
        kept = keep_promises(selection, visual.groups, floors).tolist()
        scores = None if selection.scores is None else selection.scores.tolist()
        for frame, group in zip(frames[span.start : span.stop], groups, strict=True):
            shown = None if scores is None else tuple(scores[group.rows_of])
            pruned.append(replace(frame, scores=shown, kept=tuple(kept[group.rows_of])))
    return pruned, notes
