"""The shape of a precision: one class that turns a matrix product of the model into one of another number format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import nn


class Precision(ABC):
    """Converts the modules of a part. The residual stream between them keeps the checkpoint's own format."""

    name: ClassVar[str]
    label: ClassVar[str]

    @abstractmethod
    def unavailable(self, device: torch.device) -> str:
        """Why this device cannot do it, in a sentence; empty when it can."""

    @abstractmethod
    def kernel(self, device: torch.device) -> str:
        """Which matrix kernel multiplies the converted weights on this device."""

    @abstractmethod
    def convert(self, module: nn.Module) -> nn.Module:
        """A replacement for a linear layer, a patch embedding or fused experts. Leaves `module` as it is."""

    @abstractmethod
    def is_own(self, module: nn.Module) -> bool:
        """Whether the module's weights are in this format already, so that nothing needs replacing."""


def is_fused_experts(module: nn.Module) -> bool:
    return hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")


def weight_of(module: nn.Module) -> torch.Tensor:
    """The largest weight of a product, whose format is the module's format."""
    return module.gate_up_proj if is_fused_experts(module) else module.weight  # type: ignore[return-value]
