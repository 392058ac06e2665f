"""A kernel for the fused experts that computes only the pairs that are kept.

A skipped pair is marked as the router contract has it: its expert index is the number of experts. transformers' own
fast kernels compute such pairs all the same, or leave their rows unset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _grouped_linear

from engines.results import EngineError


@contextmanager
def only_kept_pairs(model: Any) -> Iterator[None]:
    """Let a transformers model compute its experts with `kept_pairs_experts` while the context is open.

    Modules that were replaced by another number format have kernels of their own, which leave skipped pairs out too.
    """
    own = model.get_experts_implementation()
    name = f"kept_pairs_or_{own['']}"
    ALL_EXPERTS_FUNCTIONS.register(name, partial(kept_pairs_experts, own=own[""]))
    model.set_experts_implementation(name)
    try:
        yield
    finally:
        model.set_experts_implementation(own)


def kept_pairs_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, *, own: str = "eager"
) -> Tensor:
    """hidden_states (tokens, hidden), top_k_index and top_k_weights (tokens, k) -> (tokens, hidden).

    The kept pairs are sorted by expert, multiplied group by group and added up token by token, always in the same
    order. A token without any pair gets zeros. Where nothing is skipped the model's `own` kernel runs, so that the
    result is the same to the bit. Raises EngineError for experts with a bias or without a gate, which no Qwen-VL-MoE
    has.
    """
    if self.has_bias or not self.has_gate:
        raise EngineError("experts.method is not available with this checkpoint: its experts are not of the Qwen kind.")
    tokens, top_k = top_k_index.shape
    expert_of_pair, pairs = top_k_index.reshape(-1).sort(stable=True)
    sizes = torch.bincount(expert_of_pair, minlength=self.num_experts + 1)[: self.num_experts]
    kept = int(sizes.sum())
    if kept == tokens * top_k:
        kernel = ALL_EXPERTS_FUNCTIONS.get_interface(own, type(self).forward.__wrapped__)
        return kernel(self, hidden_states, top_k_index, top_k_weights)
    if kept == 0:
        return torch.zeros_like(hidden_states)
    pairs = pairs[:kept]  # the skipped ones have the highest index and are at the end
    ends = sizes.cumsum(0, dtype=torch.int32)
    inner = _grouped_linear(hidden_states[pairs // top_k], self.gate_up_proj, ends, is_transposed=self.is_transposed)
    rows = _grouped_linear(self._apply_gate(inner), self.down_proj, ends, is_transposed=self.is_transposed)
    return add_up(rows, pairs, top_k_weights).to(hidden_states.dtype)


def add_up(rows: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each token's rows, (tokens, hidden), in the order of its pairs.

    `rows` (kept, hidden) belong to `pairs` (kept,), which count through `weights` (tokens, k) row by row.
    """
    tokens, top_k = weights.shape
    pairs, order = pairs.sort()
    starts = torch.searchsorted(pairs, torch.arange(0, tokens * top_k, top_k, device=pairs.device))
    # Each token is a bag of rows: one kernel gathers, weighs and sums them without an unordered write.
    return F.embedding_bag(
        order, rows, starts, mode="sum", per_sample_weights=weights.reshape(-1)[pairs].to(rows.dtype)
    )
