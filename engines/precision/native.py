"""The checkpoint's own weights: given up while another format stands in for them, and read again from its files.

A weight is given up only after its file was seen to hold the same values to the bit, so that what comes back is what
was there. What transformers rearranges while loading, but for transposed experts,
stays in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from engines.structure import Slot, Structure

AS_IT_IS, TRANSPOSED, NOT = "as it is", "transposed", "not"
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class NativeWeights:
    """Which weights are in memory, by slot. `folder` holds the .safetensors files; None gives nothing up."""

    def __init__(self, structure: Structure, slots: Mapping[str, Sequence[Slot]], folder: Path | None) -> None:
        self._slots = slots
        self._files = _index(folder) if folder is not None else {}
        self._mapped = {str(path.resolve()) for path in self._files.values()}
        self._names = {id(parameter): name for name, parameter in structure.model.named_parameters()}
        self._away: dict[int, dict[str, tuple[str, torch.device, int]]] = {}
        # A weight that something else uses too, as a tied output head does, can't be given up.
        uses: dict[int, int] = {}
        for module in structure.model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        self._shared = {key for key, count in uses.items() if count > 1}
        self._stored: dict[str, str] = {}
        """By name, how the file was seen to hold the values: as they are, transposed, or not."""

    def is_here(self, slot: Slot) -> bool:
        return id(slot.module) not in self._away

    def away_bytes(self, slot: Slot) -> int:
        """What `restore` will need."""
        names = self._away.get(id(slot.module), {})
        return sum(parameter.nbytes for name in names if (parameter := slot.module._parameters[name]) is not None)

    def held_bytes(self, part: str) -> int:
        """Bytes in memory of the part's products, but for those that something else uses too."""
        return sum(
            parameter.nbytes
            for slot in self._slots[part]
            if self.is_here(slot)
            for parameter in slot.module._parameters.values()
            if parameter is not None and id(parameter) not in self._shared
        )

    def release(self, slot: Slot) -> bool:
        """Give the slot's weights up; False if that can't be done. The module must not be in use."""
        if not self.is_here(slot):
            return False
        away = {}
        for name, parameter in self._replaceable(slot.module).items():
            full_name = self._names[id(parameter)]
            # Shape and format stay readable; only the values are gone.
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
            slot.module._parameters[name] = empty
            self._names[id(empty)] = full_name
            away[name] = (full_name, parameter.device, parameter.data_ptr() % ALIGNMENT)
            _forget_pages(parameter, self._mapped)
        if away:
            self._away[id(slot.module)] = away
        return bool(away)

    def restore(self, slot: Slot) -> None:
        """Read the slot's weights again, if they were given up."""
        for name, (full_name, device, offset) in self._away.pop(id(slot.module), {}).items():
            empty = slot.module._parameters[name]
            assert empty is not None
            # A copy of its own, laid out as before: the file is mapped, and its pages are not ours to keep.
            values = _room_like(empty, device, offset)
            values.copy_(_turned(self._read(full_name), self._stored[full_name]))
            restored = nn.Parameter(values, requires_grad=False)
            slot.module._parameters[name] = restored
            self._names[id(restored)] = full_name

    def restore_all(self) -> None:
        for slots in self._slots.values():
            for slot in slots:
                self.restore(slot)

    def _replaceable(self, module: nn.Module) -> dict[str, Tensor]:
        """The module's own weights whose values its file was seen to hold."""
        return {
            name: parameter
            for name, parameter in module._parameters.items()
            if parameter is not None and id(parameter) not in self._shared and self._is_in_file(parameter)
        }

    def _is_in_file(self, parameter: Tensor) -> bool:
        full_name = self._names[id(parameter)]
        if full_name not in self._stored:
            self._stored[full_name] = self._look(full_name, parameter)
        return self._stored[full_name] != NOT

    def _look(self, full_name: str, parameter: Tensor) -> str:
        if full_name not in self._files:
            return NOT
        stored = self._read(full_name)
        for how in (AS_IT_IS, TRANSPOSED):
            turned = _turned(stored, how)
            same_shape = turned.shape == parameter.shape
            if same_shape and torch.equal(turned.to(parameter.device, parameter.dtype), parameter.detach()):
                return how
        return NOT

    def _read(self, full_name: str) -> Tensor:
        with safe_open(self._files[full_name], "pt") as file:
            return file.get_tensor(full_name)


def _room_like(weights: Tensor, device: torch.device, offset: int) -> Tensor:
    """Memory for the weights that begins as far beyond a boundary as theirs did.

    A CPU's matrix kernels sum in another order when it does not, and the answers would differ in their last bits.
    """
    room = torch.empty(weights.nbytes + 2 * ALIGNMENT, dtype=torch.uint8, device=device)
    start = (offset - room.data_ptr()) % ALIGNMENT
    values = room[start : start + weights.nbytes].view(weights.dtype)
    return values.as_strided(weights.shape, weights.stride(), values.storage_offset())


def _turned(values: Tensor, how: str) -> Tensor:
    # Fused experts are stored the other way round in the published Qwen3-VL-MoE checkpoints.
    return values.mT if how == TRANSPOSED and values.ndim > 1 else values


def _index(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found


def _forget_pages(weights: Tensor, files: set[str]) -> None:
    """Let go of a mapped file's pages that held the weights: the mapping stays while any tensor of it is in use."""
    if weights.device.type != "cpu" or sys.platform != "linux":
        return
    first, end = weights.data_ptr(), weights.data_ptr() + weights.nbytes
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            addresses, *_, path = line.split(maxsplit=5)
            low, high = (int(address, 16) for address in addresses.split("-"))
            # Only what can be read from the file once more: anywhere else the values would be lost.
            if low <= first and end <= high and path.strip() in files:
                first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
                if first < end:
                    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
                return


def give_back_memory() -> None:
    """Return what was freed to the system, which glibc keeps otherwise."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
