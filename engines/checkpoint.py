"""Find and load a checkpoint: the bundled demo, a local folder, or a hub id, all through transformers' own classes."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError

from engines.device.placement import capacity_of, split
from engines.structure import Structure, quantisation_of

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "demo"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CheckpointError(RuntimeError):
    """A checkpoint or device that cannot be used, in one sentence."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, its processor, and what identifies it."""

    name: str
    """For people: a folder goes by its last part, since visitors need not know where it lies."""
    structure: Structure
    processor: Any
    device: torch.device
    dtype: torch.dtype
    digest: str
    """SHA-256 over the configuration and the weight files' sizes, headers and ends."""
    is_demo: bool
    folder: Path | None = None
    """Where the weight files are; None for a model that came from none."""

    @property
    def model(self) -> Any:
        return self.structure.model

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def family(self) -> str:
        return str(self.structure.config.model_type)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def quieten_library(*, progress: bool) -> None:
    """Let transformers speak up only about errors, and draw its progress bars only where asked."""
    transformers.logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if not progress:
        transformers.logging.disable_progress_bar()


def load_checkpoint(name: str = DEMO, device: str = "auto", dtype: str = "auto") -> Checkpoint:
    """Load `demo`, a folder or a hub id. Raises CheckpointError with one sentence when that can't be done."""
    chosen = pick_device(device)
    folder, is_demo = _locate(name)
    config = _read_config(name, folder)
    stored, wanted = _pick_dtype(dtype, chosen, config, _weight_bytes(folder))
    needed_bytes = _weight_bytes(folder) * wanted.itemsize // stored.itemsize
    device_map = _device_map(name, config, needed_bytes, wanted, chosen)
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder)
        model, loading = transformers.AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=wanted,
            output_loading_info=True,
            device_map=device_map,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        method = quantisation_of(config)
        hint = f" It is quantised already ({method}), which transformers loads where it has the kernels."
        sentence = f"The checkpoint {name} could not be loaded: {_first_line(error)}"
        raise CheckpointError(sentence + (hint if method else "")) from error
    # transformers fills what is missing with random weights and only warns; the answers would be noise.
    lacking = sorted(loading["missing_keys"]) or sorted(str(key) for key in loading["mismatched_keys"])
    if lacking:
        raise CheckpointError(
            f"The checkpoint {name} lacks {len(lacking)} tensor(s) that its configuration asks for, "
            f"such as {lacking[0]}; download it again or name another."
        )
    if device_map is None or len(device_map) == 1:
        model = model.to(chosen)
    model = model.eval()
    return Checkpoint(
        name="Demo checkpoint" if is_demo else folder.name if Path(name).expanduser().is_dir() else name,
        structure=Structure(model),
        processor=processor,
        device=chosen,
        dtype=model.dtype,
        digest=_digest(folder),
        is_demo=is_demo,
        folder=folder,
    )


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU. Raises CheckpointError for a device that is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CheckpointError(f"Device {name!r} is not known; use auto, cpu, cuda, cuda:1 or mps.") from error
    if device.type == "cuda":
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            raise CheckpointError(f"Device {name!r} is not there: {found} CUDA device(s) found; use auto or cpu.")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise CheckpointError("Device 'mps' is not there on this machine; use auto or cpu.")
    elif device.type != "cpu":
        raise CheckpointError(f"Device {name!r} is not supported; use auto, cpu, cuda, cuda:1 or mps.")
    return device


def _locate(name: str) -> tuple[Path, bool]:
    if name == DEMO:
        return DEMO_FOLDER, True
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(f"The folder {name} holds no config.json; name a folder in transformers' format.")
        return path, path.resolve() == DEMO_FOLDER
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise CheckpointError(f"There is no checkpoint folder {name}; name a folder, a hub id or {DEMO}.")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, ignore_patterns=["*.bin", "*.pth", "*.gguf"])), False
    except (HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise CheckpointError(
            f"There is no folder {name}, and the hub could not provide a model of that name ({_first_line(error)})."
        ) from error


def _read_config(name: str, folder: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"The configuration of {name} could not be read: {_first_line(error)}") from error


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"The folder {folder.name} holds no .safetensors weights.")
    return files


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _weight_files(folder))


def _pick_dtype(name: str, device: torch.device, config: Any, weight_bytes: int) -> tuple[torch.dtype, torch.dtype]:
    """The format that the weights are stored in, and the one to load them in.

    `auto`: the checkpoint's own format on a GPU. On a CPU fp32, its surest fast format, where that fits.
    """
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or torch.float32
    stored = getattr(torch, stored) if isinstance(stored, str) else stored
    if name != "auto":
        if name not in DTYPES:
            raise CheckpointError(f"Number format {name!r} is not known; use auto, {', '.join(DTYPES)}.")
        return stored, DTYPES[name]
    in_fp32 = weight_bytes * torch.float32.itemsize // stored.itemsize
    roomy = in_fp32 < psutil.virtual_memory().available // 4
    return stored, torch.float32 if device.type == "cpu" and roomy else stored


def _device_map(
    name: str, config: Any, needed_bytes: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any] | None:
    """Which part of the model is loaded where, straight from its files; None for a CPU.

    Says that a model does not fit before the system ends the process for it.
    """
    capacity = capacity_of(device)
    whole = None if device.type == "cpu" else {"": device}
    if needed_bytes <= capacity.usable:
        return whole
    # Weights that are stored quantised cannot be moved one by one, and one memory cannot be split.
    if not capacity.shared and not quantisation_of(config):
        with torch.device("meta"):
            model = transformers.AutoModelForImageTextToText.from_config(config)
        placed = split(Structure(model), dtype.itemsize, capacity, device)
        if placed is not None:
            return placed
    if needed_bytes > capacity.device:
        beside = "" if capacity.shared else f", and the machine {capacity.host / 2**30:.1f} GiB"
        raise CheckpointError(
            f"The weights of {name} need {needed_bytes / 2**30:.1f} GiB and {device} has "
            f"{capacity.device / 2**30:.1f} GiB free{beside}; "
            "use a smaller checkpoint, another --device, or a narrower --dtype."
        )
    return whole


def _digest(folder: Path) -> str:
    """Identify a checkpoint without reading all of it, which for a large one would take minutes."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    edge = 1 << 20
    for file in _weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(edge))
            if size > edge:
                stream.seek(-min(edge, size - edge), os.SEEK_END)
                digest.update(stream.read(edge))
    return digest.hexdigest()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
