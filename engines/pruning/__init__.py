"""Methods that choose which visual tokens the language model sees. To add one: write its file, list it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines import methods
from engines.methods import MethodDescription
from engines.pruning.attention import AttentionReceived
from engines.pruning.base import Selection, Selector, Visual
from engines.pruning.dual_threshold import DualThreshold
from engines.pruning.max_min import MaxMinDiversity
from engines.pruning.mmr import MaximalMarginalRelevance
from engines.pruning.norm import L2Norm
from engines.pruning.random_choice import Random
from engines.pruning.relevance import ConditionalDiversity
from engines.pruning.temporal import TemporalChange
from engines.pruning.uniform import Uniform

METHODS = methods.registry(
    MaximalMarginalRelevance,
    MaxMinDiversity,
    ConditionalDiversity,
    AttentionReceived,
    DualThreshold,
    TemporalChange,
    L2Norm,
    Uniform,
    Random,
)

__all__ = [
    "METHODS",
    "Selection",
    "Selector",
    "Visual",
    "create",
    "describe_methods",
]


def create(name: str, options: Mapping[str, Any]) -> Selector:
    """A fresh method by name. Raises ValueError for an unknown name, an unknown option or a value out of range."""
    return methods.create("pruning", METHODS, name, options)


def describe_methods() -> tuple[MethodDescription, ...]:
    return methods.describe_all(METHODS.values())
