"""Several processes that train one model: each learns from its share of a step, and all average their gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def run_workers(workers: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call the function in so many processes, which end when this one does; in this process if it is one."""
    if workers == 1:
        function(*arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        torch.multiprocessing.spawn(_join, args=(workers, meeting, function, arguments), nprocs=workers)


def _join(worker: int, workers: int, meeting: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=worker, world_size=workers)
    try:
        function(*arguments)
    finally:
        dist.destroy_process_group()


def place() -> tuple[int, int]:
    """Number of this worker, from 0, and of all workers."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every worker the mean of all workers' gradients, in place."""
    workers = place()[1]
    if workers == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / workers
    dist.all_reduce(flat)
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


def share_work(matrices: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`function` of a stack (n, ...), which treats each of the n alone: every worker computes its share for all."""
    worker, workers = place()
    if workers == 1:
        return function(matrices)
    result = torch.zeros_like(matrices)
    mine = slice(worker * len(matrices) // workers, (worker + 1) * len(matrices) // workers)
    if mine.start < mine.stop:
        result[mine] = function(matrices[mine])
    dist.all_reduce(result)
    return result


def any_worker(wish: bool) -> bool:
    """Whether any worker has the wish, so that all do the same."""
    if place()[1] == 1:
        return wish
    wishes = torch.tensor([float(wish)])
    dist.all_reduce(wishes)
    return bool(wishes > 0)
