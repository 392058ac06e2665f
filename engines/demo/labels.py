"""What lies under each vision patch of a scene: the truth that the tower's auxiliary losses learn from."""

from __future__ import annotations

import numpy as np

from engines.demo import draw
from engines.demo.layout import MOVES, Chart, Sign, Thing

# How the vision tower cuts pictures up: side of a patch, patches a side of a visual token, frames a patch.
PATCH_PX, MERGE, TEMPORAL = 16, 2, 2

# Per kind the names; a label is 0 for nothing, else 1 + the index of the name.
KINDS: dict[str, tuple[str, ...]] = {
    "colour": tuple(draw.COLOURS),
    "shape": (*draw.SHAPES, "bar"),
    "character": tuple(draw.SIGN_CHARACTERS),
    "index": tuple(str(number + 1) for number in range(draw.SIGN_LENGTH)),  # place of the character in its sign
    "value": tuple(str(value) for value in draw.CHART_VALUES),  # of the chart bar
    "motion": tuple(MOVES),
    "centre": ("centre",),  # the patch with the centre of a thing: exactly one a thing, so that it can be counted
}

# One more label has no names: which thing (1, 2, ... in the scene's order) or bar (from FIRST_BAR on) is there.
TARGET, FIRST_BAR = "target", 100

Labels = dict[str, np.ndarray]

_THING_COVER, _CHARACTER_COVER = 0.06, 0.15  # least share of a patch that counts


class _Grid:
    """Labels of one frame, int64 (rows, columns) per kind. Where two things share a patch the larger cover wins."""

    def __init__(self, height: int, width: int):
        shape = (height // PATCH_PX, width // PATCH_PX)
        self.labels: Labels = {kind: np.zeros(shape, np.int64) for kind in (*KINDS, TARGET)}
        self._best = np.zeros(shape)

    def mark(self, mask: np.ndarray, left: int, top: int, least: float, **names: int) -> None:
        """Label the patches that `mask`, float (h, w) with its corner at (left, top), covers by `least` or more."""
        rows = slice(top // PATCH_PX, -(-(top + mask.shape[0]) // PATCH_PX))
        columns = slice(left // PATCH_PX, -(-(left + mask.shape[1]) // PATCH_PX))
        height, width = (rows.stop - rows.start), (columns.stop - columns.start)
        full = np.zeros((height * PATCH_PX, width * PATCH_PX), np.float32)
        y, x = top - rows.start * PATCH_PX, left - columns.start * PATCH_PX
        full[y : y + mask.shape[0], x : x + mask.shape[1]] = mask
        cover = full.reshape(height, PATCH_PX, width, PATCH_PX).mean((1, 3))
        best = self._best[rows, columns]
        wins = cover > np.maximum(best, least)
        best[wins] = cover[wins]
        for kind, label in names.items():
            self.labels[kind][rows, columns][wins] = label


def label_frame(
    frame: int, things: list[Thing], signs: list[Sign], chart: Chart | None, height: int, width: int
) -> Labels:
    """Labels of one frame of a scene."""
    grid = _Grid(height, width)
    for number, thing in enumerate(things, start=1):
        if thing.visible(frame):
            left, top = thing.corner(frame)
            grid.mark(
                draw.shape_mask(thing.shape, thing.side_px),
                left,
                top,
                _THING_COVER,
                colour=_label("colour", thing.colour),
                shape=_label("shape", thing.shape),
                motion=_label("motion", thing.move),
                target=number,
            )
            middle = thing.side_px // 2
            grid.labels["centre"][(top + middle) // PATCH_PX, (left + middle) // PATCH_PX] = 1
    for sign in signs:
        for index, (character, box) in enumerate(zip(sign.text, sign.boxes, strict=True), start=1):
            known = _label("character", character)
            grid.mark(_solid(box), *box[:2], _CHARACTER_COVER, character=known, index=index)
    for number, box in enumerate(chart.boxes if chart else ()):
        assert chart is not None
        grid.mark(
            _solid(box),
            *box[:2],
            _CHARACTER_COVER,
            colour=_label("colour", chart.colours[number]),
            shape=_label("shape", "bar"),
            value=_label("value", str(chart.values[number])),
            target=FIRST_BAR + number,
        )
    return grid.labels


def _label(kind: str, name: str | None) -> int:
    return 0 if name is None else 1 + KINDS[kind].index(name)


def _solid(box: draw.Box) -> np.ndarray:
    return np.ones((box[3] - box[1], box[2] - box[0]), np.float32)
