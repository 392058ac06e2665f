"""int8: weights with one scale per output channel. Many rows are quantised per token as they come (W8A8, dynamic) and
multiplied in whole numbers; few rows stay in bf16 (weight-only), and so do very many where the CPU has bf16 tiles.

Symmetric round-to-nearest on both sides, products accumulated in int32: the scheme of LLM.int8 (arXiv 2208.07339)
without its outlier split. Fused expert tensors are quantised too, per expert and output channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engines.precision.base import Conversion, Precision, has_bf16_tiles, weight_of
from engines.precision.layers import Activations, QuantisedMatrix, quantise_rows, quantised

# torch._int_mm on CUDA wants more than 16 rows.
_CUDA_ROWS = 32
# Up to so many rows the weight-only kernel is as quick as quantising them first, or quicker.
FEW_ROWS = 4
# Above so many rows bf16 tiles are quicker than bytes; int8 weights are exact in bf16.
MANY_ROWS = 256
# Shares of the largest weight of a row at which it may be clipped, where a calibration says what that costs.
CLIPS = (1.0, 0.95, 0.9, 0.85)


class Int8(Precision):
    """8-bit weights; 8-bit activations for many rows."""

    name = "int8"
    label = "int8 weights"
    quantises = True

    def unavailable(self, device: torch.device) -> str:
        if device.type not in ("cpu", "cuda"):
            return f"PyTorch has no int8 matrix kernel for {device.type}."
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (7, 5):
            return "int8 matrix units need a GPU of compute capability 7.5 or newer."
        return ""

    def kernel(self, device: torch.device) -> str:
        many = f"torch._int_mm on {device.type}, dynamic per-token int8 activations"
        if device.type != "cpu":
            return many
        tiles = f", and above {MANY_ROWS} rows unpacked to bf16 matmul" if has_bf16_tiles() else ""
        return f"_weight_int8pack_mm with bf16 activations up to {FEW_ROWS} rows, above that {many}{tiles}"

    def is_own(self, module: nn.Module) -> bool:
        return weight_of(module).dtype is torch.int8

    def convert(self, module: nn.Module, how: Conversion) -> nn.Module:
        return quantised(module, how, Int8Matrix)


def clipped_rows(weight: Tensor, moments: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (out, in) as int8 with float32 scales (out, 1).

    With the inputs' moments (in,), each row's scale is the one of `CLIPS` with the least error of the output.
    """
    best, best_scales = quantise_rows(weight)
    if moments is None:
        return best, best_scales
    weight = weight.float()
    least = ((best * best_scales - weight).square() * moments).sum(dim=-1, keepdim=True)
    full = best_scales
    for clip in CLIPS[1:]:
        scales = full * clip
        tried = (weight / scales).round_().clamp_(-127, 127)
        error = ((tried * scales - weight).square() * moments).sum(dim=-1, keepdim=True)
        better = error < least
        least = torch.where(better, error, least)
        best = torch.where(better, tried.to(torch.int8), best)
        best_scales = torch.where(better, scales, best_scales)
    return best, best_scales


class Int8Matrix(QuantisedMatrix):
    """Weights (..., out, in) as int8 and one float32 scale for each row."""

    def __init__(self, weight: Tensor, how: Conversion, moments: Tensor | None = None) -> None:
        super().__init__(how)
        if weight.ndim == 2:
            quantised, scales = clipped_rows(weight.detach(), moments)
        else:
            # Expert by expert: the whole tensor in float32 would need several times its own room.
            quantised = torch.empty_like(weight, dtype=torch.int8)
            scales = torch.empty(*weight.shape[:2], 1, device=weight.device)
            for expert, one in enumerate(weight.detach()):
                seen = moments[expert] if moments is not None and moments.ndim == 2 else moments
                quantised[expert], scales[expert] = clipped_rows(one, seen)
        self.weight = nn.Buffer(quantised)
        self.scales = nn.Buffer(scales[..., 0].contiguous())

    def product(self, inputs: Activations, expert: int | None = None) -> Tensor:
        weight, scales = (self.weight, self.scales) if expert is None else (self.weight[expert], self.scales[expert])
        if len(inputs) <= FEW_ROWS and weight.device.type == "cpu" and weight.shape[1] % 32 == 0:
            self.kernels["_weight_int8pack_mm"] += 1
            # The scales are applied in float32 afterwards: the kernel would round them to bf16.
            ones = torch.ones(weight.shape[0], dtype=torch.bfloat16)
            out = torch.ops.aten._weight_int8pack_mm(inputs.rows.to(torch.bfloat16), weight, ones)
            return out.float().mul_(scales)
        if len(inputs) > MANY_ROWS and weight.device.type == "cpu" and has_bf16_tiles():
            self.kernels["unpacked to bf16, bf16 matmul"] += 1
            out = inputs.rows.to(torch.bfloat16) @ weight.to(torch.bfloat16).t()
            return out.float().mul_(scales)
        self.kernels["_int_mm"] += 1
        rows, row_scales = inputs.quantised(127)
        return int8_matmul(rows, row_scales, weight, scales)

    def dequantised(self, expert: int | None = None) -> Tensor:
        weight, scales = (self.weight, self.scales) if expert is None else (self.weight[expert], self.scales[expert])
        return weight.float() * scales[:, None]


def int8_matmul(rows: Tensor, row_scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """rows int8 (n, in) times weight int8 (out, in) transposed: float32 (n, out). Scales are (n, 1) and (out,)."""
    count = rows.shape[0]
    if rows.device.type == "cuda" and count < _CUDA_ROWS:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, _CUDA_ROWS - count))
    product = torch._int_mm(rows, weight.t())[:count]
    return product.float().mul_(row_scales).mul_(weight_scales)
