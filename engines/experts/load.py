"""Counts how many tokens each expert of each layer received."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engines.structure import MoeLayer


class ExpertLoad:
    """Pairs per layer and expert, counted on the device without waiting for it."""

    def __init__(self, layers: Sequence[MoeLayer]) -> None:
        self._layers = layers
        self._counts: list[Tensor] = [
            torch.zeros(layer.experts.num_experts, dtype=torch.long, device=layer.router.weight.device)
            for layer in layers
        ]
        self.tokens = 0
        """Tokens that went through the language model."""

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
            chosen = output[2].reshape(-1)
            counts.scatter_add_(0, chosen, torch.ones_like(chosen))
            if index == 0:
                self.tokens += output[2].shape[0]

        return hook

    def layers(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(counts.tolist()) for counts in self._counts)
