"""Weights that accelerate keeps in the machine's memory and brings to the GPU for each pass of their module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def offloaded(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor | None]]:
    """(module, name, weights) of what is away between two passes; None for weights that lie on a disk.

    accelerate leaves a meta tensor in each one's place and the values in its hook.
    """
    for inner in module.modules():
        hook: Any = getattr(inner, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            if not getattr(one, "offload", False):
                continue
            for name, parameter in inner._parameters.items():
                if parameter is not None:
                    yield inner, name, _held(one.weights_map, name)


def offloaded_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Those in memory."""
    return (tensor for _, _, tensor in offloaded(module) if tensor is not None)


def _held(weights: Any, name: str) -> Tensor | None:
    """Without reading anything from a disk."""
    prefix = getattr(weights, "prefix", "")
    # A view with a prefix over all weights that are away: those in memory, or those and what lies on a disk.
    values = getattr(weights, "dataset", weights)
    return getattr(values, "state_dict", values).get(f"{prefix}{name}")
