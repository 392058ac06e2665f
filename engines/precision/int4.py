"""int4: weights in groups along the input, 16-bit activations, sums in 32 bits. Fused expert tensors included.

A weight is (code - 8) x group multiplier x row scale, with a whole multiplier of 1 to 16. So the weights of a row are
whole numbers of at most 128 before its scale is applied, which int8 matrix units can multiply: the progressive group
quantisation of QServe (arXiv 2405.04532). One packed layout serves all kernels: few rows go to PyTorch's weight-only
kernel in bf16; for many rows the codes are unpacked once, and the rows enter in bf16 where the CPU has bf16 tiles, and
otherwise as 16-bit whole numbers, a byte at a time.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.precision.base import Conversion, Precision, has_bf16_tiles, has_byte_products
from engines.precision.layers import Activations, QuantisedMatrix, quantised

aten = torch.ops.aten
# Up to so many rows the weight-only kernel is quicker than unpacking the weights first.
FEW_ROWS = 8
LARGEST_MULTIPLIER = 16
# 7 is the largest code, so a row's largest weight is this many of its scale.
_ROW_STEPS = 7 * LARGEST_MULTIPLIER
# Shares of a group's largest weight at which it may be clipped; the best by the output's error is taken.
CLIPS = (1.0, 0.9, 0.8, 0.7)
SMALLEST_GROUP = 32
# Rows of weights that are quantised at a time, to bound the room that takes.
_CHUNK = 4096
# Output channels are padded to whole blocks of the packed layout.
_BLOCK = 64
# Activations as two bytes: 127 x 256 + 127 at most.
_LARGEST_ACTIVATION = 127 * 256 + 127


class Int4(Precision):
    """4-bit weights, 16-bit activations."""

    name = "int4"
    label = "int4 weights, 16-bit activations"
    quantises = True

    def unavailable(self, device: torch.device) -> str:
        return "" if device.type in ("cpu", "cuda") else f"No int4 matrix kernel was written for {device.type}."

    def kernel(self, device: torch.device) -> str:
        layout = layout_on(device)
        if layout == "tinygemm":
            return "_weight_int4pack_mm with bf16 activations"
        if layout == "nibbles":
            return f"dequantised to float and multiplied, on {device.type}"
        many = "torch._int_mm with int16 activations" if has_byte_products() else "fp32 matmul"
        many = "bf16 matmul" if has_bf16_tiles() else many
        few = f"_weight_int4pack_mm_for_cpu with bf16 activations up to {FEW_ROWS} rows"
        return f"{few}, above that unpacked and {many}"

    def is_own(self, module: nn.Module) -> bool:
        return False

    def convert(self, module: nn.Module, how: Conversion) -> nn.Module:
        return quantised(module, how, Int4Matrix)


def quantise_groups(weight: Tensor, group: int, moments: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (out, in) as codes 0-15 in uint8 (out, in), multipliers (out, groups) and scales (out,), both float32.

    `in` is a multiple of `group`. Each group's multiplier is the one among `CLIPS` with the least error of the output,
    by the inputs' moments (in,) or, without them, of the weights.
    """
    weight = weight.float()
    out, width = weight.shape
    peak = weight.abs().amax(dim=1)
    scales = torch.where(peak > 0, peak / _ROW_STEPS, torch.ones_like(peak))
    steps = (weight / scales[:, None]).view(out, -1, group)
    needed = (steps.abs().amax(dim=-1) / 7).clamp(1, LARGEST_MULTIPLIER)
    seen = None if moments is None else moments.view(1, -1, group)
    best = torch.zeros(steps.shape, dtype=torch.uint8, device=weight.device)
    multipliers, least = torch.ones_like(needed), torch.full_like(needed, torch.inf)
    for clip in CLIPS:
        tried = (needed * clip).ceil_().clamp_(1, LARGEST_MULTIPLIER)
        codes = (steps / tried[..., None]).round_().clamp_(-8, 7)
        error = (codes * tried[..., None]).sub_(steps).square_()
        error = (error if seen is None else error * seen).sum(dim=-1)
        better = error < least
        least, multipliers = torch.where(better, error, least), torch.where(better, tried, multipliers)
        best = torch.where(better[..., None], (codes + 8).to(torch.uint8), best)
    return best.view(out, width), multipliers, scales


