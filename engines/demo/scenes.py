"""Scenes: (split, seed, level) in, pixels and what is in them out.

The random stream of a scene is seeded with the triple (split, level, seed), so no two splits can share a
scene: the split is part of the seed, not a range of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.demo import draw

SPLITS = ("train", "validation", "test")
PATCH_PX = 16  # side of a vision patch; labels are given on this grid
FRAME_STEP_S = 0.5  # clips are shown at two frames a second, the rate at which the processor samples

_MARGIN_PX = 3
_TRIES = 60


@dataclass(frozen=True)
class Level:
    """How hard a scene is. Ranges are inclusive; sides in pixels, multiples of 32."""

    name: str
    sides: tuple[int, ...]
    things: tuple[int, int]
    sizes: tuple[str, ...] = ("small", "medium", "large")
    zooms: tuple[float, ...] = (1.0,)
    backgrounds: tuple[str, ...] = draw.BACKGROUNDS
    sign_length: tuple[int, int] = (1, 4)
    sign_share: float = 0.5
    font_px: tuple[int, int] = (20, 28)
    frames: tuple[int, ...] = (1,)


# The order is the curriculum's. Append; never reorder: the index is part of every scene's seed.
LEVELS = (
    Level(
        "tiny",
        (128,),
        (1, 3),
        ("medium", "large"),
        backgrounds=("plain", "gradient"),
        sign_length=(1, 3),
        sign_share=1.0,
        font_px=(30, 40),
    ),
    Level("small", (128, 160), (1, 3), sign_share=0.6, font_px=(22, 32)),
    Level("medium", (192, 224, 256), (1, 5), zooms=(1.0, 1.25)),
    Level("large", (320, 384, 448), (2, 8), zooms=(1.0, 1.25, 1.5)),
    Level("clip", (128, 160, 192), (1, 2), ("medium", "large"), sign_share=0.0, frames=(4, 6, 8)),
)
LEVEL_NAMES = tuple(level.name for level in LEVELS)
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Thing:
    """One object. `x`, `y`: centre in pixels of the first frame; `move`: a key of MOVES, or None if it
    stays.
    """

    shape: str
    colour: str
    size: str
    side_px: int
    x: int
    y: int
    rgb: tuple[int, int, int]
    move: str | None = None
    step_px: int = 0

    def corner(self, frame: int) -> tuple[int, int]:
        """Left and top in pixels in the given frame."""
        dx, dy = MOVES[self.move] if self.move else (0, 0)
        half = self.side_px // 2
        return self.x + dx * self.step_px * frame - half, self.y + dy * self.step_px * frame - half


@dataclass(frozen=True)
class Sign:
    """A plate with text; `boxes` are the characters', in image pixels."""

    text: str
    box: draw.Box
    boxes: tuple[draw.Box, ...]


@dataclass(frozen=True)
class PatchLabels:
    """What lies under each patch, int64 (frames, rows, columns) each; 0 = nothing, else 1 + index of the
    name.
    """

    colour: np.ndarray
    shape: np.ndarray
    character: np.ndarray


@dataclass(frozen=True)
class Scene:
    """`frames`: uint8 (frames, height, width, 3); a still has one frame. `things` are ordered left to
    right.
    """

    split: str
    seed: int
    level: Level
    frames: np.ndarray
    timestamps_s: tuple[float, ...]
    things: tuple[Thing, ...]
    sign: Sign | None
    labels: PatchLabels

    @property
    def image(self) -> np.ndarray:
        return self.frames[0]

    @property
    def is_clip(self) -> bool:
        return len(self.frames) > 1


