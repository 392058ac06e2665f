"""Weights at several precisions: converted once, put in place for the length of a run, and held within a bound.

The checkpoint's own weights count too. What is not in use goes first, the least recently used before all; the own
weights are then read again from the checkpoint's files when a run asks for them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from engines.config import INTEGER, NATIVE, PARTS, PrecisionConfig
from engines.precision import METHODS
from engines.precision.base import Conversion, LayerMoments
from engines.precision.compensation import Record, share_out
from engines.precision.native import NativeWeights, give_back_memory
from engines.precision.statistics import Statistics
from engines.reports import PartWeights, PrecisionReport
from engines.results import EngineError
from engines.structure import Slot, Structure

Key = tuple[str | float, ...]
"""A part and what `PrecisionConfig.details` says of it."""


@dataclass
class _Variant:
    """A part at one precision."""

    replacements: list[tuple[Slot, nn.Module]] = field(default_factory=list)
    bytes: int = 0
    records: list[Record] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)


class WeightPool:
    """Prepared variants of the model's parts. Weights of all kinds beyond `capacity_bytes` are given up if unused."""

    def __init__(
        self,
        structure: Structure,
        device: torch.device,
        native: str,
        capacity_bytes: int,
        folder: Path | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self._structure = structure
        self._device = device
        self._native_name = native
        self._capacity_bytes = capacity_bytes
        self._statistics = statistics
        # Found once: while a run goes on, other modules stand in these places.
        self._slots = {part: structure.slots(part) for part in PARTS}
        self._native = NativeWeights(structure, self._slots, folder)
        self._paths = {id(module): name for name, module in structure.model.named_modules()}
        self._variants: dict[Key, _Variant] = {}
        self._used: OrderedDict[Key, None] = OrderedDict(((part, NATIVE), None) for part in PARTS)
        """Everything that is held, the least recently used first."""

    def missing(self, config: PrecisionConfig) -> list[tuple[str, str]]:
        """The (part, precision) pairs that `prepare` would have to convert or to read again."""
        found = []
        for key in self._wanted(config):
            part, precision = str(key[0]), str(key[1])
            away = any(not self._native.is_here(slot) for slot in self._own_slots(key))
            if away or (precision != NATIVE and key not in self._variants):
                found.append((part, precision))
        return found

    def prepare(self, config: PrecisionConfig) -> None:
        """Have ready what the settings name. Raises EngineError where the device cannot do it."""
        wanted = self._wanted(config)
        for key in wanted:
            if key[1] != NATIVE and (reason := METHODS[str(key[1])].unavailable(self._device)):
                raise EngineError(f"precision.{key[0]}={key[1]} is not available: {reason}")
        keep = set(wanted)
        # What is read again needs room: make it first.
        self._shrink(keep, sum(self._native.away_bytes(slot) for key in wanted for slot in self._own_slots(key)))
        for key in wanted:
            if key[1] != NATIVE and key not in self._variants:
                self._convert(key, config, keep)
            for slot in self._own_slots(key):
                self._native.restore(slot)
            self._used[key] = None
            self._used.move_to_end(key)
            self._shrink(keep)

    @contextmanager
    def applied(self, config: PrecisionConfig) -> Iterator[None]:
        """The prepared variants in place of the checkpoint's modules while the context is open."""
        installed: list[Slot] = []
        try:
            for key in self._wanted(config):
                if key[1] == NATIVE:
                    continue
                for slot, replacement in self._variants[key].replacements:
                    slot.parent._modules[slot.attribute] = replacement
                    installed.append(slot)
            yield
        finally:
            for slot in installed:
                slot.parent._modules[slot.attribute] = slot.module

    def start_counting(self) -> None:
        """Count the kernels' products from now on."""
        for variant in self._variants.values():
            variant.kernels.clear()

    def weights(self, config: PrecisionConfig) -> tuple[PartWeights, ...]:
        """Bytes of each part as the model stands now, shared tensors counted once. Call inside `applied`."""
        seen: set[int] = set()
        parts = []
        for part in PARTS:
            by_dtype: dict[str, int] = {}
            for tensor in self._structure.tensors(part):
                if tensor.numel() == 0 or tensor.is_meta or tensor.data_ptr() in seen:
                    continue
                seen.add(tensor.data_ptr())
                name = str(tensor.dtype).removeprefix("torch.")
                by_dtype[name] = by_dtype.get(name, 0) + tensor.nbytes
            if by_dtype:
                chosen = getattr(config, part)
                precision = self._native_name if chosen == NATIVE else chosen
                kernel = METHODS[precision].kernel(self._device) if precision in METHODS else f"{precision} matmul"
                variant = self._variants.get((part, *config.details(part)))
                ran = dict(variant.kernels.most_common()) if variant is not None else {}
                parts.append(PartWeights(part, precision, by_dtype, kernel, ran))
        return tuple(parts)

    def report(self, config: PrecisionConfig) -> PrecisionReport:
        """The errors of the layers that the settings quantise, and what is held."""
        wanted = [key for key in self._wanted(config) if key[1] in INTEGER]
        return PrecisionReport(
            layers=tuple(record.error() for key in wanted for record in self._variants[key].records),
            calibrated=(config.use_calibration and self._statistics is not None) if wanted else None,
            held_bytes=self.held_bytes(),
            bound_bytes=self._capacity_bytes,
        )

    def held_bytes(self) -> int:
        """Bytes of the products' weights in memory, at all precisions."""
        own = sum(self._native.held_bytes(part) for part in PARTS)
        return own + sum(variant.bytes for variant in self._variants.values())

    def clear(self) -> None:
        """Drop every variant and read the checkpoint's own weights again."""
        for key in list(self._variants):
            self._drop(key)
        self._native.restore_all()

    def _wanted(self, config: PrecisionConfig) -> list[Key]:
        return [(part, *config.details(part)) for part in PARTS if self._slots[part]]

    def _convert(self, key: Key, config: PrecisionConfig, keep: set[Key]) -> None:
        part, precision = str(key[0]), str(key[1])
        method, variant = METHODS[precision], _Variant()
        held = self.held_bytes()
        for slot in self._slots[part]:
            if method.is_own(slot.module) or self._leaves_alone(slot, config, precision):
                continue
            self._native.restore(slot)
            how = Conversion(
                path=self._paths[id(slot.module)],
                part=part,
                precision=precision,
                group_size=config.group_size,
                rank=config.compensation_rank,
                moments=self._moments(slot, config),
                records=variant.records,
                kernels=variant.kernels,
            )
            with torch.inference_mode():
                replacement = method.convert(slot.module, how).eval()
            variant.replacements.append((slot, replacement))
            held += _unique_bytes(iter(replacement.state_dict().values()))
            # Slot by slot, so that a model never needs room for a whole part twice.
            if held > self._capacity_bytes and (part, NATIVE) not in keep:
                before = self._native.held_bytes(part)
                if self._native.release(slot):
                    held -= before - self._native.held_bytes(part)
        if config.compensation_rank:
            share_out(variant.records, config.compensation_share)
        replacements = (module for _, module in variant.replacements)
        variant.bytes = _unique_bytes(tensor for module in replacements for tensor in module.state_dict().values())
        self._variants[key] = variant

    def _leaves_alone(self, slot: Slot, config: PrecisionConfig, precision: str) -> bool:
        is_tied = self._structure.tied_head and slot.module is self._structure.lm_head
        return is_tied and precision in INTEGER and not config.tied_head

    def _moments(self, slot: Slot, config: PrecisionConfig) -> LayerMoments | None:
        if self._statistics is None or not config.use_calibration:
            return None
        found = self._statistics.moments(self._paths[id(slot.module)])
        if found is None:
            return None
        return LayerMoments(
            found.inputs.to(self._device), found.inner.to(self._device) if found.inner is not None else None
        )

    def _own_slots(self, key: Key) -> list[Slot]:
        """The slots of a part whose own weights are in use with this key."""
        slots = self._slots[str(key[0])]
        variant = self._variants.get(key)
        if variant is None:
            return slots if key[1] == NATIVE else []
        replaced = {id(slot.module) for slot, _ in variant.replacements}
        return [slot for slot in slots if id(slot.module) not in replaced]

    def _shrink(self, keep: set[Key], room: int = 0) -> None:
        """Give up what is not in `keep` until the rest, and `room` bytes more, are within the bound."""
        dropped = False
        for key in [key for key in self._used if key not in keep]:
            if self.held_bytes() + room <= self._capacity_bytes:
                break
            dropped = True
            if key[1] != NATIVE:
                self._drop(key)
                continue
            in_use = {id(slot.module) for wanted in keep if wanted[0] == key[0] for slot in self._own_slots(wanted)}
            for slot in self._slots[str(key[0])]:
                if id(slot.module) not in in_use:
                    self._native.release(slot)
        if dropped:
            give_back_memory()

    def _drop(self, key: Key) -> None:
        del self._variants[key]
        self._used.pop(key, None)


def _unique_bytes(tensors: Iterator[Tensor]) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
