"""How fast this device moves bytes and multiplies matrices, measured now in about two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engines.device.report import Rates
from engines.structure import synchronise

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# For each figure.
BUDGET_S = 0.5
_SMALLEST, _LARGEST_CPU, _LARGEST_GPU = 512, 4096, 8192
_LONG_ENOUGH_S = 0.05


def measure_rates(
    device: torch.device, dtypes: tuple[str, ...] = ("fp32", "bf16"), budget_s: float = BUDGET_S
) -> Rates:
    """The best of what was tried within the budget, for nothing that runs beside it makes a device faster."""
    with torch.inference_mode():
        return Rates(
            bytes_per_s=_bandwidth(device, budget_s),
            flops_per_s={name: _matmul(device, DTYPES[name], budget_s) for name in dtypes},
            transfer_bytes_per_s=_transfer(device, budget_s / 2) if device.type == "cuda" else None,
        )


def _bandwidth(device: torch.device, budget_s: float) -> float:
    """Bytes a second of summing up, or of copying, more than any cache holds; the better of the two."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 31
    source = torch.ones(min(1 << 28, free // 8) // 4, device=device)
    target = torch.empty_like(source)
    reading = source.nbytes / _best_s(source.sum, device, budget_s / 2)
    copying = 2 * source.nbytes / _best_s(lambda: target.copy_(source), device, budget_s / 2)
    return max(reading, copying)


def _matmul(device: torch.device, dtype: torch.dtype, budget_s: float) -> float:
    """FLOPs a second of a square product, as large as pays within the budget."""
    size, best, started_s = _SMALLEST, 0.0, time.perf_counter()
    largest = _LARGEST_GPU if device.type == "cuda" else _LARGEST_CPU
    while True:
        one = torch.randn(size, size, device=device).to(dtype)
        left_s = budget_s - (time.perf_counter() - started_s)
        spent_s = _best_s(lambda one=one: one @ one, device, min(left_s, budget_s / 4))  # type: ignore[misc]
        best = max(best, 2 * size**3 / spent_s)
        left_s = budget_s - (time.perf_counter() - started_s)
        # The next size takes eight times as long, and is run twice at least.
        if size >= largest or spent_s > _LONG_ENOUGH_S or 16 * spent_s > left_s:
            return best
        size *= 2


def _transfer(device: torch.device, budget_s: float) -> float:
    """From ordinary memory to the GPU, as weights go that accelerate keeps there."""
    source = torch.ones(1 << 25)
    return source.nbytes / _best_s(lambda: source.to(device), device, budget_s)


def _best_s(work: Callable[[], object], device: torch.device, budget_s: float) -> float:
    """The shortest of the calls that the budget has room for, and of one at least, after one to warm up."""
    work()
    synchronise(device)
    best, end_s = float("inf"), time.perf_counter() + budget_s
    while True:
        start_s = time.perf_counter()
        work()
        synchronise(device)
        now_s = time.perf_counter()
        best = min(best, now_s - start_s)
        if now_s >= end_s:
            return best
