"""What this device can do with this checkpoint, and why not where it can't."""

from __future__ import annotations

import importlib.metadata
import platform

import psutil
import torch

from engines import precision
from engines.cache.stage import why_not as why_not_prefix
from engines.checkpoint import Checkpoint
from engines.config import OFF
from engines.device.report import QUANTITIES, DeviceReading
from engines.experts import describe_methods as describe_skipping
from engines.experts.calibration import Calibration
from engines.kv.stage import why_not as why_not_kv
from engines.pruning import describe_methods
from engines.pruning.inside import why_not
from engines.results import Capabilities, Capability
from engines.vision.reduced import why_not as why_not_reduced


def describe_device(device: torch.device) -> str:
    """The device in words: 'CPU, 2 cores' or 'NVIDIA H200, 139 GiB'."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def describe_engine(
    checkpoint: Checkpoint, reading: DeviceReading, calibration: Calibration | None = None
) -> Capabilities:
    structure = checkpoint.structure
    millions = checkpoint.parameters / 1e6
    size = f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions:.1f} M"
    own = structure.own_top_k
    dense = "" if own is not None else "This checkpoint is dense: it has no experts to skip."
    native = str(checkpoint.dtype).removeprefix("torch.")
    return Capabilities(
        device=describe_device(checkpoint.device),
        model=f"{checkpoint.name}, {size} parameters, {native}",
        family=checkpoint.family,
        is_demo=checkpoint.is_demo,
        digest=checkpoint.digest,
        own_top_k=own,
        experts=structure.experts,
        precisions=precision_capabilities(checkpoint.device, structure.fixed),
        pruning=tuple(
            Capability(
                method.name, not (reason := why_not(method.name, structure)), reason, f"{method.label}: {method.help}"
            )
            for method in describe_methods()
        ),
        skipping=tuple(
            Capability(method.name, own is not None, dense, f"{method.label}: {method.help}")
            for method in describe_skipping(calibration)
            if method.name != OFF
        ),
        calibration=calibration,
        others=(
            Capability(
                "expert top-k",
                own is not None,
                dense,
                f"1 to {own} of {structure.experts} experts a token" if own is not None else "",
            ),
            Capability(
                "deepstack",
                structure.deepstack_layers > 0,
                "" if structure.deepstack_layers else "This checkpoint's vision tower has no deepstack features.",
                f"{structure.deepstack_layers} layers" if structure.deepstack_layers else "",
            ),
            Capability("encoder cache", True),
            _utilisation(checkpoint.device, reading),
            _readings(reading),
            Capability(
                "KV compression",
                not (no_kv := why_not_kv(structure)),
                no_kv,
                f"{len(structure.attention_layers)} of {len(structure.language_model.layers)} layers keep a KV cache",
            ),
            Capability("prefix cache", not (no_prefix := why_not_prefix(structure)), no_prefix),
            Capability(
                "vision tower reduction",
                not (no_cut := why_not_reduced(structure)),
                no_cut,
                f"after layer 1 to {structure.tower_layers[-1]}" if structure.tower_layers else "",
            ),
        ),
        tower_layers=max(structure.tower_layers, default=0),
    )


def _utilisation(device: torch.device, reading: DeviceReading) -> Capability:
    """Whether `pruning.adaptive` can see swings of the load; memory and cache misses it always sees."""
    reason = reading.missing.get("utilisation", "") if device.type == "cuda" else ""
    what = "GPU" if device.type == "cuda" else "CPU"
    return Capability("load for pruning.adaptive", not reason, reason, "" if reason else f"{what} utilisation")


def _readings(reading: DeviceReading) -> Capability:
    """What the page can show of the device."""
    found = [quantity.label.lower() for quantity in QUANTITIES if quantity.name in reading.values]
    reason = "" if found else next(iter(reading.missing.values()))
    return Capability("device readings", bool(found), reason, f"{', '.join(found)} of the {reading.source}")


def precision_capabilities(device: torch.device, fixed: str = "") -> tuple[Capability, ...]:
    """`fixed` says why the checkpoint's own weights cannot be converted, if they can't: see `Structure.fixed`."""
    return tuple(
        Capability(
            name,
            not (reason := precision.why_not(name, device, fixed)),
            reason,
            "" if reason else method.kernel(device),
        )
        for name, method in precision.METHODS.items()
    )


def machine_capabilities() -> tuple[Capability, ...]:
    """What the machine offers, whatever the checkpoint: for `launch.py check`."""
    cuda = torch.cuda.is_available()
    memory = psutil.virtual_memory()
    found = [
        Capability("Python", True, detail=platform.python_version()),
        Capability("CPU", True, detail=f"{psutil.cpu_count(logical=False) or psutil.cpu_count()} cores"),
        Capability(
            "memory", True, detail=f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"
        ),
        Capability("PyTorch", True, detail=torch.__version__),
        Capability(
            "CUDA",
            cuda,
            "" if cuda else _why_no_cuda(),
            ", ".join(describe_device(torch.device("cuda", index)) for index in range(torch.cuda.device_count())),
        ),
        Capability(
            "MPS",
            torch.backends.mps.is_available(),
            "" if torch.backends.mps.is_available() else "This is not an Apple computer with a GPU for PyTorch.",
        ),
    ]
    for name in ("transformers", "gradio", "plotly", "opencv-python", "av"):
        found.append(_package(name))
    return (*found, *_inference_runtimes())


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "This build of PyTorch has no CUDA support."
    return "PyTorch found no NVIDIA GPU or no working driver."


def _package(name: str) -> Capability:
    try:
        return Capability(name, True, detail=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Capability(name, False, "The package is not installed.")


def _inference_runtimes() -> list[Capability]:
    """ONNX Runtime and TensorRT: installed or not. Whether a provider really works is known only from a session."""
    try:
        import onnxruntime

        runtime = Capability("ONNX Runtime", True, detail=onnxruntime.__version__)
    except ImportError as error:
        runtime = Capability("ONNX Runtime", False, f"It could not be imported: {error}")
    try:
        import tensorrt

        trt = Capability("TensorRT", True, detail=tensorrt.__version__)
    except ImportError:
        trt = Capability("TensorRT", False, "Not installed; on a GPU machine: pip install '.[tensorrt]'.")
    return [runtime, trt]
