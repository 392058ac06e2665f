"""Peak memory of a run, where the platform can measure it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMeter:
    """Measures the peak since `start()`: allocated GPU memory on CUDA, resident memory of the process on Linux."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.source = ""

    def start(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self.source = "peak allocated GPU memory"
            return
        try:
            # Linux: resets the high-water mark of resident memory.
            _CLEAR_REFS.write_text("5")
            self.source = "peak resident memory of the process"
        except OSError:
            self.source = ""

    def peak_bytes(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self.source:
            self.source = "not measured: this system does not let a process reset its peak"
            return None
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None


def cache_bytes(cache: Any) -> int:
    """Bytes of every tensor that a transformers cache holds: keys, values, and states of linear attention."""
    tensors = {}
    for layer in cache.layers:
        # A layer in blocks holds its tensors in parts and names them itself.
        held = layer.tensors() if hasattr(layer, "tensors") else vars(layer).values()
        for value in held:
            # Linear attention keeps its states by number.
            parts = value.values() if isinstance(value, dict) else value
            for tensor in parts if isinstance(value, list | tuple | dict) else [value]:
                if isinstance(tensor, Tensor):
                    tensors[tensor.data_ptr()] = tensor.nbytes
    return sum(tensors.values())