class Int4Matrix(QuantisedMatrix):
    """Weights (..., out, in) as packed codes, group multipliers and row scales."""

    def __init__(self, weight: Tensor, how: Conversion, moments: Tensor | None = None) -> None:
        super().__init__(how)
        *experts, self.out_features, self.in_features = weight.shape
        self.group = how.group_size
        while self.group > SMALLEST_GROUP and self.in_features <= self.group // 2:
            self.group //= 2
        self._padding = -self.in_features % self.group
        self.layout = layout_on(weight.device)
        made = [
            self._pack(one, moments[index] if moments is not None and moments.ndim == 2 else moments)
            for index, one in enumerate(weight.detach() if experts else [weight.detach()])
        ]
        packed, multipliers, scales = (torch.stack(parts) if experts else parts[0] for parts in zip(*made, strict=True))
        self.packed, self.multipliers, self.scales = nn.Buffer(packed), nn.Buffer(multipliers), nn.Buffer(scales)

    def _pack(self, weight: Tensor, moments: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Codes as the layout has them; (groups, out, 2) multipliers and zeros in bf16, exact; (out,) scales."""
        padding = (0, self._padding, 0, -self.out_features % _BLOCK)
        if moments is not None:
            moments = F.pad(moments.to(weight.device), (0, self._padding))
        chunks = [quantise_groups(F.pad(rows, padding[:2]), self.group, moments) for rows in weight.split(_CHUNK)]
        codes, multipliers, scales = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        codes = F.pad(codes, (0, 0, *padding[2:]), value=8)
        multipliers = F.pad(multipliers, (0, 0, *padding[2:]), value=1.0)
        both = torch.stack([multipliers.T, torch.zeros_like(multipliers.T)], dim=-1)
        return _packed(codes, self.layout), both.to(torch.bfloat16), scales

    def product(self, inputs: Activations, expert: int | None = None) -> Tensor:
        packed, multipliers, scales = self._of(expert)
        few = len(inputs) <= FEW_ROWS
        if self.layout == "tinygemm" or (self.layout.startswith("blocks") and few):
            rows = F.pad(inputs.rows, (0, self._padding)).to(torch.bfloat16).contiguous()
            kernel = aten._weight_int4pack_mm if self.layout == "tinygemm" else aten._weight_int4pack_mm_for_cpu
            self.kernels[kernel.__name__] += 1
            # The multipliers are exact in bf16; the scales are applied in float32 afterwards.
            out = kernel(rows, packed, self.group, multipliers).float()
        elif self.layout.startswith("blocks"):
            out = self._many_rows(inputs, packed, multipliers)
        else:
            self.kernels["dequantised matmul"] += 1
            rows = F.pad(inputs.rows, (0, self._padding))
            weights = _from_nibbles(packed, multipliers, self.group).to(rows.dtype)
            out = F.linear(rows, weights).float()
        return out[:, : self.out_features].mul_(scales)

    def _many_rows(self, inputs: Activations, packed: Tensor, multipliers: Tensor) -> Tensor:
        half = int(self.layout.removeprefix("blocks of ")) // 2
        planes = _unpacked(packed, multipliers, self.group, half)
        out = torch.empty(len(inputs), packed.shape[0] // (2 * half), 2, half)
        if has_bf16_tiles() or not has_byte_products():
            # Whole numbers of at most 128 are exact in bf16.
            dtype = torch.bfloat16 if has_bf16_tiles() else torch.float32
            self.kernels[f"unpacked, {'bf16' if has_bf16_tiles() else 'fp32'} matmul"] += 1
            rows = F.pad(inputs.rows, (0, self._padding)).to(dtype)
            for place, plane in enumerate(planes):
                out[:, :, place] = (rows @ plane.to(dtype)).view(len(rows), -1, half)
            return out.view(len(rows), -1)
        self.kernels["unpacked, _int_mm with int16 activations"] += 1
        rows, row_scales = inputs.quantised(_LARGEST_ACTIVATION)
        rows = F.pad(rows, (0, self._padding))
        # A 16-bit number is 256 high + low, both of which fit in int8; the two are multiplied in one go.
        high = torch.bitwise_right_shift(rows + 128, 8)
        halves = torch.cat([high.to(torch.int8), (rows - 256 * high).to(torch.int8)])
        for place, plane in enumerate(planes):
            high_sum, low_sum = torch._int_mm(halves, plane).float().view(2, len(rows), -1, half)
            torch.add(low_sum, high_sum, alpha=256, out=out[:, :, place])
        return out.view(len(rows), -1).mul_(row_scales)

    def dequantised(self, expert: int | None = None) -> Tensor:
        packed, multipliers, scales = self._of(expert)
        if self.layout == "nibbles":
            weights = _from_nibbles(packed, multipliers, self.group)
        elif self.layout == "tinygemm":
            # Nothing else reads this layout: a product with one row for each input channel gives the weights.
            one_each = torch.eye(self.in_features + self._padding, dtype=torch.bfloat16, device=packed.device)
            weights = aten._weight_int4pack_mm(one_each, packed, self.group, multipliers).float().T
        else:
            half = int(self.layout.removeprefix("blocks of ")) // 2
            low, high = _unpacked(packed, multipliers, self.group, half)
            both = torch.stack([low.view(len(low), -1, half), high.view(len(high), -1, half)], dim=2)
            weights = both.view(len(low), -1).T.float()
        return weights[: self.out_features, : self.in_features] * scales[:, None]

    def _of(self, expert: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if expert is None:
            return self.packed, self.multipliers, self.scales
        return self.packed[expert], self.multipliers[expert], self.scales[expert]


# ---- layouts: "blocks of N" of PyTorch's kernel for CPUs, "tinygemm" of that for GPUs, and plain "nibbles" ----


def layout_on(device: torch.device) -> str:
    if device.type == "cpu":
        return _cpu_layout()
    if device.type == "cuda" and torch.version.cuda and torch.cuda.get_device_capability(device) >= (8, 0):
        return "tinygemm"
    return "nibbles"


@cache
def _cpu_layout() -> str:
    """PyTorch chooses the layout by the processor and does not say which: look at how a known matrix comes out."""
    codes = torch.arange(_BLOCK * 32, dtype=torch.uint8).remainder_(13).view(_BLOCK, 32)
    try:
        packed = _packed(codes, "blocks")
    except RuntimeError:  # some processors have no such kernel
        return "nibbles"
    ones = torch.ones(1, _BLOCK, 2, dtype=torch.bfloat16)
    for block in (64, 32):
        low, high = _unpacked(packed, ones, 32, block // 2)
        both = torch.stack([low.view(32, -1, block // 2), high.view(32, -1, block // 2)], dim=2).view(32, -1)
        if torch.equal(both.T, codes.to(torch.int8) - 8):
            return f"blocks of {block}"
    return "nibbles"


def _packed(codes: Tensor, layout: str) -> Tensor:
    """Codes 0-15, uint8 (out, in), packed two to a byte."""
    if layout.startswith("blocks"):
        return aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    if layout == "tinygemm":
        tiles = next(tiles for tiles in (8, 4, 2) if codes.shape[1] % (16 * tiles) == 0)
        return aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)
    return codes[:, ::2] | codes[:, 1::2] << 4


def _unpacked(packed: Tensor, multipliers: Tensor, group: int, half: int) -> tuple[Tensor, Tensor]:
    """Two planes of (code - 8) x multiplier, int8 (in, out / 2): of each block the first and the second half."""
    blocks, width = packed.numel() // (packed.shape[1] * 2 * half), packed.shape[1] * 2
    # Moved in pieces of 16 bytes, which takes half of the time that single bytes do.
    pieces = packed.view(blocks, width, half).view(torch.complex128)
    codes = pieces.transpose(0, 1).contiguous().view(torch.uint8).view(width // group, group, blocks * half)
    factors = multipliers[..., 0].to(torch.int8).view(width // group, 1, blocks, 2, half)
    planes = []
    for place, plane in enumerate((codes & 15, codes >> 4)):
        factor = factors[:, :, :, place].reshape(width // group, 1, blocks * half)
        planes.append(plane.view(torch.int8).sub_(8).mul_(factor).view(width, -1))
    return planes[0], planes[1]


def _from_nibbles(packed: Tensor, multipliers: Tensor, group: int) -> Tensor:
    """(code - 8) x multiplier, float32 (out, in)."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).view(len(packed), -1, group).float() - 8
    return (codes * multipliers[..., 0].T.float()[..., None]).view(len(packed), -1)
