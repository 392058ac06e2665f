"""The multiples in which a device's matrix units take dimensions, and the layers that miss them.

Tensor cores: NVIDIA, Deep Learning Performance Guide, "Requirements to use tensor cores": 16 bytes of inner and outer
dimension, best in 128 bytes from A100 on. AMX: tiles of 16 rows of 64 bytes (Intel SDM, chapter 18). VNNI: four bytes
are summed in each of 16 lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from engines.device.report import DimensionRule, Misfit
from engines.precision.base import has_byte_products
from engines.structure import Structure

BYTES = {"fp16": 2, "bf16": 2, "int8": 1}


def rules_of(device: torch.device) -> tuple[DimensionRule, ...]:
    """Empty where no rule is known."""
    if device.type == "cuda":
        return tensor_core_rules(torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        return cpu_rules(amx=bool(torch.cpu._is_amx_tile_supported()), vnni=has_byte_products())
    return ()


def tensor_core_rules(capability: tuple[int, int]) -> tuple[DimensionRule, ...]:
    if capability < (7, 0):
        return ()
    wanted = 128 if capability >= (8, 0) else 16
    formats = [name for name, since in (("fp16", (7, 0)), ("bf16", (8, 0)), ("int8", (7, 2))) if capability >= since]
    return tuple(DimensionRule(name, "tensor cores", *(wanted // BYTES[name],) * 2) for name in formats)


def cpu_rules(*, amx: bool, vnni: bool) -> tuple[DimensionRule, ...]:
    if amx:
        return (DimensionRule("bf16", "AMX tiles", 32, 16), DimensionRule("int8", "AMX tiles", 64, 16))
    return (DimensionRule("int8", "VNNI", 4, 16),) if vnni else ()


def misfits(structure: Structure, rules: Iterable[DimensionRule]) -> tuple[Misfit, ...]:
    """Products whose dimensions are no multiples of what the rules want, layers of a kind together."""
    found: dict[tuple[str, str, int, int], list[str]] = {}
    for rule in rules:
        for path, outer, inner in _products(structure):
            if outer % rule.outer or inner % rule.inner:
                found.setdefault((rule.dtype, re.sub(r"\.\d+\.", ".*.", path), outer, inner), []).append(path)
    wanted = {rule.dtype: rule for rule in rules}
    return tuple(
        Misfit(dtype, path, len(paths), outer, inner, _why(wanted[dtype], outer, inner))
        for (dtype, path, outer, inner), paths in found.items()
    )


def _products(structure: Structure) -> Iterator[tuple[str, int, int]]:
    """(name, outputs, inputs) of every matrix product that a precision can replace."""
    names = {id(module): name for name, module in structure.model.named_modules()}
    for part in ("vision", "projector", "language", "experts"):
        for slot in structure.slots(part):
            name = names[id(slot.module)]
            if part == "experts":
                for attribute in ("gate_up_proj", "down_proj"):
                    _, outer, inner = getattr(slot.module, attribute).shape
                    yield f"{name}.{attribute}", outer, inner
            else:
                weight = slot.module.weight
                yield name, int(weight.shape[0]), int(weight[0].numel())  # type: ignore[index]


def _why(rule: DimensionRule, outer: int, inner: int) -> str:
    missed = [f"{size} inputs, wants {want}" for size, want in ((inner, rule.inner),) if size % want]
    missed += [f"{size} outputs, wants {want}" for size, want in ((outer, rule.outer),) if size % want]
    return "; ".join(missed)
