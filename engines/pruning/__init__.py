"""Methods that choose which visual tokens the language model sees. To add one: write its file, list it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.pruning.base import MethodDescription, Selection, Selector, Visual, describe
from engines.pruning.max_min import MaxMinDiversity
from engines.pruning.mmr import MaximalMarginalRelevance
from engines.pruning.norm import L2Norm
from engines.pruning.random_choice import Random
from engines.pruning.uniform import Uniform

METHODS: dict[str, type[Selector]] = {
    method.name: method for method in (MaximalMarginalRelevance, MaxMinDiversity, L2Norm, Uniform, Random)
}

__all__ = [
    "METHODS",
    "MethodDescription",
    "Selection",
    "Selector",
    "Visual",
    "create",
    "describe_methods",
]


def create(name: str, options: Mapping[str, Any]) -> Selector:
    """A fresh method by name. Raises ValueError for an unknown name, an unknown option or a value out of range."""
    if name not in METHODS:
        raise ValueError(f"pruning.method is {name!r}; it must be one of {', '.join(METHODS)}.")
    known = [parameter[0] for parameter in describe(METHODS[name]).parameters]
    unknown = [option for option in options if option not in known]
    if unknown:
        offered = ", ".join(known) or "no options"
        raise ValueError(f"Unknown option pruning.options.{unknown[0]}; {name} has {offered}.")
    return METHODS[name](**options)


def describe_methods() -> tuple[MethodDescription, ...]:
    return tuple(describe(method) for method in METHODS.values())
