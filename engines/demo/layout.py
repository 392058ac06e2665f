"""What a scene consists of and where it goes: things, signs and charts, placed so that none covers another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.demo import draw

MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
EVENTS = ("appear", "disappear")

_MARGIN_PX = 3
_TRIES = 60
_COLUMN_GAP_PX = 6  # between the centres of two things, so that their order from left to right is plain
_PATH_PX = (26, 64)  # how far a moving thing goes in all


@dataclass(frozen=True)
class Event:
    """A thing comes or goes: `name` is one of EVENTS, `frame` the first frame of the new state."""

    name: str
    frame: int


@dataclass(frozen=True)
class Thing:
    """One object. `x`, `y`: centre in pixels of the first frame; `move`: a key of MOVES, or None if it stays."""

    shape: str
    colour: str
    size: str
    side_px: int
    x: int
    y: int
    rgb: tuple[int, int, int]
    move: str | None = None
    step_px: int = 0
    event: Event | None = None

    def corner(self, frame: int) -> tuple[int, int]:
        """Left and top in pixels in the given frame."""
        dx, dy = MOVES[self.move] if self.move else (0, 0)
        half = self.side_px // 2
        return self.x + dx * self.step_px * frame - half, self.y + dy * self.step_px * frame - half

    def visible(self, frame: int) -> bool:
        if self.event is None:
            return True
        return (frame >= self.event.frame) == (self.event.name == "appear")


@dataclass(frozen=True)
class Sign:
    """A plate with text; `boxes` are the characters', in image pixels."""

    text: str
    box: draw.Box
    boxes: tuple[draw.Box, ...]


@dataclass(frozen=True)
class Chart:
    """A bar chart; `colours` and `values` from left to right, `boxes` are the bars', in image pixels."""

    colours: tuple[str, ...]
    values: tuple[int, ...]
    box: draw.Box
    boxes: tuple[draw.Box, ...]


class Layout:
    """Places one thing after the other on a picture of `height` x `width` pixels."""

    def __init__(self, rng: np.random.Generator, height: int, width: int):
        self.rng, self.height, self.width = rng, height, width
        self._taken: list[draw.Box] = []
        self._columns: list[int] = []

    def _apart(self, box: draw.Box) -> bool:
        gap = _MARGIN_PX
        return all(
            box[2] + gap <= o[0] or o[2] + gap <= box[0] or box[3] + gap <= o[1] or o[3] + gap <= box[1]
            for o in self._taken
        )

    def _place_plate(self, plate: np.ndarray) -> draw.Box | None:
        """A place for a plate, often in a corner, where it leaves room for things; None where it doesn't fit."""
        h, w = plate.shape[:2]
        right, bottom = self.width - w - _MARGIN_PX, self.height - h - _MARGIN_PX
        if min(right, bottom) < _MARGIN_PX:
            return None
        for _ in range(_TRIES):
            left, top = int(self.rng.integers(_MARGIN_PX, right + 1)), int(self.rng.integers(_MARGIN_PX, bottom + 1))
            if self.rng.random() < 0.6:
                left, top = (_MARGIN_PX, right)[self.rng.integers(2)], (_MARGIN_PX, bottom)[self.rng.integers(2)]
            box = (left, top, left + w, top + h)
            if self._apart(box):
                self._taken.append(box)
                return box
        return None

    def sign(self, length: tuple[int, int], font_px: tuple[int, int], zoom: float) -> tuple[Sign, np.ndarray] | None:
        """Choose and place a sign. Returns it with its plate, uint8 (h, w, 3), or None when it does not fit."""
        rng = self.rng
        text = "".join(rng.choice(list(draw.SIGN_CHARACTERS), int(rng.integers(length[0], length[1] + 1))))
        face = str(rng.choice(draw.FACES))
        size = int(rng.integers(font_px[0], font_px[1] + 1) * zoom)
        plate, boxes = draw.sign_plate(text, face, size, bool(rng.random() < 0.5), bool(rng.random() < 0.3))
        box = self._place_plate(plate)
        return (Sign(text, box, _moved(boxes, box)), plate) if box else None

    def chart(self, bars: tuple[int, int], unit_px: tuple[int, int], zoom: float) -> tuple[Chart, np.ndarray] | None:
        """Choose and place a bar chart of different colours; returned like a sign."""
        rng = self.rng
        number = int(rng.integers(bars[0], bars[1] + 1))
        colours = tuple(str(c) for c in rng.permutation(list(draw.COLOURS))[:number])
        values = tuple(int(v) for v in rng.choice(draw.CHART_VALUES, number))
        unit = int(rng.integers(unit_px[0], unit_px[1] + 1) * zoom)
        shades = [_shade(rng, colour) for colour in colours]
        plate, boxes = draw.chart_plate(values, shades, unit, bool(rng.random() < 0.3))
        box = self._place_plate(plate)
        return (Chart(colours, values, box, _moved(boxes, box)), plate) if box else None

    def thing(
        self, sizes: tuple[str, ...], zoom: float, frames: int = 1, moving: bool = False, event: Event | None = None
    ) -> Thing | None:
        """Choose and place one object whose whole path is free, or None where there is no room."""
        rng = self.rng
        shape, colour = str(rng.choice(draw.SHAPES)), str(rng.choice(list(draw.COLOURS)))
        size = str(rng.choice(sizes))
        side = int(draw.SIZES_PX[size] * zoom)
        rgb = _shade(rng, colour)
        move = str(rng.choice(list(MOVES))) if moving else None
        step = max(2, int(rng.integers(*_PATH_PX)) // (frames - 1)) if moving else 0
        dx, dy = MOVES[move] if move else (0, 0)
        half, reach = side // 2, step * (frames - 1)
        # Where the centre of the first frame may lie so that the whole path stays inside.
        x_low, x_high = half + _MARGIN_PX + max(0, -dx) * reach, self.width - half - _MARGIN_PX - max(0, dx) * reach
        y_low, y_high = half + _MARGIN_PX + max(0, -dy) * reach, self.height - half - _MARGIN_PX - max(0, dy) * reach
        if x_low >= x_high or y_low >= y_high:
            return None
        for _ in range(_TRIES):
            x, y = int(rng.integers(x_low, x_high)), int(rng.integers(y_low, y_high))
            ends = (x, y, x + dx * reach, y + dy * reach)
            path = (
                min(ends[0], ends[2]) - half,
                min(ends[1], ends[3]) - half,
                max(ends[0], ends[2]) + half,
                max(ends[1], ends[3]) + half,
            )
            if self._apart(path) and all(abs(x - c) >= _COLUMN_GAP_PX for c in self._columns):
                self._taken.append(path)
                self._columns.append(x)
                return Thing(shape, colour, size, side, x, y, rgb, move, step, event)
        return None


def _shade(rng: np.random.Generator, colour: str) -> tuple[int, int, int]:
    jitter = rng.integers(-draw.COLOUR_JITTER, draw.COLOUR_JITTER + 1, 3)
    red, green, blue = (int(np.clip(c + j, 0, 255)) for c, j in zip(draw.COLOURS[colour], jitter, strict=True))
    return red, green, blue


def _moved(boxes: list[draw.Box], by: draw.Box) -> tuple[draw.Box, ...]:
    left, top = by[:2]
    return tuple((a + left, b + top, c + left, d + top) for a, b, c, d in boxes)
