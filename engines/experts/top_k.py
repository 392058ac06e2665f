"""A lower top-k: each token uses fewer of its routed experts, and the others are not computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from engines.structure import MoeLayer


@contextmanager
def lower_top_k(layers: Sequence[MoeLayer], top_k: int | None, renormalise: bool = True) -> Iterator[None]:
    """Route every token to its `top_k` best experts while the context is open; None leaves the model as it is.

    The router then hands out `top_k` pairs a token, so a skipped pair enters no kernel, and renormalises their weights
    to sum to one as it does for its own top-k. With `renormalise` off they keep the weights that they have there.
    """
    if top_k is None:
        yield
        return
    own = [layer.router.top_k for layer in layers]
    if own and top_k > min(own):
        raise ValueError(f"experts.top_k is {top_k}; this checkpoint routes each token to at most {min(own)}.")
    with ExitStack() as stack:
        try:
            for layer, value in zip(layers, own, strict=True):
                layer.router.top_k = top_k
                if not renormalise and top_k < value:
                    handle = layer.router.register_forward_hook(_weights_among(value))
                    stack.callback(handle.remove)
            yield
        finally:
            for layer, value in zip(layers, own, strict=True):
                layer.router.top_k = value


def _weights_among(top_k: int) -> Any:
    """A router hook: the weights that the chosen experts have among the `top_k` best, as the router computes them."""

    def hook(_module: Any, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, scores, chosen = output
        best = logits.softmax(dim=-1, dtype=torch.float).topk(top_k, dim=-1).values
        weights = (best / best.sum(dim=-1, keepdim=True))[:, : chosen.shape[1]]
        return logits, weights.to(scores.dtype), chosen

    return hook
