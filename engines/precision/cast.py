"""fp32, bf16 and fp16: the weights are cast once, the products run in that format."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.precision.base import Conversion, Precision, is_fused_experts, weight_of


class Cast(Precision):
    """Weights and products in a float format."""

    def __init__(self, name: str, label: str, dtype: torch.dtype) -> None:
        self.name = name  # type: ignore[misc]
        self.label = label  # type: ignore[misc]
        self.dtype = dtype

    def unavailable(self, device: torch.device) -> str:
        if self.dtype is torch.bfloat16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
            return "This GPU has no bf16 arithmetic."
        return ""

    def kernel(self, device: torch.device) -> str:
        slow = self.dtype is torch.float16 and device.type == "cpu" and not _has_fp16_units()
        return f"{self.name} matmul of PyTorch on {device.type}" + (
            ", slow: this CPU has no fp16 units" if slow else ""
        )

    def is_own(self, module: nn.Module) -> bool:
        return weight_of(module).dtype is self.dtype

    def convert(self, module: nn.Module, how: Conversion) -> nn.Module:
        if is_fused_experts(module):
            return CastExperts(module, self.dtype)
        if isinstance(module, nn.Conv3d):
            return CastPatchEmbedding(module, self.dtype)
        return CastLinear(module, self.dtype)  # type: ignore[arg-type]


def _has_fp16_units() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


class CastLinear(nn.Module):
    """A linear layer whose weights and product have another float format than its input and output."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().to(dtype), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().to(dtype), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs.to(self.weight.dtype), self.weight, self.bias).to(inputs.dtype)


class CastPatchEmbedding(nn.Module):
    """The tower's first convolution. The tower casts pixels to its weight's format; the output goes back."""

    def __init__(self, convolution: nn.Conv3d, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(convolution.weight.detach().to(dtype), requires_grad=False)
        bias = convolution.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), requires_grad=False)
        self.stride = convolution.stride
        self.out_dtype = convolution.weight.dtype

    def forward(self, inputs: Tensor) -> Tensor:
        return F.conv3d(inputs, self.weight, self.bias, stride=self.stride).to(self.out_dtype)


class CastExperts(nn.Module):
    """Fused experts in another float format, run by the same kernel that transformers chose for the original."""

    def __init__(self, experts: Any, dtype: torch.dtype) -> None:
        super().__init__()
        # A shallow copy keeps the class, and with it transformers' dispatch to its expert kernels.
        inner = copy.copy(experts)
        inner._parameters = {
            name: nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            for name, parameter in experts.named_parameters(recurse=False)
        }
        self.inner = inner
        self.num_experts = experts.num_experts
        self.dtype = dtype

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out = self.inner(hidden_states.to(self.dtype), top_k_index, top_k_weights.to(self.dtype))
        return out.to(hidden_states.dtype)
