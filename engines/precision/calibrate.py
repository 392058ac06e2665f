"""Measure what enters each layer, for the scales and the compensation of int8 and int4.

Visual and text tokens have the same say in every layer, by their signal-to-noise ratios (`statistics.joint`). Outliers
are clipped at a percentile of each layer and prompt, so that one token of a thousand does not decide a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import log10
from typing import Any

import torch
from torch import Tensor, nn

from engines.checkpoint import Checkpoint
from engines.config import PARTS
from engines.precision.base import LayerMoments, is_fused_experts
from engines.precision.int4 import SMALLEST_GROUP, quantise_groups
from engines.precision.probe import run_request
from engines.precision.statistics import LayerSignal, Statistics, joint
from engines.results import RunRequest

PERCENTILE = 99.9
GROUP = 2 * SMALLEST_GROUP
# The percentile is taken of at most so many values, evenly spread.
_SAMPLES = 1 << 16
# An expert that few tokens reached is described by all experts' tokens too, as if these were so many of its own.
_PRIOR_ROWS = 16
# Rows of weights that are looked at together.
_CHUNK = 4096
TEXT, VISUAL = 0, 1

Progress = Callable[[int], None]
"""Called with the number of prompts that are done."""


def calibrate(
    checkpoint: Checkpoint,
    requests: Iterable[RunRequest],
    source: str,
    percentile: float = PERCENTILE,
    progress: Progress = lambda done: None,
) -> Statistics:
    """`source` says in words where the requests come from. ValueError for a percentile out of range or no request."""
    if not 50 <= percentile <= 100:
        raise ValueError(f"The percentile is {percentile:g}; it must be at least 50 and at most 100.")
    collector, done = Collector(checkpoint, percentile), 0
    with collector.watching(), torch.inference_mode():
        for request in requests:
            run_request(checkpoint, request, begin=collector.begin)
            collector.begin(None)
            done += 1
            progress(done)
    if not done:
        raise ValueError("There is no prompt to calibrate on.")
    with torch.inference_mode():
        layers, signals = collector.finish()
    return Statistics(checkpoint.digest, layers, signals, done, percentile, source)


class _Sums:
    """Sums of squares of a layer's inputs by kind of token: (2, channels), or (2, experts, width)."""

    def __init__(self, *shape: int) -> None:
        self.squares = torch.zeros(2, *shape, dtype=torch.float64)
        self.rows = torch.zeros(2, *shape[:-1], dtype=torch.float64)

    @property
    def means(self) -> Tensor:
        return self.squares / self.rows.clamp_min(1)[..., None]


