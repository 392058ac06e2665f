"""Number formats of weights and products, switched part by part between runs."""

from __future__ import annotations

import torch

from engines.precision.base import Precision
from engines.precision.cast import Cast
from engines.precision.int8 import Int8

METHODS: dict[str, Precision] = {
    method.name: method
    for method in (
        Cast("fp32", "32-bit float", torch.float32),
        Cast("bf16", "bfloat16", torch.bfloat16),
        Int8(),
    )
}

__all__ = ["METHODS", "Precision"]
