"""Counts how many tokens each expert of each layer received, visual and text tokens apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engines.structure import MoeLayer


class ExpertLoad:
    """Pairs per layer, kind of token and expert, counted on the device without waiting for it."""

    def __init__(self, layers: Sequence[MoeLayer], visual: Callable[[], Tensor]) -> None:
        """`visual()` (tokens,) says which tokens of the forward pass under way are visual."""
        self._layers = layers
        self._visual = visual
        # One more place than there are experts: for skipped pairs, whose index is the number of experts.
        self._counts: list[Tensor] = [
            torch.zeros(2, layer.experts.num_experts + 1, dtype=torch.long, device=layer.router.weight.device)
            for layer in layers
        ]

    @contextmanager
    def counting(self) -> Iterator[None]:
        handles = [
            layer.router.register_forward_hook(self._make_hook(index)) for index, layer in enumerate(self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _make_hook(self, index: int) -> Any:
        counts = self._counts[index]

        def hook(_module: Any, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
            places = (output[2] + self._visual()[:, None] * counts.shape[1]).reshape(-1)
            counts.view(-1).scatter_add_(0, places, torch.ones_like(places))

        return hook

    def layers(self) -> tuple[tuple[int, ...], ...]:
        """Computed pairs by layer and expert."""
        return tuple(tuple(counts[:, :-1].sum(dim=0).tolist()) for counts in self._counts)

    def pairs(self, kind: int) -> tuple[tuple[int, int], ...]:
        """(computed, skipped) by layer, for text (kind 0) or visual tokens (kind 1), of the pairs that were routed."""
        return tuple((int(counts[kind, :-1].sum()), int(counts[kind, -1])) for counts in self._counts)