class Collector:
    """Adds up what enters the products while requests run."""

    def __init__(self, checkpoint: Checkpoint, percentile: float) -> None:
        self._percentile = percentile / 100
        names = {id(module): name for name, module in checkpoint.model.named_modules()}
        self._slots: list[tuple[str, nn.Module, bool]] = [
            (names[id(slot.module)], slot.module, part in ("language", "experts"))
            for part in PARTS
            for slot in checkpoint.structure.slots(part)
        ]
        self._inputs: dict[str, _Sums] = {}
        self._inner: dict[str, _Sums] = {}
        self._visual: Tensor | None = None

    def begin(self, visual: Tensor | None) -> None:
        """Which tokens of the prompt that the language model runs next are visual, (length,) bool."""
        self._visual = visual

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for path, module, in_language in self._slots:
                hook = self._experts_hook(path) if is_fused_experts(module) else self._hook(path, in_language)
                stack.callback(module.register_forward_pre_hook(hook).remove)
            yield

    def finish(self) -> tuple[dict[str, LayerMoments], dict[str, LayerSignal]]:
        layers, signals = {}, {}
        for path, module, _ in self._slots:
            sums = self._inputs.get(path)
            if sums is None:
                continue
            text, visual = sums.means.float()
            if is_fused_experts(module):
                # One set for all experts: each sees a part of the same tokens.
                weight: Tensor = module.gate_up_proj.flatten(0, 1)  # type: ignore[operator]
                inner = self._of_experts(self._inner[path], module)
            else:
                weight, inner = module.weight.flatten(1), None  # type: ignore[operator]
            power = _column_power(weight)
            layers[path] = LayerMoments(joint(text, visual, power), inner)
            noise = _noise_power(weight)
            signals[path] = LayerSignal(*(_decibel(one, power, noise) for one in (text, visual)))
        return layers, signals

    @staticmethod
    def _of_experts(sums: _Sums, module: Any) -> Tensor:
        """(experts, width)."""
        pooled = sums.squares.sum(dim=1, keepdim=True) / sums.rows.sum(dim=1).clamp_min(1)[:, None, None]
        rows = sums.rows[..., None]
        means = ((sums.squares + _PRIOR_ROWS * pooled) / (rows + _PRIOR_ROWS)).float()
        powers = [_column_power(weight) for weight in module.down_proj]
        return torch.stack(
            [joint(means[TEXT, expert], means[VISUAL, expert], power) for expert, power in enumerate(powers)]
        )

    def _hook(self, path: str, in_language: bool) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            # The tower's convolution gets patches, not rows.
            rows = inputs[0].flatten(1) if inputs[0].ndim == 5 else inputs[0].reshape(-1, inputs[0].shape[-1])
            self._add(self._inputs, path, rows, self._kinds(len(rows), in_language))

        return hook

    def _experts_hook(self, path: str) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, ...]) -> None:
            hidden, index, _ = inputs
            kinds = self._kinds(len(hidden), in_language=True).to(hidden.device)
            self._add(self._inputs, path, hidden, kinds)
            experts, _, width = module.down_proj.shape
            sums = self._inner.setdefault(path, _Sums(experts, width))
            for expert in index.unique().tolist():
                if expert == experts:
                    continue
                chosen = (index == expert).any(dim=-1)
                inner = module._apply_gate(hidden[chosen] @ module.gate_up_proj[expert].T)
                for kind in (TEXT, VISUAL):
                    rows = self._clip(inner[kinds[chosen] == kind])
                    sums.squares[kind, expert] += rows.square().sum(dim=0).double().cpu()
                    sums.rows[kind, expert] += len(rows)

        return hook

    def _kinds(self, rows: int, in_language: bool) -> Tensor:
        """(rows,): TEXT or VISUAL. What runs in the tower is visual; a head that sees the last row alone sees text."""
        if not in_language:
            return torch.full((rows,), VISUAL)
        if self._visual is None or len(self._visual) != rows:
            return torch.full((rows,), TEXT)
        return self._visual.long().cpu()

    def _add(self, where: dict[str, _Sums], path: str, rows: Tensor, kinds: Tensor) -> None:
        sums = where.setdefault(path, _Sums(rows.shape[-1]))
        for kind in (TEXT, VISUAL):
            of_kind = self._clip(rows[(kinds == kind).to(rows.device)])
            sums.squares[kind] += of_kind.square().sum(dim=0).double().cpu()
            sums.rows[kind] += len(of_kind)

    def _clip(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        if self._percentile == 1 or not rows.numel():
            return rows
        flat = rows.abs().flatten()
        limit = flat[:: -(-flat.numel() // _SAMPLES)].quantile(self._percentile)
        return rows.clamp(-limit, limit)


def _column_power(weight: Tensor) -> Tensor:
    """Of weights (out, in), the squares summed over the outputs, (in,)."""
    total = torch.zeros(weight.shape[1])
    for rows in weight.detach().split(_CHUNK):
        total += rows.float().square().sum(dim=0).cpu()
    return total


def _noise_power(weight: Tensor) -> Tensor:
    """Of plain int4 weights (out, in): the errors' squares summed over the outputs, (in,)."""
    width = weight.shape[1]
    total = torch.zeros(width)
    for rows in weight.detach().split(_CHUNK):
        padded = torch.nn.functional.pad(rows.float(), (0, -width % GROUP))
        codes, multipliers, scales = quantise_groups(padded, GROUP)
        values = (codes.float() - 8) * multipliers.repeat_interleave(GROUP, dim=1) * scales[:, None]
        total += (values - padded)[:, :width].square().sum(dim=0).cpu()
    return total


def _decibel(moments: Tensor, power: Tensor, noise: Tensor) -> float | None:
    signal, disturbance = float((moments * power).sum()), float((moments * noise).sum())
    return 10 * log10(signal / disturbance) if signal > 0 and disturbance > 0 else None
