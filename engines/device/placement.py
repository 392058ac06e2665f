"""Where the weights lie, and how they are split when the GPU has no room for all of them.

Experts, or a dense model's MLPs, are most of the weights: those of the last layers go to the machine's memory, as few
as have to. accelerate brings each to the GPU for its pass and takes it away again, so that everything is still computed
there, and activations and caches never leave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn

from engines.device.offload import offloaded
from engines.device.report import PlacedPart, Placement
from engines.structure import Structure

# Of the GPU's free memory, what is left for activations, KV cache and the weights on their way through.
ROOM = 0.1
CPU = "cpu"


@dataclass(frozen=True)
class Capacity:
    """Free bytes."""

    device: int
    host: int
    shared: bool = False
    """Whether both are the same memory, as on a Jetson."""

    @property
    def usable(self) -> int:
        """Of the device, for weights."""
        return int(self.device * (1 - ROOM))


def capacity_of(device: torch.device) -> Capacity:
    host = int(psutil.virtual_memory().available)
    if device.type != "cuda":
        return Capacity(host, host, shared=True)
    free = int(torch.cuda.mem_get_info(device)[0])
    return Capacity(free, host, shared=bool(torch.cuda.get_device_properties(device).is_integrated))


def movable(structure: Structure) -> list[tuple[str, nn.Module]]:
    """What may lie in the machine's memory, by its name in the model, in the order of the layers."""
    names = {id(module): name for name, module in structure.model.named_modules()}
    experts = {id(layer.experts) for layer in structure.moe_layers}
    found = []
    for layer in structure.language_model.layers:
        inside = [module for module in layer.modules() if id(module) in experts] or [getattr(layer, "mlp", None)]
        found += [(names[id(module)], module) for module in inside if module is not None]
    return found


def split(
    structure: Structure, itemsize: int, capacity: Capacity, device: torch.device | int | str
) -> dict[str, torch.device | int | str] | None:
    """A device map for a model on the meta device; None if there is no room even so.

    `itemsize` is the bytes of a value as it will be loaded.
    """
    parts = movable(structure)
    left = _bytes(structure.model, itemsize) - capacity.usable
    away: list[tuple[str, nn.Module]] = []
    largest = 0
    for name, module in reversed(parts):
        # The largest of those away comes in whole while it is used.
        if left + largest <= 0:
            break
        size = _bytes(module, itemsize)
        away.append((name, module))
        left, largest = left - size, max(largest, size)
    if left + largest > 0 or sum(_bytes(module, itemsize) for _, module in away) > capacity.host:
        return None
    return device_map(structure.model, {name for name, _ in away}, device, CPU)


def device_map(
    model: nn.Module, away: set[str], device: torch.device | int | str, elsewhere: str
) -> dict[str, torch.device | int | str]:
    """The coarsest map that has the named modules elsewhere and all others on the device."""

    def of(name: str, module: nn.Module) -> Iterator[tuple[str, torch.device | int | str]]:
        if name in away:
            yield name, elsewhere
        elif not any(other.startswith(f"{name}." if name else "") for other in away):
            yield name, device
        else:
            for inner, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                yield _join(name, inner), device
            for inner, child in module.named_children():
                yield from of(_join(name, inner), child)

    return dict(of("", model))


def _join(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def _bytes(module: nn.Module, itemsize: int) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) * itemsize


# ---- what is where ----


def placement(structure: Structure) -> Placement:
    """The bytes of each part by place, read from the tensors that are held now, shared ones counted once."""
    away = list(offloaded(structure.model))
    # The stand-ins on the meta device have the right size whatever became of the values.
    homes = {id(inner._parameters[name]): "disk" if held is None else "CPU memory" for inner, name, held in away}
    seen: set[int] = set()

    def places(tensors: Iterable[Tensor]) -> dict[str, int]:
        found: dict[str, int] = {}
        for tensor in tensors:
            key = id(tensor) if tensor.is_meta else tensor.data_ptr()
            place = homes.get(id(tensor)) or _place(tensor)
            if key not in seen and tensor.numel() and place:
                seen.add(key)
                found[place] = found.get(place, 0) + tensor.nbytes
        return found

    parts: list[PlacedPart] = []

    def add(part: str, found: dict[str, int]) -> None:
        parts.extend(PlacedPart(part, place, count) for place, count in sorted(found.items()))

    visual = structure.visual
    mergers = {id(tensor) for merger in structure.mergers for tensor in _held(merger)}
    add("Vision tower", places(tensor for tensor in _held(visual) if id(tensor) not in mergers))
    add("Projector", places(tensor for merger in structure.mergers for tensor in _held(merger)))
    layers = list(structure.language_model.layers)
    experts: list[dict[str, int]] = []
    others: list[dict[str, int]] = []
    for layer in layers:
        blocks = [moe.block for moe in structure.moe_layers if any(one is moe.block for one in layer.modules())]
        # By the block, since another precision may stand in its place.
        mine = [tensor for block in blocks for tensor in _held(block._modules["experts"])]
        experts.append(places(mine))
        others.append(places(tensor for tensor in _held(layer) if id(tensor) not in {id(one) for one in mine}))
    for label, found in (("Language model, layer", others), ("Experts, layer", experts)):
        for first, last, total in _runs(found):
            add(f"{label} {first}" if first == last else f"{label}s {first} to {last}", total)
    in_layers = {id(tensor) for layer in layers for tensor in _held(layer)}
    rest = [tensor for tensor in _held(structure.language_model) if id(tensor) not in in_layers]
    add("Embeddings, final norm and output head", places([*rest, *_held(structure.lm_head)]))
    return Placement(tuple(parts), bool(away), NOTE if away else "")


NOTE = (
    "These weights did not fit the GPU: what lies in CPU memory goes to the GPU in every pass, which takes longer than "
    "computing with it. Other precisions are off for them."
)


def _held(module: nn.Module | None) -> Iterator[Tensor]:
    if module is not None:
        yield from module.parameters()
        yield from module.buffers()


def _place(tensor: Tensor) -> str:
    """Empty for weights that are in no memory now, because another precision stands in for them."""
    if tensor.is_meta:
        return ""
    return "CPU memory" if tensor.device.type == "cpu" else str(tensor.device)


def _runs(layers: list[dict[str, int]]) -> Iterator[tuple[int, int, dict[str, int]]]:
    """(first, last, bytes by place) of neighbouring layers with the same places, counted from 1."""
    first = 0
    while first < len(layers):
        last, total = first, dict(layers[first])
        while last + 1 < len(layers) and layers[last + 1].keys() == total.keys():
            last += 1
            total = {place: count + layers[last][place] for place, count in total.items()}
        if total:
            yield first + 1, last + 1, total
        first = last + 1
