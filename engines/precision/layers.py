"""What the integer formats share: the modules that stand in for the model's products, and the rows that enter them.

A format brings a `QuantisedMatrix`; the modules here do the rest, for linear layers, the patch embedding and the fused
3-D expert tensors alike, which most tools skip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from engines.precision.base import Conversion, is_fused_experts
from engines.precision.compensation import Compensation, compensate


class Activations:
    """Rows (n, in) that enter products, in the formats that the kernels ask for. Each format is made once."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._source: tuple[Activations, Tensor] | None = None

    def __len__(self) -> int:
        return self.rows.shape[0]

    def take(self, chosen: Tensor) -> Activations:
        """Some of the rows, by index (m,). What was quantised of all rows is not quantised again."""
        taken = Activations(self.rows[chosen])
        taken._source = (self, chosen)
        return taken

    def quantised(self, largest: int) -> tuple[Tensor, Tensor]:
        """Whole numbers from -`largest` to `largest` as int8, or int16 above 127, and float32 scales (n, 1)."""
        if largest not in self._made:
            if self._source is not None:
                whole, chosen = self._source
                values, scales = whole.quantised(largest)
                self._made[largest] = values[chosen], scales[chosen]
            else:
                self._made[largest] = quantise_rows(self.rows, largest)
        return self._made[largest]


def quantise_rows(values: Tensor, largest: int = 127) -> tuple[Tensor, Tensor]:
    """Symmetric round-to-nearest with one scale for each row of the last dimension.

    (..., n) -> whole numbers (..., n), int8 or above 127 int16, and float32 scales (..., 1); a row of zeros gets scale
    1 and stays zero.
    """
    values = values.float()
    peak = values.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(peak > 0, peak / largest, torch.ones_like(peak))
    return (values / scales).round_().to(torch.int8 if largest <= 127 else torch.int16), scales


class QuantisedMatrix(nn.Module, ABC):
    """Weights (out, in), or (experts, out, in), in an integer format."""

    def __init__(self, how: Conversion) -> None:
        super().__init__()
        self.kernels = how.kernels

    @abstractmethod
    def product(self, inputs: Activations, expert: int | None = None) -> Tensor:
        """inputs (n, in) times the transposed weights: float32 (n, out)."""

    @abstractmethod
    def dequantised(self, expert: int | None = None) -> Tensor:
        """The weights as they stand for, float32 (out, in)."""


class QuantisedLinear(nn.Module):
    """A linear layer with quantised weights; input and output keep their own float format."""

    def __init__(self, matrix: QuantisedMatrix, weight: Tensor, bias: Tensor | None, how: Conversion) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.compensation = compensate([(matrix, weight, how.moments.inputs if how.moments else None)], how)[0]

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        out = self.matrix.product(Activations(rows))
        if self.compensation is not None:
            self.compensation.add_to(out, rows)
        if self.bias is not None:
            out += self.bias
        return out.to(inputs.dtype).view(*inputs.shape[:-1], -1)


class QuantisedPatchEmbedding(nn.Module):
    """The tower's first convolution, which covers each patch exactly once and so is a matrix product."""

    def __init__(self, matrix: QuantisedMatrix, convolution: nn.Conv3d, how: Conversion) -> None:
        super().__init__()
        self.linear = QuantisedLinear(matrix, convolution.weight.flatten(1), convolution.bias, how)
        # The tower casts its pixels to the format of `proj.weight`; this empty tensor keeps that format.
        self.weight = nn.Buffer(torch.empty(0, dtype=convolution.weight.dtype, device=convolution.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1))


class QuantisedExperts(nn.Module):
    """Fused experts with quantised weights: for each expert in use, its rows are gathered and multiplied.

    A pair whose index is the number of experts is skipped, and costs nothing.
    """

    def __init__(self, gate_up: QuantisedMatrix, down: QuantisedMatrix, experts: Any, how: Conversion) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self.num_experts = int(experts.num_experts)
        self.apply_gate = experts._apply_gate
        moments = how.moments
        gate_up_of, down_of = compensate(
            [
                (gate_up, experts.gate_up_proj, moments.inputs if moments else None),
                (down, experts.down_proj, moments.inner if moments else None),
            ],
            how,
        )
        self.gate_up_compensation, self.down_compensation = gate_up_of, down_of

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states (tokens, hidden), top_k_index and top_k_weights (tokens, k) -> (tokens, hidden)."""
        top_k = top_k_index.shape[1]
        expert_of_pair, pairs = top_k_index.reshape(-1).sort(stable=True)
        rows = pairs // top_k
        weights = top_k_weights.reshape(-1)[pairs].float().unsqueeze(-1)
        counts = torch.bincount(expert_of_pair, minlength=self.num_experts).tolist()
        out = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
        inputs = Activations(hidden_states)
        start = 0
        for expert, count in enumerate(counts[: self.num_experts]):
            if count == 0:
                continue
            chosen = rows[start : start + count]
            # An expert gets each of its rows once, so that the sum has no unordered writes.
            out.index_add_(0, chosen, self._one(inputs.take(chosen), expert).mul_(weights[start : start + count]))
            start += count
        return out.to(hidden_states.dtype)

    def _one(self, inputs: Activations, expert: int) -> Tensor:
        gate_up = _compensated(self.gate_up, self.gate_up_compensation, inputs, expert)
        return _compensated(self.down, self.down_compensation, Activations(self.apply_gate(gate_up)), expert)


def _compensated(
    matrix: QuantisedMatrix, compensation: Compensation | None, inputs: Activations, expert: int
) -> Tensor:
    out = matrix.product(inputs, expert)
    if compensation is not None:
        compensation.add_to(out, inputs.rows, expert)
    return out


def quantised(module: nn.Module, how: Conversion, matrix: Callable[..., QuantisedMatrix]) -> nn.Module:
    """What takes a module's place, its weights held by `matrix`, made of (weight, how, moments of its inputs)."""
    inputs, inner = (how.moments.inputs, how.moments.inner) if how.moments else (None, None)
    if is_fused_experts(module):
        return QuantisedExperts(
            matrix(module.gate_up_proj, how, inputs), matrix(module.down_proj, how, inner), module, how
        )
    weight: Tensor = module.weight.flatten(1)  # type: ignore[operator]
    held = matrix(weight, how, inputs)
    if isinstance(module, nn.Conv3d):
        return QuantisedPatchEmbedding(held, module, how)
    return QuantisedLinear(held, weight, module.bias, how)  # type: ignore[arg-type]
