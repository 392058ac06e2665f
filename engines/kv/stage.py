"""The KV cache of one run: what stays of it after prefill, in how many bits, and the report of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from engines.attention.wrap import Attend, attention_through
from engines.config import CompressionConfig, KVConfig
from engines.kv.attend import attend
from engines.kv.layer import BlockLayer
from engines.kv.retention import WINDOW, attention_received, choose_tokens, rank_tokens
from engines.memory import cache_bytes
from engines.reports import KVReport
from engines.results import EngineError
from engines.structure import Structure


class KVStage:
    """Applies the settings of one run. Say with `begin` which tokens of a prompt are visual before its prefill."""

    def __init__(self, structure: Structure, config: KVConfig, seed: int = 0) -> None:
        """`seed` draws for `importance=random`."""
        self._structure, self._config, self._seed = structure, config, seed
        self._scored = config.visual_keep_ratio < 1.0 and config.importance == "attention"
        self._visual: list[Tensor] = []
        self._chosen: dict[int, Tensor] = {}
        self._received: dict[int, Tensor] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person who asked should know, a sentence each."""
        if self._config.bits != 4:
            return ()
        attention = self._structure.language_model.layers[self._structure.attention_layers[0] - 1].self_attn
        if hasattr(attention, "k_norm"):
            return (
                "kv.bits=4 is coarse, and what it costs depends on the checkpoint: compare the answers on questions "
                "of your own.",
            )
        return (
            "kv.bits=4 is known to break checkpoints of this kind, which do not normalise their keys (vLLM issue "
            "10411): compare the answers, or use kv.bits=8.",
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While open, a cache that `compress` has had is attended to without writing it out."""
        if not self._config.active:
            yield
            return
        with attention_through(self._structure, self._wrap):
            yield

    @property
    def queries_read(self) -> int:
        """How many of the prompt's last rows the prefill has to run, whatever is cached; the last one always."""
        return WINDOW if self._scored else 1

    def begin(self, visual: Tensor) -> None:
        """`visual` (length,) bool: which tokens of the prompt that is run next are visual."""
        self._visual, self._received, self._chosen = [visual], {}, {}

    def narrow(self, keep: Tensor) -> None:
        """Inside the prefill: only the rows where `keep` (tokens,) is true go on to the layers that follow."""
        self._visual.append(self._visual[-1][keep])

    def compress(self, cache: Any) -> dict[str, Any]:
        """Replace the plain layers of a cache, one by one, after its prefill; returns what the span should say."""
        before = cache_bytes(cache)
        for index, layer in enumerate(cache.layers):
            # States of linear attention, and windows that the model itself slides, are left alone.
            if type(layer) is DynamicLayer:
                cache.layers[index] = self._compressed(index, layer)
        held = [layer.report(1) for layer in block_layers(cache).values()]
        return {
            "bytes_before": before,
            "bytes_after": cache_bytes(cache),
            "tokens_before": max((layer.tokens_seen for layer in held), default=0),
            "tokens_after": max((layer.tokens_held for layer in held), default=0),
        }

    def report(self, cache: Any) -> KVReport | None:
        """What the cache holds now; None where it is plain."""
        layers = block_layers(cache)
        if not layers:
            return None
        config = self._config
        coded = [codes for layer in layers.values() for codes in layer.coded or ()]
        zeros = sum(codes.zeros() for codes in coded) if config.sparsity_threshold else 0
        values = sum(codes.values for codes in coded) if config.sparsity_threshold else 0
        return KVReport(
            bits=config.bits,
            block_tokens=config.block_tokens,
            layers=tuple(layer.report(index + 1) for index, layer in layers.items()),
            zero_share=zeros / values if values else None,
        )

    def rows_held(self, cache: Any) -> dict[int, npt.NDArray[np.bool_]]:
        """By layer, counted from 1: which of the rows that the prefill left there a new token still attends to."""
        held = {}
        for index, layer in block_layers(cache).items():
            rows = self._chosen[index].cpu().numpy().copy()
            rows[rows] = layer.held()[: rows.sum()].cpu().numpy()
            held[index + 1] = rows
        return held

    def _compressed(self, index: int, plain: Any) -> BlockLayer:
        rows = plain.keys.shape[2]
        visual = next(known for known in self._visual if len(known) == rows)
        keep = self._choose(index, visual)
        compressed = BlockLayer.of(plain, self._config, visual, keep)
        compressed.attended = True
        self._chosen[index] = torch.ones_like(visual) if keep is None else keep
        return compressed

    def _choose(self, index: int, visual: Tensor) -> Tensor | None:
        config = self._config
        if config.visual_keep_ratio == 1.0 and not config.text_window:
            return None
        return choose_tokens(
            rank_tokens(visual, config.sink_tokens),
            int((~visual).sum()),
            self._importance(index, visual),
            visual_keep_ratio=config.visual_keep_ratio,
            text_window=config.text_window,
        )

    def _importance(self, index: int, visual: Tensor) -> Tensor | None:
        if self._scored:
            return self._received[index]
        if self._config.visual_keep_ratio == 1.0:
            return None
        generator = torch.Generator().manual_seed(self._seed + 1009 * index)
        return torch.rand(len(visual), generator=generator).to(visual.device)

    def _wrap(self, own: Attend, _masked: Attend) -> Attend:
        def through(
            module: Any, query: Tensor, key: Any, value: Any, attention_mask: Tensor | None, **named: Any
        ) -> Any:
            scaling = named.get("scaling") or module.scaling
            # Whatever a layer in blocks holds is visible to a new token: no mask is needed.
            if isinstance(key, BlockLayer):
                return attend(key, query, scaling), None
            if self._scored:
                self._received[module.layer_idx] = attention_received(query[0], key[0], scaling)
            return own(module, query, key, value, attention_mask, **named)

        return through


def block_layers(cache: Any) -> dict[int, BlockLayer]:
    """The layers in blocks by their index."""
    return {index: layer for index, layer in enumerate(cache.layers) if isinstance(layer, BlockLayer)}


def why_not(structure: Structure) -> str:
    """Why the KV cache of a checkpoint cannot be compressed; empty when it can."""
    return "" if structure.attention_layers else "its language model has no layer of full attention."


def check(config: CompressionConfig, structure: Structure) -> None:
    """Raise EngineError for settings that this checkpoint, or another setting, rules out."""
    if not config.kv.active:
        return
    if reason := why_not(structure):
        raise EngineError(f"kv settings are not available with this checkpoint: {reason}")
    if config.attention.active:
        raise EngineError(
            "attention.cross_modal needs every cached key as it is, and kv settings compress or drop them; switch one "
            "of them off."
        )
