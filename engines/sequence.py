"""The sequence that enters the language model: embeddings, positions, visual mask and deepstack rows together.

It is built whole, with the positions of the whole prompt, and pruned by one index over everything.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engines.cache.encoder import Features
from engines.prompt import Prompt
from engines.structure import Structure


@dataclass(frozen=True)
class Sequence:
    """Inputs of the language model for one prompt."""

    embeddings: Tensor
    """(1, length, hidden)."""
    positions: Tensor
    """(3, 1, length): M-RoPE positions in time, height and width, as in the unpruned prompt."""
    visual: Tensor
    """(1, length) bool: which positions hold visual tokens."""
    deepstack: tuple[Tensor, ...]
    """(visual tokens, hidden) for each deepstack layer."""
    next_position: int
    """Position of the first new token: one past the largest of the unpruned prompt."""

    @property
    def length(self) -> int:
        return self.embeddings.shape[1]

    @property
    def visual_tokens(self) -> int:
        return int(self.visual.sum())

    def select(self, keep: Tensor) -> Sequence:
        """Only the rows where `keep` (length,) is true, in their order and at their own positions."""
        return replace(
            self,
            embeddings=self.embeddings[:, keep],
            positions=self.positions[:, :, keep],
            visual=self.visual[:, keep],
            deepstack=tuple(layer[keep[self.visual[0]]] for layer in self.deepstack),
        )


def build_sequence(
    structure: Structure,
    prompt: Prompt,
    images: Items[Features],
    videos: Items[Features],
    positions: Tensor | None = None,
) -> Sequence:
    """Put the features in the places that the processor left for them, as transformers' forward pass does.

    `positions` (3, 1, length) are those of the prompt, if they are known already.
    """
    core, ids = structure.core, prompt.input_ids
    embeddings = core.get_input_embeddings()(ids)
    masks = {}
    for kind, token, features in (
        ("image", core.config.image_token_id, images),
        ("video", core.config.video_token_id, videos),
    ):
        if not features:
            continue
        masks[kind] = ids == token
        rows = torch.cat([item.pooled for item in features]).to(embeddings.device, embeddings.dtype)
        embeddings = embeddings.masked_scatter(masks[kind].unsqueeze(-1), rows)
    visual = torch.zeros_like(ids, dtype=torch.bool)
    for mask in masks.values():
        visual = visual | mask
    if positions is None:
        positions = prompt_positions(structure, prompt)
    return Sequence(
        embeddings=embeddings,
        positions=positions,
        visual=visual,
        deepstack=_join_deepstack(masks, visual, images, videos),
        next_position=int(positions.max()) + 1,
    )


def prompt_positions(structure: Structure, prompt: Prompt) -> Tensor:
    """(3, 1, length): the M-RoPE positions of the unpruned prompt, which need no features."""
    inputs = prompt.inputs
    positions, _ = structure.core.get_rope_index(
        prompt.input_ids,
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
        video_grid_thw=inputs.get("video_grid_thw"),
    )
    return positions


def text_after(structure: Structure, prompt: Prompt, positions: Tensor, start: int) -> Sequence:
    """The prompt from `start` on, where it is text alone; `positions` (3, 1, length) are those of the whole prompt."""
    ids = prompt.input_ids[:, start:]
    return Sequence(
        embeddings=structure.core.get_input_embeddings()(ids),
        positions=positions[:, :, start:],
        visual=torch.zeros_like(ids, dtype=torch.bool),
        deepstack=(),
        next_position=int(positions.max()) + 1,
    )


def embed_question(structure: Structure, prompt: Prompt) -> Tensor | None:
    """(n, hidden): the last question's tokens as they enter the language model; None if it has none."""
    return structure.core.get_input_embeddings()(prompt.question_ids)[0] if prompt.question_ids.numel() else None


def _join_deepstack(
    masks: dict[str, Tensor], visual: Tensor, images: Items[Features], videos: Items[Features]
) -> tuple[Tensor, ...]:
    kinds = [(kind, items) for kind, items in (("image", images), ("video", videos)) if items]
    if not kinds:
        return ()
    layers = []
    for layer in range(len(kinds[0][1][0].deepstack)):
        by_kind = {kind: torch.cat([item.deepstack[layer] for item in items]) for kind, items in kinds}
        if len(kinds) == 1:
            layers.append(by_kind[kinds[0][0]])
            continue
        # Images and videos may alternate in the prompt: rows go where their own tokens are.
        rows = by_kind["image"]
        joint = rows.new_zeros(int(visual.sum()), rows.shape[-1])
        for kind, rows in by_kind.items():
            joint[masks[kind][visual]] = rows
        layers.append(joint)
    return tuple(layers)