def scene_rng(split: str, seed: int, level: str, purpose: int = 0) -> np.random.Generator:
    """The random stream of a scene. `purpose` separates its pixels (0) from its questions (1)."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; one of {SPLITS}")
    if level not in LEVEL_NAMES:
        raise ValueError(f"unknown level {level!r}; one of {LEVEL_NAMES}")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative; 0 or more")
    key = [SPLITS.index(split), LEVEL_NAMES.index(level), purpose, seed]
    return np.random.default_rng(np.random.SeedSequence(key))


def _apart(box: draw.Box, others: list[draw.Box]) -> bool:
    gap = _MARGIN_PX
    return all(
        box[2] + gap <= o[0] or o[2] + gap <= box[0] or box[3] + gap <= o[1] or o[3] + gap <= box[1] for o in others
    )


def _place_sign(
    rng: np.random.Generator, level: Level, height: int, width: int, taken: list[draw.Box]
) -> tuple[Sign, np.ndarray] | None:
    """Choose and place a sign. Returns (Sign, plate uint8 (h, w, 3)) or None when it does not fit."""
    length = int(rng.integers(level.sign_length[0], level.sign_length[1] + 1))
    text = "".join(rng.choice(list(draw.SIGN_CHARACTERS), length))
    font_px = int(rng.integers(level.font_px[0], level.font_px[1] + 1) * rng.choice(level.zooms))
    plate, boxes = draw.sign_plate(text, font_px, bool(rng.random() < 0.5), bool(rng.random() < 0.3))
    h, w = plate.shape[:2]
    if w + 2 * _MARGIN_PX > width or h + 2 * _MARGIN_PX > height:
        return None
    left = int(rng.integers(_MARGIN_PX, width - w - _MARGIN_PX + 1))
    top = int(rng.integers(_MARGIN_PX, height - h - _MARGIN_PX + 1))
    box = (left, top, left + w, top + h)
    taken.append(box)
    moved = tuple((a + left, b + top, c + left, d + top) for a, b, c, d in boxes)
    return Sign(text, box, moved), plate


def _place_thing(
    rng: np.random.Generator,
    level: Level,
    height: int,
    width: int,
    taken: list[draw.Box],
    columns: list[int],
    frames: int,
    moving: bool,
) -> Thing | None:
    """Choose and place one object clear of `taken`, with a centre column clear of `columns` so that order is
    plain.
    """
    shape, colour = str(rng.choice(draw.SHAPES)), str(rng.choice(list(draw.COLOURS)))
    size = str(rng.choice(level.sizes))
    side = int(draw.SIZES_PX[size] * rng.choice(level.zooms))
    jitter = rng.integers(-draw.COLOUR_JITTER, draw.COLOUR_JITTER + 1, 3)
    red, green, blue = (int(np.clip(c + j, 0, 255)) for c, j in zip(draw.COLOURS[colour], jitter, strict=True))
    move = str(rng.choice(list(MOVES))) if moving else None
    step = int(rng.integers(6, 10)) if moving else 0
    dx, dy = MOVES[move] if move else (0, 0)
    half, reach = side // 2, step * (frames - 1)
    # Where the centre of the first frame may lie so that the whole path stays inside.
    x_low, x_high = half + _MARGIN_PX + max(0, -dx) * reach, width - half - _MARGIN_PX - max(0, dx) * reach
    y_low, y_high = half + _MARGIN_PX + max(0, -dy) * reach, height - half - _MARGIN_PX - max(0, dy) * reach
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
        if _apart(path, taken) and all(abs(x - c) >= 6 for c in columns):
            taken.append(path)
            columns.append(x)
            return Thing(shape, colour, size, side, x, y, (red, green, blue), move, step)
    return None


def _patch_cover(mask: np.ndarray) -> np.ndarray:
    """Share of each patch that a mask (height, width) covers: float (rows, columns)."""
    rows, columns = mask.shape[0] // PATCH_PX, mask.shape[1] // PATCH_PX
    return mask.reshape(rows, PATCH_PX, columns, PATCH_PX).mean((1, 3))


def _label(frame: int, things: list[Thing], sign: Sign | None, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Labels of one frame: colour, shape, character, each int64 (rows, columns). The largest cover wins."""
    rows, columns = height // PATCH_PX, width // PATCH_PX
    colour, shape, character = (np.zeros((rows, columns), np.int64) for _ in range(3))
    best = np.full((rows, columns), 0.06)
    names = list(draw.COLOURS)
    for thing in things:
        full = np.zeros((height, width), np.float32)
        left, top = thing.corner(frame)
        mask = draw.shape_mask(thing.shape, thing.side_px)
        full[top : top + thing.side_px, left : left + thing.side_px] = mask
        cover = _patch_cover(full)
        wins = cover > best
        best[wins] = cover[wins]
        colour[wins], shape[wins] = 1 + names.index(thing.colour), 1 + draw.SHAPES.index(thing.shape)
    best[:] = 0.15
    for text, box in zip(sign.text, sign.boxes, strict=True) if sign else ():
        full = np.zeros((height, width), np.float32)
        full[box[1] : box[3], box[0] : box[2]] = 1
        cover = _patch_cover(full)
        wins = cover > best
        best[wins] = cover[wins]
        character[wins] = 1 + draw.SIGN_CHARACTERS.index(text)
    return colour, shape, character


def make_scene(
    split: str,
    seed: int,
    level: str = "small",
    size: tuple[int, int] | None = None,
    frames: int | None = None,
) -> Scene:
    """Draw scene number `seed` of a split.

    `size` = (height, width) in pixels, multiples of 32, and `frames` overrule the level's own random choice,
    so that a trainer can batch scenes of one size.
    """
    rng = scene_rng(split, seed, level)
    rule = LEVELS[LEVEL_NAMES.index(level)]
    drawn = tuple(int(v) for v in rng.choice(rule.sides, 2)), int(rng.choice(rule.frames))
    (height, width), frames = size or drawn[0], frames or drawn[1]
    if height % 32 or width % 32 or min(height, width) < 128:
        raise ValueError(f"size {height} x {width} is not made of multiples of 32 from 128 on")
    taken: list[draw.Box] = []
    columns: list[int] = []
    placed = _place_sign(rng, rule, height, width, taken) if rng.random() < rule.sign_share else None
    things: list[Thing] = []
    for number in range(int(rng.integers(rule.things[0], rule.things[1] + 1))):
        # In a clip the first object always moves, the others now and then.
        moving = frames > 1 and (number == 0 or rng.random() < 0.5)
        thing = _place_thing(rng, rule, height, width, taken, columns, frames, moving)
        if thing is not None:
            things.append(thing)
    things.sort(key=lambda thing: thing.x)
    ground = draw.background(rng, str(rng.choice(rule.backgrounds)), height, width)
    if placed is not None:
        (left, top, right, bottom), plate = placed[0].box, placed[1]
        ground[top:bottom, left:right] = plate
    sign = placed[0] if placed else None
    pictures, labels = [], []
    for frame in range(frames):
        canvas = ground.copy()
        for thing in things:
            left, top = thing.corner(frame)
            draw.paste(canvas, draw.shape_mask(thing.shape, thing.side_px), thing.rgb, left, top)
        pictures.append(np.round(canvas).astype(np.uint8))
        labels.append(_label(frame, things, sign, height, width))
    colour, shape, character = (np.stack(part) for part in zip(*labels, strict=True))
    times = tuple(FRAME_STEP_S * number for number in range(frames))
    return Scene(
        split,
        seed,
        rule,
        np.stack(pictures),
        times,
        tuple(things),
        sign,
        PatchLabels(colour, shape, character),
    )
