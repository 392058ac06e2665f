"""Number formats of weights and products, switched part by part between runs."""

from __future__ import annotations

import torch

from engines.precision.base import Precision
from engines.precision.cast import Cast
from engines.precision.int4 import Int4
from engines.precision.int8 import Int8

METHODS: dict[str, Precision] = {
    method.name: method
    for method in (
        Cast("fp32", "32-bit float", torch.float32),
        Cast("bf16", "bfloat16", torch.bfloat16),
        Cast("fp16", "16-bit float", torch.float16),
        Int8(),
        Int4(),
    )
}

__all__ = ["METHODS", "Precision", "why_not"]


def why_not(name: str, device: torch.device, fixed: str = "") -> str:
    """Why weights cannot be converted to this precision, in a sentence; empty when they can, or need not be.

    `fixed` says why the checkpoint's own weights cannot be converted, whatever the device: see `Structure.fixed`.
    """
    if name not in METHODS:
        return ""
    return fixed or METHODS[name].unavailable(device)
