"""One layer's keys and values while decoding: whole blocks in few bits, the first and the newest tokens as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from engines.config import KVConfig
from engines.kv.codes import KEYS, VALUES, Codes
from engines.kv.retention import SINK, VISUAL, rank_tokens
from engines.kv.truncation import FadingNorms, too_few_live
from engines.reports import KVLayer


class BlockLayer(CacheLayerMixin):
    """Takes the place of a plain layer in a transformers cache, after prefill; for one sequence at a time.

    Rows keep their order: the sinks, the blocks, and what is not yet a block. `keys` and `values`
    (1, heads, rows, size) hold the sinks and the newest rows. Keys have been turned to their positions already, so
    that dropping a row moves no other.
    """

    def __init__(self, config: KVConfig, keys: Tensor, values: Tensor, ranks: Tensor, visual: Tensor) -> None:
        """From the rows that stay, with their `ranks`, of tokens that were `visual` (tokens,) bool."""
        super().__init__()
        self._config = config
        self._seen, self._visual_seen = len(visual), int(visual.sum())
        self._texts = self._seen - self._visual_seen
        self._visual_sinks = int(visual[: config.sink_tokens].sum())
        self._released = 0
        self._sinks = int((ranks == SINK).sum())
        self.attended = False
        """Whether attention reads the blocks itself: then `update` hands over this layer instead of tensors."""
        size = config.block_tokens
        end = self._sinks + (len(ranks) - self._sinks) // size * size
        heads = keys.shape[1]
        blocks = [part[0, :, self._sinks : end].reshape(heads, -1, size, part.shape[-1]) for part in (keys, values)]
        self._key_blocks: Codes | None = None
        self._value_blocks: Codes | None = None
        if end > self._sinks:
            self._key_blocks, self._value_blocks = self._encode(*blocks)
        self._block_ranks = ranks[self._sinks : end].view(-1, size).clone()
        # The blocks that are left, counted from the oldest that there was. On the CPU: attention needs no names.
        self._numbers = torch.arange(self.blocks)
        self._closed = self.blocks
        own = torch.cat((torch.arange(self._sinks), torch.arange(end, len(ranks)))).to(keys.device)
        self.keys, self.values, self._ranks = keys[:, :, own], values[:, :, own], ranks[own]
        self._norms = FadingNorms.empty(self.blocks, keys.device) if config.norm_floor else None
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    @classmethod
    def of(cls, plain: Any, config: KVConfig, visual: Tensor, keep: Tensor | None) -> Self:
        """From a plain layer whose tokens are `visual` (tokens,) bool; None keeps all. The plain one is not changed."""
        if plain.keys.shape[0] != 1:
            raise ValueError(f"The cache holds {plain.keys.shape[0]} sequences; blocks are made of one.")
        ranks = rank_tokens(visual, config.sink_tokens)
        keys, values = plain.keys, plain.values
        if keep is not None:
            keys, values, ranks = keys[:, :, keep], values[:, :, keep], ranks[keep]
        return cls(config, keys, values, ranks, visual)

    @property
    def config(self) -> KVConfig:
        return self._config

    @property
    def blocks(self) -> int:
        return self._key_blocks.blocks if self._key_blocks is not None else 0

    @property
    def coded(self) -> tuple[Codes, Codes] | None:
        """Keys and values of the whole blocks, if there are any."""
        if self._key_blocks is None or self._value_blocks is None:
            return None
        return self._key_blocks, self._value_blocks

    def live(self) -> tuple[Tensor, Tensor] | None:
        """Which rows of `keys` and `values` (rows,) and of the blocks (blocks, tokens) are live; None if all are."""
        if not self._config.text_window:
            return None
        oldest = self._texts - self._config.text_window
        return self._ranks >= oldest, self._block_ranks >= oldest

    # ---- what transformers asks of a layer ----

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Add rows (1, heads, rows, size) of new text; returns all live keys and values, or twice this layer."""
        rows = key_states.shape[2]
        newer = torch.arange(self._texts, self._texts + rows, dtype=torch.int32, device=self._ranks.device)
        self.keys, self.values = torch.cat((self.keys, key_states), 2), torch.cat((self.values, value_states), 2)
        self._ranks = torch.cat((self._ranks, newer))
        self._seen += rows
        self._texts += rows
        while self.keys.shape[2] - self._sinks >= self._config.block_tokens:
            self._close_block()
        if self._config.text_window and self.blocks:
            oldest = self._texts - self._config.text_window
            self._release(too_few_live(self._block_ranks >= oldest, self._config.min_live_tokens))
        return (self, self) if self.attended else self.dense()

    def get_seq_length(self) -> int:
        """Tokens seen, dropped ones included: the place of the next token."""
        return self._seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """As after `update`, which moves the text window on and may release blocks."""
        if not self._config.text_window:
            return self.keys.shape[2] + self._block_ranks.numel() + query_length, 0
        oldest = self._texts + query_length - self._config.text_window
        live = self._block_ranks >= oldest
        full = self.keys.shape[2] - self._sinks + query_length >= self._config.block_tokens
        stay = ~too_few_live(live, self._config.min_live_tokens, newest=not full)
        return int((self._ranks >= oldest).sum() + live[stay].sum()) + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the layer is made from rows."""

    # ---- our own ----

    def dense(self) -> tuple[Tensor, Tensor]:
        """All live rows as any attention function takes them, (1, heads, rows, size): the slow way."""
        found = []
        live = self.live()
        for own, codes in ((self.keys, self._key_blocks), (self.values, self._value_blocks)):
            first, newest = own[0, :, : self._sinks], own[0, :, self._sinks :]
            middle = first[:, :0] if codes is None else codes.decode(self.dtype).flatten(1, 2)
            rows = torch.cat((first, middle, newest), dim=1)
            if live is not None:
                rows = rows[:, torch.cat((live[0][: self._sinks], live[1].flatten(), live[0][self._sinks :]))]
            found.append(rows[None])
        return found[0], found[1]

    def held(self) -> Tensor:
        """(rows,) bool, on the CPU: which of the rows that ever were here, in their order, are live."""
        size, newest = self._config.block_tokens, self._ranks.shape[0] - self._sinks
        blocks = torch.zeros(self._closed, size, dtype=torch.bool)
        own = torch.ones(self._sinks + newest, dtype=torch.bool)
        live = self.live()
        blocks[self._numbers] = True if live is None else live[1].cpu()
        if live is not None:
            own = live[0].cpu()
        return torch.cat((own[: self._sinks], blocks.flatten(), own[self._sinks :]))

    def note_norms(self, norms: Tensor) -> None:
        """After attention: the norm of what each block added to it, (blocks,)."""
        assert self._norms is not None
        self._norms, release = self._norms.step(norms, self._config.norm_floor, self._config.norm_steps)
        self._release(release)

    def tensors(self) -> Iterator[Tensor]:
        """Everything that is held between steps."""
        yield from (self.keys, self.values, self._ranks, self._block_ranks)
        for codes in self.coded or ():
            yield from codes.tensors()
        if self._norms is not None:
            yield from (self._norms.first, self._norms.below)

    def report(self, number: int) -> KVLayer:
        """`number` is the layer's, counted from 1."""
        oldest = self._texts - self._config.text_window if self._config.text_window else 0
        ranks = torch.cat((self._ranks, self._block_ranks.flatten()))
        heads, size = self.keys.shape[1], self.keys.shape[3] + self.values.shape[3]
        return KVLayer(
            layer=number,
            tokens_seen=self._seen,
            tokens_held=int((ranks >= oldest).sum()),
            visual_seen=self._visual_seen,
            visual_held=int((ranks == VISUAL).sum()) + self._visual_sinks,
            blocks=self.blocks,
            blocks_released=self._released,
            plain_bytes=self._seen * heads * size * self.keys.element_size(),
            bytes=sum(tensor.nbytes for tensor in self.tensors()),
        )

    def _encode(self, keys: Tensor, values: Tensor) -> tuple[Codes, Codes]:
        bits, threshold = self._config.bits, self._config.sparsity_threshold
        return Codes.encode(keys, bits, KEYS, threshold), Codes.encode(values, bits, VALUES, threshold)

    def _close_block(self) -> None:
        """The oldest rows after the sinks become a block."""
        own = slice(self._sinks, self._sinks + self._config.block_tokens)
        keys, values = self._encode(self.keys[0, :, None, own], self.values[0, :, None, own])
        if self._key_blocks is not None and self._value_blocks is not None:
            keys, values = self._key_blocks.append(keys), self._value_blocks.append(values)
        self._key_blocks, self._value_blocks = keys, values
        self._block_ranks = torch.cat((self._block_ranks, self._ranks[None, own]))
        stay = torch.ones(self.keys.shape[2], dtype=torch.bool, device=self.device)
        stay[own] = False
        self.keys, self.values, self._ranks = self.keys[:, :, stay], self.values[:, :, stay], self._ranks[stay]
        if self._norms is not None:
            self._norms = self._norms.append()
        self._numbers = torch.cat((self._numbers, torch.tensor([self._closed])))
        self._closed += 1

    def _release(self, release: Tensor) -> None:
        count = int(release.sum())
        if not count:
            return
        keep = ~release
        assert self._key_blocks is not None
        assert self._value_blocks is not None
        self._key_blocks, self._value_blocks = self._key_blocks.select(keep), self._value_blocks.select(keep)
        self._block_ranks = self._block_ranks[keep]
        self._numbers = self._numbers[keep.cpu()]
        if self._norms is not None:
            self._norms = self._norms.select(keep)
        self._released += count
