"""What the reduction of the vision tower did in one run."""

from __future__ import annotations

from collections.abc import Sequence

from engines.cache.encoder import Features
from engines.config import VisionConfig
from engines.prompt import VisualItem, visual_groups
from engines.reports import FrameFidelity, VisionReport
from engines.structure import Structure
from engines.vision.base import units_kept
from engines.vision.fidelity import NEAREST, neighbour_overlap, neighbourhood_similarity
from engines.vision.torch_tower import encode_items

Encoded = Sequence[tuple[VisualItem, Features]]


def describe(config: VisionConfig, structure: Structure, items: Sequence[VisualItem]) -> VisionReport:
    """How many units the later layers compute: known from the sizes, whether or not a cache had the features."""
    sizes = [item.grid[1] * item.grid[2] // structure.merge_size**2 for item in items for _ in range(item.groups)]
    kept = [units_kept(size, config.keep_ratio) if config.active else size for size in sizes]
    return VisionReport(
        method=config.method if config.active else None,
        asked_keep_ratio=config.keep_ratio,
        after_layer=config.after_layer if config.active else None,
        layers=len(structure.visual.blocks),
        units_before=sum(sizes),
        units_after=sum(kept),
    )


def measure(structure: Structure, encoded: Encoded, temporal_patch: int) -> tuple[FrameFidelity, ...]:
    """Compare the features of a run, in prompt order, with those of the whole tower, which runs for it."""
    found = []
    for item, reduced in encoded:
        full = encode_items(structure, [item])[0].pooled
        for place, group in enumerate(visual_groups([item], structure.merge_size, temporal_patch)):
            own = slice(place * group.tokens, (place + 1) * group.tokens)
            similarity = neighbourhood_similarity(full[own], reduced.pooled[own], group.rows, group.columns)
            overlap = neighbour_overlap(full[own], reduced.pooled[own])
            found.append(
                FrameFidelity(
                    **vars(group),
                    similarity=tuple(similarity.tolist()),
                    overlap=tuple(overlap.tolist()),
                    nearest=min(NEAREST, group.tokens - 1),
                )
            )
    return tuple(found)
