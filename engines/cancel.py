"""Stopping a run inside a forward pass: a long prefill of a large model must not outlast the person's patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engines.structure import Structure


class Cancelled(Exception):
    """The run was cancelled between two layers."""


@contextmanager
def cancellable(structure: Structure, cancel: threading.Event | None) -> Iterator[None]:
    """While open, a forward pass raises Cancelled before its next layer once `cancel` is set."""
    if cancel is None:
        yield
        return

    def check(_module: Any, _inputs: Any) -> None:
        if cancel.is_set():
            raise Cancelled

    layers = [*structure.visual.blocks, *structure.language_model.layers]
    handles = [layer.register_forward_pre_hook(check) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
