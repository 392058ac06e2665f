"""Running a model along a given answer: it is told each token, and says what it would have predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engines.structure import Structure


class Along:
    """A request's `watch` that keeps the logits before every token of the answer.

    With `tokens`, those are taken in place of what the model would draw, so that two models can be compared given the
    same text before each position; without, the model answers for itself. For greedy requests: the forced token is
    made the only possible one after the model's own prediction was kept.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._tokens = tuple(tokens)
        self._kept: list[Tensor] = []

    @property
    def logits(self) -> Tensor:
        """(positions, vocabulary), float32, on the CPU: the model's own predictions."""
        return torch.stack(self._kept)

    @contextmanager
    def applied(self, structure: Structure) -> Iterator[None]:
        self._kept.clear()
        # At quantised precisions this is another module than the checkpoint's own.
        handle = structure.model.lm_head.register_forward_hook(self._look)
        try:
            yield
        finally:
            handle.remove()

    def begin(self, visual: Tensor) -> None:
        """Nothing here depends on which tokens are visual."""

    def narrow(self, keep: Tensor) -> None:
        """Nor on which rows are left: the prediction is of the last one."""

    def _look(self, _module: Any, _inputs: Any, logits: Tensor) -> Tensor | None:
        place = len(self._kept)
        self._kept.append(logits[0, -1].float().cpu())
        if place >= len(self._tokens):
            return None
        forced = torch.full_like(logits, -torch.inf)
        forced[..., self._tokens[place]] = 0.0
        return forced
