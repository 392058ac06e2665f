"""The attention of one run: the cross-modal mask while it goes on, and the count of the pairs that it kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engines.attention.top_k import causal, cross_modal_mask
from engines.attention.wrap import Attend, attention_through
from engines.config import AttentionConfig
from engines.reports import AttentionReport, PairsKept
from engines.results import EngineError
from engines.structure import Structure

# Queries are taken in blocks whose scores, in float32, fill no more than this.
_BLOCK_BYTES = 64 << 20


class AttentionStage:
    """Applies the settings of one run. Say with `begin` which tokens of a prompt are visual before its prefill.

    Each head of a text token attends to the `text_top_k` visual tokens that it scores highest, each head of a visual
    token to the `visual_top_k` such text tokens; within one modality nothing changes. It holds in every layer of
    full attention, in the prefill and in every decode step: new tokens are text.
    """

    def __init__(self, structure: Structure, config: AttentionConfig) -> None:
        self._structure = structure
        self._config = config
        self._top_k = {False: config.text_top_k, True: config.visual_top_k}
        self._entering: Tensor | None = None
        self._keys: dict[int, Tensor] = {}
        self._kept: Tensor | None = None
        self._total: Tensor | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While open, the language model attends as the settings say."""
        if not self._config.active:
            yield
            return
        with attention_through(self._structure, self._wrap):
            yield

    def begin(self, visual: Tensor) -> None:
        """`visual` (length,) bool: which tokens of the prompt that is run next, from an empty cache, are visual."""
        self._entering, self._keys, self._kept, self._total = visual, {}, None, None

    def narrow(self, keep: Tensor) -> None:
        """Inside the prefill: only the rows where `keep` (tokens,) is true go on to the layers that follow."""
        if self._entering is not None:
            self._entering = self._entering[keep]

    def report(self) -> AttentionReport | None:
        """What was counted since `begin`; None where the mask is off or nothing ran."""
        if not self._config.active or self._kept is None or self._total is None:
            return None
        kept, total = self._kept.tolist(), self._total.tolist()
        text, visual = (PairsKept(*pair) for pair in zip(kept, total, strict=True))
        return AttentionReport(self._config.text_top_k, self._config.visual_top_k, text, visual)

    def attributes(self) -> dict[str, Any]:
        """For the span of the prefill, once it is over."""
        report = self.report()
        if report is None:
            return {}
        shares = {"visual_keys_kept": report.text.share, "text_keys_kept": report.visual.share}
        return {name: round(share, 4) for name, share in shares.items() if share is not None}

    def _wrap(self, own: Attend, masked: Attend) -> Attend:
        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
        ) -> Any:
            keys, queries = self._flags(module.layer_idx, query.shape[2], key.shape[2])
            total = pairs_seen(queries, keys) * query.shape[1]
            if self._neutral(queries, keys):
                self._count(total, total)
                return own(module, query, key, value, attention_mask, **named)
            outputs, kept = [], torch.zeros_like(total)
            start = key.shape[2] - query.shape[2]
            size = max(1, _BLOCK_BYTES // (4 * query.shape[1] * key.shape[2]))
            for first in range(0, query.shape[2], size):
                block = query[:, :, first : first + size]
                rows = slice(first, first + block.shape[2])
                if attention_mask is None:
                    seen = causal(block.shape[2], key.shape[2], start + first, key.device)
                else:
                    given = attention_mask[0, 0, rows, : key.shape[2]]
                    seen = given if given.dtype == torch.bool else given == 0
                mask, counted = cross_modal_mask(block[0], key[0], seen, queries[rows], keys, self._top_k)
                kept += counted
                outputs.append(masked(module, block, key, value, mask[None], **named)[0])
            self._count(kept, total)
            return torch.cat(outputs, dim=1), None

        return attend

    def _neutral(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether no query can lose a key, so that the model's own attention gives the same to the bit."""
        visual, asking = int(keys.sum()), int(queries.sum())
        text = len(keys) - visual
        return (asking == len(queries) or not 0 < self._top_k[False] < visual) and (
            not asking or not 0 < self._top_k[True] < text
        )

    def _flags(self, layer: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
        """Which keys and which queries of a layer are visual, (keys,) and (queries,)."""
        assert self._entering is not None, "begin() comes before the prefill"
        before = self._keys.get(layer)
        known = self._entering if before is None else torch.cat([before, before.new_zeros(queries)])
        if len(known) != keys:
            raise EngineError(
                "attention.cross_modal must know of every cached token whether it is visual, and another setting "
                "changed the cache meanwhile; switch one of them off."
            )
        self._keys[layer] = known
        return known, known[keys - queries :]

    def _count(self, kept: Tensor, total: Tensor) -> None:
        self._kept = kept.clone() if self._kept is None else self._kept + kept.to(self._kept.device)
        self._total = total.clone() if self._total is None else self._total + total.to(self._total.device)


def pairs_seen(queries: Tensor, keys: Tensor) -> Tensor:
    """(2,): how many (text query, visual key) and (visual query, text key) pairs causal attention has, per head.

    The queries (bool, True for visual) are the last ones of the keys.
    """
    visual = keys.cumsum(0)[len(keys) - len(queries) :]
    places = torch.arange(len(keys) - len(queries), len(keys), device=keys.device)
    return torch.stack([visual[~queries].sum(), (places + 1 - visual)[queries].sum()])
