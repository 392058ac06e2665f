"""A kernel for the experts that is quick to train with on a CPU; same result as transformers' plain loop.

The plain loop indexes the fused weights once per expert, and every such index costs a zero-filled gradient as
large as the whole layer. Sorting the (token, expert) pairs once and unbinding the weights once avoids that.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "demo_sorted"


def sorted_experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """hidden_states (tokens, width), top_k_index and top_k_weights (tokens, k); returns (tokens, width)."""
    chosen = top_k_index.reshape(-1)
    order = chosen.argsort(stable=True)
    token = order // top_k_index.shape[1]
    sizes = torch.bincount(chosen, minlength=self.num_experts).tolist()
    parts = zip(
        hidden_states.index_select(0, token).split(sizes),
        top_k_weights.reshape(-1, 1).index_select(0, order).split(sizes),
        token.split(sizes),
        self.gate_up_proj.unbind(0),
        self.down_proj.unbind(0),
        strict=True,
    )
    result = torch.zeros_like(hidden_states)
    for rows, weight, places, gate_up, down in parts:
        gate, up = F.linear(rows, gate_up).chunk(2, dim=-1)
        # Weighted before the second product, where the rows are narrower than the hidden size.
        result.index_add_(0, places, F.linear(self.act_fn(gate) * up * weight, down).to(result.dtype))
    return result


def use_sorted_experts(model: PreTrainedModel) -> None:
    """Let a transformers model compute its experts with `sorted_experts`."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, sorted_experts)
    model.set_experts_implementation(NAME)
