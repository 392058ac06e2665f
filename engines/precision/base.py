"""The shape of a precision: one class that turns a matrix product of the model into one of another number format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from engines.precision.compensation import Record


@dataclass(frozen=True)
class LayerMoments:
    """Mean squares of what enters a layer, one for each input channel, outliers clipped; float32.

    Both kinds of token have the same say, however many there are and however loud: see `engines.precision.statistics`.
    """

    inputs: Tensor
    """(in,) of a product; (hidden,) of fused experts."""
    inner: Tensor | None = None
    """(experts, width): what enters the second product of fused experts."""


@dataclass
class Conversion:
    """What a conversion needs to know besides the weights, and what it leaves: records, and which kernels ran."""

    path: str = ""
    part: str = ""
    precision: str = ""
    group_size: int = 64
    rank: int = 0
    moments: LayerMoments | None = None
    records: list[Record] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    """By name, how many products each kernel has computed. The converted modules count in it while they run."""


class Precision(ABC):
    """Converts the modules of a part. The residual stream between them keeps the checkpoint's own format."""

    name: ClassVar[str]
    label: ClassVar[str]
    quantises: ClassVar[bool] = False
    """Whether a tied output head, which is the embedding table once more, is left as it is unless chosen."""

    @abstractmethod
    def unavailable(self, device: torch.device) -> str:
        """Why this device cannot do it, in a sentence; empty when it can."""

    @abstractmethod
    def kernel(self, device: torch.device) -> str:
        """Which matrix kernels multiply the converted weights on this device."""

    @abstractmethod
    def convert(self, module: nn.Module, how: Conversion) -> nn.Module:
        """A replacement for a linear layer, a patch embedding or fused experts. Leaves `module` as it is."""

    @abstractmethod
    def is_own(self, module: nn.Module) -> bool:
        """Whether the module's weights are in this format already, so that nothing needs replacing."""


@cache
def has_byte_products() -> bool:
    """Whether this CPU adds up products of bytes in 32 bits; without that, older ones overflow at 16 bits."""
    return bool(torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported())


@cache
def has_bf16_tiles() -> bool:
    """Whether this CPU multiplies bf16 tiles (AMX), which for very many rows are its fastest products."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._is_avx512_bf16_supported())


def is_fused_experts(module: nn.Module) -> bool:
    return hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")


def weight_of(module: nn.Module) -> Tensor:
    """The largest weight of a product, whose format is the module's format."""
    return module.gate_up_proj if is_fused_experts(module) else module.weight  # type: ignore[return-value]
