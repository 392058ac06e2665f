"""The shape of a method that reduces the vision tower: a dataclass of parameters and one method that assigns units."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from engines.methods import Method


@dataclass(frozen=True)
class Units:
    """The merge units of one image or frame group at the layer after which the tower is reduced, row by row.

    A unit is the square of patches that a merger makes one visual token of; all of it goes on or none of it.
    """

    keys: Tensor
    """(units, patches x head size) float32: the attention keys of the layer, averaged over its heads."""
    entered: Tensor
    """(units, patches x hidden): as the layer received them."""
    left: Tensor
    """(units, patches x hidden): as it left them."""

    @property
    def count(self) -> int:
        return self.left.shape[0]


@dataclass(frozen=True)
class Reducer(Method):
    """Base of every method."""

    section = "vision"

    @abstractmethod
    def assign(self, units: Units, keep: int) -> Tensor:
        """(units,) long: which unit goes on for each, itself where it goes on, -1 where nobody does.

        Exactly `keep` go on, 1 <= keep <= units. Must give the same choice for the same input.
        """


def units_kept(units: int, keep_ratio: float) -> int:
    """How many of an image's or frame group's units go on: the nearest whole number, one at least."""
    return max(1, int(units * keep_ratio + 0.5))
