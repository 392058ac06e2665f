"""The registry of a prompt, from its token ids and grids; and what the language model takes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.prompt import Prompt, visual_groups
from engines.sequence import prompt_positions
from engines.structure import Structure
from engines.tokens.registry import TokenRegistry


def registry_of(structure: Structure, prompt: Prompt, temporal_patch: int) -> TokenRegistry:
    """Of the whole prompt, before anything is dropped."""
    config = structure.core.config
    return TokenRegistry.of(
        prompt.input_ids[0].cpu().numpy(),
        prompt_positions(structure, prompt)[:, 0].cpu().numpy(),
        (config.image_token_id, config.video_token_id),
        visual_groups(prompt.in_prompt_order(), structure.merge_size, temporal_patch),
        merge=structure.merge_size,
        patch_px=int(config.vision_config.patch_size),
        layers=structure.attention_layers,
    )


def positions_of(registry: TokenRegistry, device: torch.device) -> Tensor:
    """(3, 1, length): M-RoPE, as the language model takes it."""
    return torch.from_numpy(registry.positions).unsqueeze(1).to(device)


def rows_visual(registry: TokenRegistry, device: torch.device) -> Tensor:
    """(rows,) bool: which rows of the sequence that enters the language model are visual."""
    return torch.from_numpy(registry.visual[registry.entered]).to(device)
