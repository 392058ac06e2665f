"""One image, or one frame group of a video: the grid of its visual tokens, and where each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class FrameGroup:
    """The grid is row by row: cell (row, column), a merged unit of patches, is number `row * columns + column`."""

    item: int
    """Index of the image or video among the media that the run used, as `MediaReady` lists them."""
    name: str
    kind: str
    frames: tuple[int, ...]
    """Indices of the sampled frames that the group holds; (0,) for an image."""
    timestamp_s: float | None
    """As the prompt states it; None for an image."""
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    def cell(self, index: int) -> tuple[int, int]:
        """(row, column) of a cell by its number."""
        row, column = divmod(index, self.columns)
        return row, column

    def index(self, row: int, column: int) -> int:
        return row * self.columns + column

    def grid(self, values: Sequence[Value]) -> list[list[Value]]:
        """One value a cell, as rows."""
        return [list(values[row * self.columns : (row + 1) * self.columns]) for row in range(self.rows)]
