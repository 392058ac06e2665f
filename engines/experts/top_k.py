"""A lower top-k: each token uses fewer of its routed experts, and the others are not computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engines.structure import MoeLayer


@contextmanager
def lower_top_k(layers: Sequence[MoeLayer], top_k: int | None) -> Iterator[None]:
    """Route every token to its `top_k` best experts while the context is open; None leaves the model as it is.

    The router then hands out `top_k` pairs a token, so a skipped pair enters no kernel. The weights of the pairs
    that remain are renormalised to sum to one, as the router does for its own top-k.
    """
    if top_k is None:
        yield
        return
    own = [layer.router.top_k for layer in layers]
    if own and top_k > min(own):
        raise ValueError(f"experts.top_k is {top_k}; this checkpoint routes each token to at most {min(own)}.")
    try:
        for layer in layers:
            layer.router.top_k = top_k
        yield
    finally:
        for layer, value in zip(layers, own, strict=True):
            layer.router.top_k = value
