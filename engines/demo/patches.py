"""The patch embedding as a matrix product: same result, and a convolution's backward pass is slow on a CPU."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3VLMoeForConditionalGeneration


def embed_patches(patches: torch.Tensor, projection: nn.Conv3d) -> torch.Tensor:
    """patches (n, channels * frames * height * width), one kernel each; returns (n, width)."""
    return F.linear(patches, projection.weight.flatten(1), projection.bias)


def use_linear_patches(model: Qwen3VLMoeForConditionalGeneration) -> None:
    """Let a transformers model embed its patches with `embed_patches`."""
    embedding = model.model.visual.patch_embed
    embedding.forward = partial(embed_patches, projection=embedding.proj)
