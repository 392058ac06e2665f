"""Where every token of a prompt is: patch, cell of the picture, prompt position, and KV row, each from the other.

All of it is plain arrays. Positions are those of the unpruned prompt; cells are numbered through the whole prompt,
group after group and row by row. What pruning and eviction leave is a mask over positions: no number ever changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from engines.tokens.group import FrameGroup

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TokenRegistry:
    """Of one prompt in one run. Make it with `of`; `pruned` and `evicted` say what became of its tokens."""

    ids: Ints
    """(length,)."""
    positions: Ints
    """(3, length): M-RoPE in time, height and width."""
    groups: tuple[FrameGroup, ...]
    """Images and frame groups in the order of the prompt."""
    group_of: Ints
    """(length,): the group that a position belongs to, -1 for text."""
    merge: int
    """Patches along each side of a cell."""
    patch_px: int
    """Pixels along each side of a patch, in the picture as the processor resized it."""
    layers: tuple[int, ...]
    """Layers of the language model, counted from 1, that keep keys and values of single tokens."""
    entered: Mask
    """(length,): the positions that entered the language model."""
    passed: Mask
    """(length,): those that went on after layer `cut_after`; the same as `entered` where nothing was dropped inside."""
    cut_after: int | None = None
    held: Mapping[int, Mask] = field(default_factory=dict)
    """(length,) by layer: what a new token still attends to at the end of the run; a layer that is not named holds
    everything that reached it."""

    @classmethod
    def of(
        cls,
        ids: Ints,
        positions: Ints,
        visual_ids: Collection[int],
        groups: Sequence[FrameGroup],
        *,
        merge: int = 2,
        patch_px: int = 16,
        layers: Sequence[int] = (),
    ) -> Self:
        """A prompt of which nothing is dropped. `visual_ids` are the tokens that stand for visual ones."""
        visual = np.isin(ids, list(visual_ids))
        tokens = [group.tokens for group in groups]
        if int(visual.sum()) != sum(tokens):
            raise ValueError(f"The prompt has {int(visual.sum())} visual tokens and its media {sum(tokens)} cells.")
        group_of = np.full(len(ids), -1, dtype=np.int64)
        group_of[visual] = np.repeat(np.arange(len(groups)), tokens)
        everything = np.ones(len(ids), dtype=np.bool_)
        return cls(ids, positions, tuple(groups), group_of, merge, patch_px, tuple(layers), everything, everything)

    def __len__(self) -> int:
        return len(self.ids)

    # ---- what became of the tokens ----

    def pruned(self, cells: Sequence[bool], after_layer: int | None = None) -> Self:
        """With the visual tokens that are dropped, one truth value a cell; before the first layer, or inside."""
        kept = spread(self.visual, cells)
        if after_layer is None:
            return replace(self, entered=kept, passed=kept)
        return replace(self, passed=self.entered & kept, cut_after=after_layer)

    def evicted(self, rows_held: Mapping[int, Mask]) -> Self:
        """With what the KV cache gave up: by layer, one truth value for each row that the prefill left there."""
        held = {}
        for layer, rows in rows_held.items():
            held[layer] = np.zeros(len(self), dtype=np.bool_)
            held[layer][np.flatnonzero(self.reached(layer))[rows]] = True
        return replace(self, held=held)

    # ---- cells and positions ----

    @property
    def visual(self) -> Mask:
        """(length,)."""
        return self.group_of >= 0

    @cached_property
    def cell_positions(self) -> Ints:
        """(cells,): the position of each cell."""
        return np.flatnonzero(self.visual)

    @cached_property
    def first_cells(self) -> Ints:
        """(groups + 1,): the number of each group's first cell, and one past the last of all."""
        return np.cumsum([0, *(group.tokens for group in self.groups)])

    def cell_at(self, position: int) -> int | None:
        """The cell whose token is at a position; None for text."""
        found = int(np.searchsorted(self.cell_positions, position))
        return found if self.group_of[position] >= 0 else None

    def place(self, cell: int) -> tuple[int, int, int]:
        """(group, row, column) of a cell."""
        group = int(np.searchsorted(self.first_cells, cell, side="right")) - 1
        return group, *self.groups[group].cell(cell - int(self.first_cells[group]))

    def cell(self, group: int, row: int, column: int) -> int:
        """The cell at a place."""
        return int(self.first_cells[group]) + self.groups[group].index(row, column)

    def cells_of(self, group: int) -> slice:
        """All cells of a group."""
        return slice(int(self.first_cells[group]), int(self.first_cells[group + 1]))

    # ---- patches ----

    def patches(self, cell: int) -> list[tuple[int, int]]:
        """(row, column) of the patches that were merged into a cell, in the grid of patches of its group."""
        _, row, column = self.place(cell)
        sides = range(self.merge)
        return [(row * self.merge + down, column * self.merge + right) for down in sides for right in sides]

    def cell_of_patch(self, group: int, row: int, column: int) -> int:
        return self.cell(group, row // self.merge, column // self.merge)

    def patch_rows(self, cell: int) -> range:
        """Where the patches of a cell are in the item's pixels, in the order of `patches`."""
        group, _, _ = self.place(cell)
        first = next(index for index, other in enumerate(self.groups) if other.item == self.groups[group].item)
        start = (cell - int(self.first_cells[first])) * self.merge**2
        return range(start, start + self.merge**2)

    def box_px(self, cell: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of a cell in the picture as the processor resized it."""
        _, row, column = self.place(cell)
        side = self.merge * self.patch_px
        return column * side, row * side, (column + 1) * side, (row + 1) * side

    # ---- rows ----

    def reached(self, layer: int) -> Mask:
        """(length,): the positions that a layer, counted from 1, computed, and cached if it caches tokens."""
        return self.entered if self.cut_after is None or layer <= self.cut_after else self.passed

    def holding(self, layer: int) -> Mask:
        """(length,): the positions that have a KV row in a layer at the end of the run."""
        if layer not in self.layers:
            raise ValueError(f"Layer {layer} keeps no tokens apart; those that do are {list(self.layers)}.")
        return self.held.get(layer, self.reached(layer))

    def rows(self, layer: int) -> Ints:
        """(rows,): the position of each KV row of a layer, those of the answer left out."""
        return np.flatnonzero(self.holding(layer))

    def row_of(self, layer: int, position: int) -> int | None:
        """The KV row of a position; None where the layer has none."""
        holding = self.holding(layer)
        return int(holding[:position].sum()) if holding[position] else None

    # ---- what is left of the cells ----

    @property
    def kept_cells(self) -> Mask:
        """(cells,): those that pruning kept."""
        return self.passed[self.cell_positions]

    @property
    def evicted_share(self) -> npt.NDArray[np.float64]:
        """(cells,): of the layers that a cell's token reached, the share whose cache gave it up; 0 where none did."""
        reached = np.zeros(len(self.cell_positions))
        lost = np.zeros(len(self.cell_positions))
        for layer in self.layers:
            there = self.reached(layer)[self.cell_positions]
            reached += there
            lost += there & ~self.holding(layer)[self.cell_positions]
        return np.divide(lost, reached, out=np.zeros_like(lost), where=reached > 0)

    # ---- as plain data ----

    def to_dict(self) -> dict[str, Any]:
        """For JSON. A mask is written as the positions that it leaves out."""
        return {
            "ids": self.ids.tolist(),
            "positions": self.positions.tolist(),
            "groups": [{**vars(group)} for group in self.groups],
            "group_of": self.group_of.tolist(),
            "merge": self.merge,
            "patch_px": self.patch_px,
            "layers": self.layers,
            "not_entered": _missing(self.entered),
            "not_passed": _missing(self.passed),
            "cut_after": self.cut_after,
            "not_held": {str(layer): _missing(mask) for layer, mask in self.held.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        length = len(values["ids"])
        return cls(
            ids=np.asarray(values["ids"], dtype=np.int64),
            positions=np.asarray(values["positions"], dtype=np.int64),
            groups=tuple(FrameGroup(**{**group, "frames": tuple(group["frames"])}) for group in values["groups"]),
            group_of=np.asarray(values["group_of"], dtype=np.int64),
            merge=values["merge"],
            patch_px=values["patch_px"],
            layers=tuple(values["layers"]),
            entered=_without(length, values["not_entered"]),
            passed=_without(length, values["not_passed"]),
            cut_after=values["cut_after"],
            held={int(layer): _without(length, missing) for layer, missing in values["not_held"].items()},
        )


def spread(visual: Mask, cells: Sequence[bool]) -> Mask:
    """(length,): true for text, and for a visual position what is said of its cell."""
    kept = np.ones(len(visual), dtype=np.bool_)
    kept[visual] = cells
    return kept


def _missing(mask: Mask) -> list[int]:
    return np.flatnonzero(~mask).tolist()


def _without(length: int, missing: Sequence[int]) -> Mask:
    mask = np.ones(length, dtype=np.bool_)
    mask[list(missing)] = False
    return mask
