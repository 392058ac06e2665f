"""The vision tower: from pixels to merged visual tokens and deepstack features.

Methods that reduce its work are listed here. To add one: write its file, list it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines import methods
from engines.methods import MethodDescription
from engines.vision.base import Reducer, Units
from engines.vision.merging import TokenMerging
from engines.vision.random_choice import Random
from engines.vision.still import StillUnits

METHODS = methods.registry(TokenMerging, StillUnits, Random)

__all__ = ["METHODS", "Reducer", "Units", "create", "describe_methods"]


def create(name: str, options: Mapping[str, Any]) -> Reducer:
    """A fresh method by name. Raises ValueError for an unknown name, an unknown option or a value out of range."""
    return methods.create("vision", METHODS, name, options)


def describe_methods() -> tuple[MethodDescription, ...]:
    return methods.describe_all(METHODS.values())
