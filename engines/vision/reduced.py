"""A vision tower that computes only a share of its units from some layer on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from engines.config import VisionConfig
from engines.results import EngineError
from engines.structure import Structure, TowerCut
from engines.vision import create
from engines.vision.base import Units, units_kept


def why_not(structure: Structure) -> str:
    """Why this checkpoint's tower cannot be reduced; empty when it can."""
    if structure.tower_layers:
        return ""
    return "This checkpoint's vision tower has no layer with attention keys that another layer follows."


def check(config: VisionConfig, structure: Structure) -> None:
    """Raise ValueError or EngineError for settings that this checkpoint cannot do."""
    create(config.method, config.options)
    if not config.active:
        return
    if reason := why_not(structure):
        raise EngineError(f"vision.keep_ratio below 1 is not available here: {reason}")
    if config.after_layer not in structure.tower_layers:
        raise ValueError(
            f"vision.after_layer is {config.after_layer}; this checkpoint's vision tower allows 1 to "
            f"{structure.tower_layers[-1]}."
        )


@contextmanager
def reduced_tower(structure: Structure, config: VisionConfig) -> Iterator[None]:
    """While open, one forward pass of the tower goes as the settings say; nothing is touched where they are off."""
    if not config.active:
        yield
        return
    method = create(config.method, config.options)

    def assign(keys: Tensor, entered: Tensor, left: Tensor) -> Tensor:
        return method.assign(Units(keys, entered, left), units_kept(len(left), config.keep_ratio))

    with TowerCut(structure, config.after_layer, assign).applied():
        yield
