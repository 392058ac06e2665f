"""int8: weights with one scale per output channel, activations quantised per token as they come (W8A8, dynamic).

Symmetric round-to-nearest on both sides, products accumulated in int32: the scheme of LLM.int8 (arXiv 2208.07339)
without its outlier split. Fused expert tensors are quantised too, per expert and output channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engines.precision.base import Precision, is_fused_experts, weight_of

# torch._int_mm on CUDA wants more than 16 rows.
_CUDA_ROWS = 32


class Int8(Precision):
    """8-bit weights and 8-bit activations."""

    name = "int8"
    label = "int8 weights, int8 activations"

    def unavailable(self, device: torch.device) -> str:
        if device.type not in ("cpu", "cuda"):
            return f"PyTorch has no int8 matrix kernel for {device.type}."
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (7, 5):
            return "int8 matrix units need a GPU of compute capability 7.5 or newer."
        return ""

    def kernel(self, device: torch.device) -> str:
        return f"torch._int_mm on {device.type}, dynamic per-token int8 activations"

    def is_own(self, module: nn.Module) -> bool:
        return weight_of(module).dtype is torch.int8

    def convert(self, module: nn.Module) -> nn.Module:
        if is_fused_experts(module):
            return Int8Experts(module)
        if isinstance(module, nn.Conv3d):
            return Int8PatchEmbedding(module)
        return Int8Linear(module.weight, module.bias)  # type: ignore[arg-type]


def quantise_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 with one scale for each row of the last dimension.

    (..., n) -> int8 (..., n) and float32 scales (..., 1); a row of zeros gets scale 1 and stays zero.
    """
    values = values.float()
    peak = values.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(peak > 0, peak / 127.0, torch.ones_like(peak))
    return (values / scales).round_().to(torch.int8), scales


def int8_matmul(inputs: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """inputs (rows, in) times weight int8 (out, in) transposed, in float32 (rows, out); scales are (out,)."""
    quantised, scales = quantise_rows(inputs)
    rows = quantised.shape[0]
    if quantised.device.type == "cuda" and rows < _CUDA_ROWS:
        quantised = torch.nn.functional.pad(quantised, (0, 0, 0, _CUDA_ROWS - rows))
    product = torch._int_mm(quantised, weight.t())[:rows]
    return product.float().mul_(scales).mul_(weight_scales)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights; input and output keep their own float format."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        quantised, scales = quantise_rows(weight.detach())
        self.weight = nn.Buffer(quantised)
        self.scales = nn.Buffer(scales[:, 0])
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        out = int8_matmul(rows, self.weight, self.scales)
        if self.bias is not None:
            out += self.bias
        return out.to(inputs.dtype).view(*inputs.shape[:-1], -1)


class Int8PatchEmbedding(nn.Module):
    """The tower's first convolution, which covers each patch exactly once and so is a matrix product."""

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.linear = Int8Linear(convolution.weight.flatten(1), convolution.bias)
        # The tower casts its pixels to the format of `proj.weight`; this empty tensor keeps that format.
        self.weight = nn.Buffer(torch.empty(0, dtype=convolution.weight.dtype, device=convolution.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1))


class Int8Experts(nn.Module):
    """Fused experts with int8 weights: for each expert in use, its rows are gathered and multiplied."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        gate_up, gate_up_scales = quantise_rows(experts.gate_up_proj.detach())
        down, down_scales = quantise_rows(experts.down_proj.detach())
        self.gate_up_proj, self.gate_up_scales = nn.Buffer(gate_up), nn.Buffer(gate_up_scales[..., 0])
        self.down_proj, self.down_scales = nn.Buffer(down), nn.Buffer(down_scales[..., 0])
        self.num_experts = experts.num_experts
        self.apply_gate = experts._apply_gate

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states (tokens, hidden), top_k_index and top_k_weights (tokens, k) -> (tokens, hidden)."""
        top_k = top_k_index.shape[1]
        expert_of_pair, pairs = top_k_index.reshape(-1).sort(stable=True)
        rows = pairs // top_k
        weights = top_k_weights.reshape(-1)[pairs].float()
        counts = torch.bincount(expert_of_pair, minlength=self.num_experts).tolist()
        out = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
        start = 0
        for expert, count in enumerate(counts[: self.num_experts]):
            if count == 0:
                continue
            chosen = rows[start : start + count]
            gate_up = int8_matmul(hidden_states[chosen], self.gate_up_proj[expert], self.gate_up_scales[expert])
            inner = self.apply_gate(gate_up)
            down = int8_matmul(inner, self.down_proj[expert], self.down_scales[expert])
            out.index_add_(0, chosen, down * weights[start : start + count, None])
            start += count
        return out.to(hidden_states.dtype)
