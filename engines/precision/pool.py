"""Converted weights, kept so that switching costs the conversion once, and put in place for the length of a run."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from engines.config import NATIVE, PrecisionConfig
from engines.precision import METHODS
from engines.results import EngineError, PartWeights
from engines.structure import PARTS, Slot, Structure

Replacements = list[tuple[Slot, nn.Module]]


class WeightPool:
    """Prepared variants of the model's parts, the least recently used dropped first beyond `capacity_bytes`."""

    def __init__(self, structure: Structure, device: torch.device, native: str, capacity_bytes: int) -> None:
        self._structure = structure
        self._device = device
        self._native = native
        self._capacity_bytes = capacity_bytes
        self._variants: OrderedDict[tuple[str, str], tuple[Replacements, int]] = OrderedDict()

    def missing(self, config: PrecisionConfig) -> list[tuple[str, str]]:
        """The (part, precision) pairs that `prepare` would have to convert."""
        return [pair for pair in self._wanted(config) if pair not in self._variants]

    def prepare(self, config: PrecisionConfig) -> None:
        """Convert what is missing. Raises EngineError where the device cannot do it."""
        wanted = self._wanted(config)
        for part, precision in wanted:
            reason = METHODS[precision].unavailable(self._device)
            if reason:
                raise EngineError(f"precision.{part}={precision} is not available: {reason}")
            if (part, precision) in self._variants:
                self._variants.move_to_end((part, precision))
                continue
            method = METHODS[precision]
            with torch.inference_mode():
                replacements = [
                    (slot, method.convert(slot.module).eval())
                    for slot in self._structure.slots(part)
                    if not method.is_own(slot.module)
                ]
            size = _unique_bytes(tensor for _, module in replacements for tensor in module.state_dict().values())
            self._variants[part, precision] = (replacements, size)
            self._shrink(keep=set(wanted))

    @contextmanager
    def applied(self, config: PrecisionConfig) -> Iterator[None]:
        """The prepared variants in place of the checkpoint's modules while the context is open."""
        installed: list[Slot] = []
        try:
            for pair in self._wanted(config):
                for slot, replacement in self._variants[pair][0]:
                    slot.parent._modules[slot.attribute] = replacement
                    installed.append(slot)
            yield
        finally:
            for slot in installed:
                slot.parent._modules[slot.attribute] = slot.module

    def weights(self, config: PrecisionConfig) -> tuple[PartWeights, ...]:
        """Bytes of each part as the model stands now, shared tensors counted once. Call inside `applied`."""
        seen: set[int] = set()
        parts = []
        for part in PARTS:
            by_dtype: dict[str, int] = {}
            for tensor in self._structure.tensors(part):
                if tensor.numel() == 0 or tensor.data_ptr() in seen:
                    continue
                seen.add(tensor.data_ptr())
                name = str(tensor.dtype).removeprefix("torch.")
                by_dtype[name] = by_dtype.get(name, 0) + tensor.nbytes
            if by_dtype:
                chosen = getattr(config, part)
                precision = self._native if chosen == NATIVE else chosen
                kernel = METHODS[precision].kernel(self._device) if precision in METHODS else f"{precision} matmul"
                parts.append(PartWeights(part, precision, by_dtype, kernel))
        return tuple(parts)

    def clear(self) -> None:
        self._variants.clear()

    def _wanted(self, config: PrecisionConfig) -> list[tuple[str, str]]:
        chosen = dataclasses.asdict(config)
        return [(part, chosen[part]) for part in PARTS if chosen[part] != NATIVE and self._structure.slots(part)]

    def _shrink(self, keep: set[tuple[str, str]]) -> None:
        total = sum(size for _, size in self._variants.values())
        for pair in list(self._variants):
            if total <= self._capacity_bytes:
                return
            if pair not in keep:
                total -= self._variants.pop(pair)[1]


def _unique_bytes(tensors: Iterator[Tensor]) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
