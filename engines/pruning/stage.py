"""Pruning of one prompt: which visual rows go on, where the others are dropped, and the report of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engines.cache.encoder import Features
from engines.config import PruningConfig
from engines.prompt import VisualItem, visual_groups
from engines.pruning import create
from engines.pruning.base import Group, Selector, Visual
from engines.pruning.inside import layer_of
from engines.pruning.merge import merge_dropped
from engines.pruning.spans import budget, cut_spans, keep_promises
from engines.reports import Adaptation, FramePruning, PruneReport
from engines.sequence import Sequence
from engines.structure import LayerCut, Structure
from engines.tokens.group import FrameGroup
from engines.tokens.registry import spread


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
        adaptation: Adaptation | None = None,
    ) -> None:
        """The arguments are those of `choose_rows`. An adaptation's keep ratio goes before that of the settings."""
        self._asked, self._adaptation = config.keep_ratio, adaptation
        if adaptation is not None:
            config = replace(config, keep_ratio=adaptation.used)
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
        keep = self._choose() if self.layer is None else None
        if keep is None:
            return sequence
        if self._config.merge:
            assert self.report is not None
            sequence = merge_dropped(sequence, keep, [frame.tokens for frame in self.report.frames])
        return sequence.select(keep)

    def cut(self, narrow: Callable[[Tensor], None]) -> LayerCut | None:
        """What drops the rows inside the language model, if that is where; `narrow` hears which (length,) go on."""
        if self.layer is None:
            return None

        def choose(attention: Tensor, hidden: Tensor) -> Tensor | None:
            keep = self._choose(attention, hidden)
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
        if (adaptation := self._adaptation) is not None:
            reading = adaptation.reading
            found |= {
                "memory_in_use": reading.memory,
                "cache_misses": reading.cache_misses,
                "utilisation": reading.utilisation,
                "adapted_keep_ratio": adaptation.used,
                "adaptation_triggered": adaptation.triggered,
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

    def _choose(self, attention: Tensor | None = None, hidden: Tensor | None = None) -> Tensor | None:
        keep, report = choose_rows(
            self._sequence,
            self._items,
            self._config,
            merge=self._structure.merge_size,
            temporal_patch=self._temporal_patch,
            seed=self._seed,
            text=self._text,
            attention=attention,
            hidden=hidden,
            depth=(self.layer or 0) / len(self._structure.language_model.layers),
        )
        notes = self._notes + report.notes
        if self._adaptation is not None and self._adaptation.triggered:
            notes = (self._adaptation.sentence, *notes)
        self.report = replace(
            report, asked_keep_ratio=self._asked, layer=self.layer, notes=notes, adaptation=self._adaptation
        )
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
    hidden: Tensor | None = None,
    depth: float = 0.0,
) -> tuple[Tensor | None, PruneReport]:
    """Choose span by span, each with its own budget.

    `items` are in prompt order, so that their tokens one after the other are the visual rows of the sequence;
    `text` is the question's embeddings. If the method prunes inside the language model, `attention` (length,) is what
    each row received in the layer after which it does, `hidden` (length, hidden) the rows as they left it, and
    `depth` the share of the layers up to it. Returns the rows to keep (length,) as bool, or None when
    all stay, and the report.
    """
    method = create(config.method, config.options) if config.active else None
    frames = [_whole(group) for group in visual_groups([item for item, _ in items], merge, temporal_patch)]
    notes: list[str] = []
    if method is not None and frames:
        visual = sequence.visual[0]
        received = None if attention is None else attention[visual]
        rows = torch.cat([features.pooled for _, features in items]) if hidden is None else hidden[visual]
        whole = Visual(rows, (), seed, text, received, depth)
        frames, notes = _prune(method, frames, whole, config)
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
    keep = spread(sequence.visual[0].cpu().numpy(), report.cells)
    return torch.from_numpy(keep).to(sequence.embeddings.device), report


def _whole(group: FrameGroup) -> FramePruning:
    """An image or a frame group of which nothing is dropped."""
    return FramePruning(**vars(group), scores=None, kept=(True,) * group.tokens)


def _prune(
    method: Selector,
    frames: list[FramePruning],
    whole: Visual,
    config: PruningConfig,
) -> tuple[list[FramePruning], list[str]]:
    """The frames with what the method drops of them, and notes for whoever asked.

    `whole` holds all visual tokens, its groups left open, and the seed of the request.
    """
    sizes = [(frame.item, frame.tokens) for frame in frames]
    scope = method.scope or config.scope
    spans = cut_spans(sizes, scope, method.largest_span)
    notes = []
    if len(spans) > len(cut_spans(sizes, scope)):
        notes.append(
            f"{method.label} compares at most {method.largest_span:,} visual tokens at once, so these were chosen in "
            f"{len(spans)} parts, each with its share of the budget."
        )
    pruned: list[FramePruning] = []
    start = protected = 0
    for span in spans:
        groups: list[Group] = []
        tokens = 0
        for frame in frames[span.start : span.stop]:
            groups.append(Group(tokens, frame.rows, frame.columns))
            tokens += groups[-1].tokens
        first = frames[span.start]
        own_seed = whole.seed + 1009 * first.item + span.start - [item for item, _ in sizes].index(first.item)
        own = slice(start, start + tokens)
        start += tokens
        received = None if whole.attention is None else whole.attention[own]
        visual = replace(
            whole, embeddings=whole.embeddings[own], groups=tuple(groups), seed=own_seed, attention=received
        )
        floors = method.floors(visual.groups, config.min_tokens)
        selection = method.select(visual, budget(tokens, config.keep_ratio, sum(floors)))
        mask = keep_promises(selection, visual.groups, floors)
        if selection.protected is not None:
            # What one group gave up for another's floor may have been protected.
            mask |= selection.protected.cpu()
            protected += int(mask.sum()) - budget(tokens, config.keep_ratio, sum(floors))
        kept = mask.tolist()
        scores = None if selection.scores is None else selection.scores.tolist()
        for frame, group in zip(frames[span.start : span.stop], groups, strict=True):
            shown = None if scores is None else tuple(scores[group.rows_of])
            pruned.append(replace(frame, scores=shown, kept=tuple(kept[group.rows_of])))
    if protected:
        notes.append(
            f"{method.label} keeps {protected:,} visual tokens more than the keep ratio asks for: its thresholds "
            "protect them; lower thresholds protect more, 1 the fewest."
        )
    return pruned, notes
