"""The shape of an expert-skipping method: one dataclass of parameters and one method that chooses pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.methods import Method


@dataclass(frozen=True)
class Prompt:
    """The embeddings of a prompt as they enter the language model, and which of them are visual."""

    embeddings: Tensor
    """(length, hidden)."""
    visual: Tensor
    """(length,) bool."""

    @cached_property
    def directions(self) -> tuple[Tensor, Tensor]:
        """The text and the visual tokens in float32, each of length 1: (n, hidden) and (m, hidden)."""
        unit = F.normalize(self.embeddings.float(), dim=-1)
        return unit[~self.visual], unit[self.visual]


@dataclass(frozen=True)
class Tokens:
    """The tokens of one forward pass: the prompt's own at prefill, one new text token at a decode step."""

    embeddings: Tensor
    """(tokens, hidden): as they enter the language model."""
    visual: Tensor
    """(tokens,) bool."""
    prompt: Prompt
    """What the tokens are compared with."""

    @cached_property
    def visual_count(self) -> int:
        return int(self.visual.sum())

    @cached_property
    def _similarities(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For the text and for the visual tokens: which they are, and their cosine similarity to each of the other
        kind in the prompt, (tokens of the kind, prompt's tokens of the other kind)."""
        unit = F.normalize(self.embeddings.float(), dim=-1)
        text, visual = self.prompt.directions
        return (~self.visual, unit[~self.visual] @ visual.T), (self.visual, unit[self.visual] @ text.T)

    @cached_property
    def distance(self) -> Tensor:
        """(tokens,): 1 - cosine similarity to the prompt's nearest token of the other kind; infinite without one."""
        found = torch.full(self.visual.shape, torch.inf, device=self.visual.device)
        for chosen, similarity in self._similarities:
            if similarity.shape[1]:
                found[chosen] = 1.0 - similarity.amax(dim=-1)
        return found

    @cached_property
    def _entropies(self) -> dict[float, Tensor]:
        return {}

    def entropy(self, temperature: float) -> Tensor:
        """(tokens,) in nats: how widely a token's meaning is spread over the tokens of the other kind.

        The entropy of the softmax over the token's cosine similarities to the prompt's tokens of the other kind,
        divided by `temperature`: 0 when it means one of them, ln(n) when it is equally near to all n. Infinite in a
        prompt without the other kind, where nothing is known.
        """
        if temperature not in self._entropies:
            found = torch.full(self.visual.shape, torch.inf, device=self.visual.device)
            for chosen, similarity in self._similarities:
                if similarity.shape[1]:
                    found[chosen] = torch.special.entr((similarity / temperature).softmax(dim=-1)).sum(dim=-1)
            self._entropies[temperature] = found
        return self._entropies[temperature]


@dataclass(frozen=True)
class Routing:
    """What a method may look at in one MoE layer."""

    weights: Tensor
    """(tokens, k): the routing weight of each token's chosen experts, in falling order, float32."""
    tokens: Tokens
    layer: int
    """Which MoE layer it is, from 0 on, of `layers`."""
    layers: int
    own_top_k: int
    """Experts per token that the checkpoint was trained with; k is lower where `experts.top_k` says so."""
    importance: float = 1.0
    """How much the layer's experts matter, 1 on average over the layers; 1 for all where it was not measured."""


@dataclass(frozen=True)
class Skipper(Method):
    """Base of every expert-skipping method."""

    section = "experts"
    calibrated: ClassVar[bool] = False
    """Whether it works better with what `launch.py calibrate experts` measures."""
    strengths: ClassVar[tuple[Mapping[str, float], ...]] = ()
    """Options by which it skips from little to much, for the curve of speed against share skipped."""

    @abstractmethod
    def keep(self, routing: Routing) -> Tensor:
        """(tokens, k) bool: the pairs to compute. A token's first expert, its best, is kept unless the method says
        otherwise. Must give the same choice for the same input."""


def keep_first(counts: Tensor, k: int) -> Tensor:
    """(tokens, k) bool: the `counts` (tokens,) best experts of each token."""
    return torch.arange(k, device=counts.device) < counts[:, None]
