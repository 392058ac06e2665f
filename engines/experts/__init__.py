"""Which routed experts each token uses, and how much each expert was used.

Methods that choose the (token, expert) pairs to skip are listed here. To add one: write its file, list it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engines import methods
from engines.experts.alignment import AlignmentConfidence
from engines.experts.base import Routing, Skipper, Tokens
from engines.experts.calibration import Calibration
from engines.experts.entropy import EntropyAdaptive
from engines.experts.modality import ModalityThresholds
from engines.experts.off import Off
from engines.experts.random_choice import Random
from engines.methods import MethodDescription

METHODS = methods.registry(Off, ModalityThresholds, AlignmentConfidence, EntropyAdaptive, Random)

__all__ = ["METHODS", "Routing", "Skipper", "Tokens", "create", "describe_methods"]


def create(name: str, options: Mapping[str, Any], calibration: Calibration | None = None) -> Skipper:
    """A fresh method by name; what was calibrated stands in for the options that are not given.

    Raises ValueError for an unknown name, an unknown option or a value out of range.
    """
    found = calibration.options.get(name, {}) if calibration is not None else {}
    return methods.create("experts", METHODS, name, {**found, **options})


def describe_methods(calibration: Calibration | None = None) -> tuple[MethodDescription, ...]:
    """Every method as this checkpoint has it: with what was calibrated as defaults, and whether it was."""
    return tuple(_describe(method, calibration) for method in METHODS.values())


def _describe(method: type[Skipper], calibration: Calibration | None) -> MethodDescription:
    described = methods.describe(method)
    if not method.calibrated:
        return described
    if calibration is None:
        note = "Not calibrated for this checkpoint, so all layers weigh the same: run launch.py calibrate experts."
        return dataclasses.replace(described, help=f"{described.help} {note}")
    found = calibration.options.get(method.name, {})
    parameters = tuple(
        (name, found.get(name, default), metadata, kind) for name, default, metadata, kind in described.parameters
    )
    return dataclasses.replace(described, help=f"{described.help} {calibration.note}", parameters=parameters)
