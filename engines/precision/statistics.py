"""What a calibration measured of the activations, kept in the user's cache folder under the checkpoint's digest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engines.experts.calibration import cache_folder
from engines.precision.base import LayerMoments

FORMAT = 1


@dataclass(frozen=True)
class LayerSignal:
    """How clearly each kind of token comes through a layer at int4, as a ratio of powers in decibel.

    None where no token of the kind came by.
    """

    text_db: float | None
    visual_db: float | None


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean squares of what enters each layer, from both kinds of token."""

    digest: str
    """Of the checkpoint."""
    layers: Mapping[str, LayerMoments]
    """By the module's path in the model."""
    signals: Mapping[str, LayerSignal]
    prompts: int
    percentile: float
    """Magnitudes above this percentile of a layer and prompt were counted as if they were at it."""
    source: str
    """Where the prompts came from, for people."""

    def moments(self, path: str) -> LayerMoments | None:
        return self.layers.get(path)

    def save(self) -> Path:
        """Write it where `load` looks; an older one is replaced whole."""
        tensors = {}
        for name, layer in self.layers.items():
            tensors[f"{name}.inputs"] = layer.inputs.contiguous()
            if layer.inner is not None:
                tensors[f"{name}.inner"] = layer.inner.contiguous()
        about = {
            "format": FORMAT,
            "digest": self.digest,
            "prompts": self.prompts,
            "percentile": self.percentile,
            "source": self.source,
            "signals": {name: [signal.text_db, signal.visual_db] for name, signal in self.signals.items()},
        }
        path = path_of(self.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        save_file(tensors, written, {"calibration": json.dumps(about)})
        written.replace(path)
        return path


def load(digest: str) -> Statistics | None:
    """What was calibrated for this checkpoint, None if nothing. ValueError for a file that cannot be used."""
    path = path_of(digest)
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["calibration"])
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT or about["digest"] != digest:
            raise ValueError("it belongs to another version or checkpoint")
        if not all(bool(values.isfinite().all()) for values in tensors.values()):
            raise ValueError("a value is not a finite number")
        paths = [name.removesuffix(".inputs") for name in tensors if name.endswith(".inputs")]
        return Statistics(
            digest=digest,
            layers={one: LayerMoments(tensors[f"{one}.inputs"], tensors.get(f"{one}.inner")) for one in paths},
            signals={one: LayerSignal(*values) for one, values in about["signals"].items()},
            prompts=int(about["prompts"]),
            percentile=float(about["percentile"]),
            source=str(about["source"]),
        )
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"The precision calibration {path} cannot be used ({error}); "
            "delete it or run launch.py calibrate precision."
        ) from error


def path_of(digest: str) -> Path:
    return cache_folder() / "precision" / f"{digest}.safetensors"


def joint(text: Tensor, visual: Tensor, column_power: Tensor) -> Tensor:
    """One set of mean squares (in,) from those of text and of visual tokens.

    Each kind's are divided by the power of its own output, `column_power` (in,) being the weights' squares summed over
    the outputs. The noise weighed by them is then the sum of both kinds' noise-to-signal ratios: the kind with the
    worse ratio decides more, and neither by being louder or more frequent. A kind that never came by has no say.
    """
    total = 0 * text
    for moments in (text, visual):
        signal = float((moments * column_power).sum())
        if signal > 0:
            total = total + moments / signal
    mean = float(total.mean())
    return total / mean if mean > 0 else total + 1.0
