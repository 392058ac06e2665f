"""What was measured of a checkpoint's experts, kept in the user's cache folder under the checkpoint's digest."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "QWEN_VL_MOE_WORKBENCH_CACHE"
FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """The importance of each MoE layer, and the thresholds found with it. Shares are 0-1, divergences in nats."""

    digest: str
    """Of the checkpoint."""
    importances: tuple[float, ...]
    """By MoE layer, 1 on average: what it costs when that layer uses one expert a token."""
    options: Mapping[str, Mapping[str, float]]
    """By method, the options that were found."""
    target: float
    """Share of the pairs that was to be skipped."""
    skipped: float
    """Share that these options skipped on the calibration prompts."""
    divergence: float
    """Mean Kullback-Leibler divergence of the answer's first token from the full model's, with these options."""
    prompts: int
    format: int = FORMAT

    @property
    def note(self) -> str:
        return (
            f"Calibrated on {self.prompts} prompts: these thresholds skipped {self.skipped * 100:.0f} % of the pairs "
            "there."
        )

    def save(self) -> Path:
        """Write it where `load` looks; an older one is replaced whole."""
        path = path_of(self.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        written.replace(path)
        return path


def load(digest: str, layers: int) -> Calibration | None:
    """What was calibrated for this checkpoint, None if nothing. ValueError for a file that cannot be used."""
    path = path_of(digest)
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = Calibration(**{**values, "importances": tuple(float(value) for value in values["importances"])})
        if found.format != FORMAT or found.digest != digest or len(found.importances) != layers:
            raise ValueError("it belongs to another version or checkpoint")
        if not all(math.isfinite(value) and value >= 0 for value in found.importances):
            raise ValueError("an importance is no number from 0 up")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"The expert calibration {path} cannot be used ({error}); delete it or run launch.py calibrate experts."
        ) from error
    return found


def path_of(digest: str) -> Path:
    return cache_folder() / "experts" / f"{digest}.json"


def cache_folder() -> Path:
    """Where the user's own measurements are kept, by the custom of the platform or as the environment says."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "qwen-vl-moe-workbench"
