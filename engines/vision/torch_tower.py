"""The vision tower on PyTorch, through the model's own `get_image_features` and `get_video_features`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.cache.encoder import Features
from engines.config import VisionConfig
from engines.prompt import VisualItem
from engines.structure import Structure
from engines.vision.reduced import reduced_tower

OFF = VisionConfig()


def encode_items(structure: Structure, items: Sequence[VisualItem], reduction: VisionConfig = OFF) -> list[Features]:
    """Encode whole images, or whole videos, in one call, as transformers' forward pass does. All of one kind."""
    pixels = torch.cat([item.pixels for item in items]) if len(items) > 1 else items[0].pixels
    grids = torch.tensor([item.grid for item in items], device=pixels.device)
    return _encode(structure, pixels, grids, items[0].media.kind, reduction)


def encode_groups(
    structure: Structure, item: VisualItem, groups: Sequence[int], reduction: VisionConfig = OFF
) -> list[Features]:
    """Encode only some frame groups of an item; attention never crosses groups, so they stand alone."""
    pixels = torch.cat([item.group_pixels(group) for group in groups])
    grids = torch.tensor([(1, *item.grid[1:])] * len(groups), device=pixels.device)
    return _encode(structure, pixels, grids, item.media.kind, reduction)


def _encode(structure: Structure, pixels: Tensor, grids: Tensor, kind: str, reduction: VisionConfig) -> list[Features]:
    core = structure.core
    encode = core.get_image_features if kind == "image" else core.get_video_features
    with reduced_tower(structure, reduction):
        output = encode(pixels, grids, return_dict=True)
    deepstack = getattr(output, "deepstack_features", None) or []
    return [
        Features(pooled, tuple(layer[position] for layer in deepstack))
        for position, pooled in enumerate(output.pooler_output)
    ]


def join(parts: Sequence[Features]) -> Features:
    """One set of features out of its frame groups."""
    if len(parts) == 1:
        return parts[0]
    layers = zip(*(part.deepstack for part in parts), strict=True)
    return Features(torch.cat([part.pooled for part in parts]), tuple(torch.cat(layer) for layer in layers))
