"""Scenes: (split, seed, level) in, pixels and what is in them out.

The random stream of a scene is seeded with the triple (split, level, seed), so no two splits can share a
scene: the split is part of the seed, not a range of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.demo import draw
from engines.demo.labels import Labels, label_frame
from engines.demo.layout import EVENTS, Chart, Event, Layout, Sign, Thing

SPLITS = ("train", "validation", "test")
MAX_PIXELS = 640 * 640  # of a still: 400 visual tokens


@dataclass(frozen=True)
class Level:
    """How hard a scene is. Ranges are inclusive; sides in pixels, multiples of 32."""

    name: str
    sides: tuple[int, ...]
    things: tuple[int, int]
    sizes: tuple[str, ...] = ("small", "medium", "large")
    zooms: tuple[float, ...] = (1.0,)
    backgrounds: tuple[str, ...] = draw.BACKGROUNDS
    sign_length: tuple[int, int] = (1, draw.SIGN_LENGTH)
    sign_share: float = 0.4
    signs: int = 1  # at most so many; with several there is no "the sign" to ask about
    font_px: tuple[int, int] = (24, 34)
    chart_share: float = 0.25
    bars: tuple[int, int] = (2, 4)
    unit_px: tuple[int, int] = (9, 13)
    frames: tuple[int, ...] = (1,)
    steps_s: tuple[float, ...] = (0.5, 1.0)  # time between two frames of a clip


# The order is the curriculum's. Append; never reorder: the index is part of every scene's seed.
LEVELS = (
    Level(
        "tiny",
        (128,),
        (1, 3),
        ("medium", "large"),
        backgrounds=("plain", "gradient"),
        sign_length=(1, 3),
        sign_share=0.5,
        font_px=(30, 38),
        chart_share=0.35,
        bars=(2, 3),
        unit_px=(10, 13),
    ),
    Level("small", (128, 160, 192), (1, 4)),
    Level("medium", (224, 256, 288, 320), (1, 6), zooms=(1.0, 1.25)),
    Level("large", (384, 416, 448), (1, 8), zooms=(1.0, 1.25, 1.5)),
    Level("huge", (448, 512, 576, 640, 672), (1, 8), zooms=(1.25, 1.5, 2.0)),
    Level("clip", (128, 160, 192), (1, 3), ("medium", "large"), sign_share=0.0, chart_share=0.0, frames=(4, 6, 8)),
    Level("long clip", (128, 160), (1, 3), ("medium", "large"), sign_share=0.0, chart_share=0.0, frames=(10, 12, 16)),
    # Crammed: for the vision tower, which learns from every token that shows something.
    Level("dense", (128, 160), (6, 9), sign_length=(3, 4), sign_share=0.75, font_px=(26, 38)),
    Level("dense, zoomed", (224, 256), (6, 9), zooms=(1.25, 1.5, 2.0), sign_length=(2, 4), sign_share=0.75),
    Level("signs", (128, 160, 192), (0, 2), zooms=(1.0, 1.25, 1.5, 2.0), sign_share=1.0, signs=5),
)
LEVEL_NAMES = tuple(level.name for level in LEVELS)


@dataclass(frozen=True)
class Scene:
    """`frames`: uint8 (frames, height, width, 3); a still has one frame. `things` are ordered left to right.

    `labels`: int64 (frames, rows, columns) per kind of engines.demo.labels.KINDS.
    """

    split: str
    seed: int
    level: Level
    frames: np.ndarray
    step_s: float
    things: tuple[Thing, ...]
    sign: Sign | None
    chart: Chart | None
    labels: Labels

    @property
    def image(self) -> np.ndarray:
        return self.frames[0]

    @property
    def is_clip(self) -> bool:
        return len(self.frames) > 1

    @property
    def timestamps_s(self) -> tuple[float, ...]:
        return tuple(self.step_s * number for number in range(len(self.frames)))


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


def draw_size(rng: np.random.Generator, level: Level) -> tuple[int, int]:
    """A random (height, width) of the level, at most MAX_PIXELS together."""
    while True:
        height, width = (int(side) for side in rng.choice(level.sides, 2))
        if height * width <= MAX_PIXELS:
            return height, width


def _behaviours(rng: np.random.Generator, number: int, frames: int) -> list[tuple[bool, Event | None]]:
    """Whether each of a clip's things moves, and its event. A clip is about motion or about events, not both.

    Events fall on even frames, where a new frame pair begins, and on different ones: the time of an event is then
    that of a timestamp in the prompt, rounded down to whole seconds.
    """
    starts = list(range(2, frames, 2))
    if rng.random() < 0.5 or not starts:
        return [(k == 0 or bool(rng.random() < 0.5), None) for k in range(number)]
    number = max(2, number)  # so that there is an order to ask about
    at = rng.permutation(starts)[:number].tolist()
    alike = EVENTS[int(rng.integers(2))] if rng.random() < 0.8 else None
    found = [(False, Event(alike or EVENTS[int(rng.integers(2))], frame)) for frame in at]
    return [*found, *[(False, None)] * (number - len(found))]


def make_scene(
    split: str,
    seed: int,
    level: str = "small",
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    step_s: float | None = None,
) -> Scene:
    """Draw scene number `seed` of a split.

    `size` = (height, width) in pixels, multiples of 32, `frames` and `step_s` overrule the level's own random
    choice, so that a trainer can batch scenes of one size.
    """
    rng = scene_rng(split, seed, level)
    rule = LEVELS[LEVEL_NAMES.index(level)]
    drawn = draw_size(rng, rule), int(rng.choice(rule.frames)), float(rng.choice(rule.steps_s))
    (height, width), frames, step_s = size or drawn[0], frames or drawn[1], step_s or drawn[2]
    if height % 32 or width % 32 or min(height, width) < 128:
        raise ValueError(f"size {height} x {width} is not made of multiples of 32 from 128 on")
    layout = Layout(rng, height, width)
    kind = rng.random()
    sign = chart = None
    if kind < rule.sign_share:
        sign = layout.sign(rule.sign_length, rule.font_px, float(rng.choice(rule.zooms)))
    elif kind < rule.sign_share + rule.chart_share:
        chart = layout.chart(rule.bars, rule.unit_px, float(rng.choice(rule.zooms)))
    more = (layout.sign(rule.sign_length, rule.font_px, float(rng.choice(rule.zooms))) for _ in range(rule.signs - 1))
    signs = [found for found in (sign, *more) if found is not None]
    number = int(rng.integers(rule.things[0], rule.things[1] + 1))
    behaviours = _behaviours(rng, number, frames) if frames > 1 else [(False, None)] * number
    placed = (
        layout.thing(rule.sizes, float(rng.choice(rule.zooms)), frames, moving, event) for moving, event in behaviours
    )
    things = sorted((thing for thing in placed if thing is not None), key=lambda thing: thing.x)
    ground = draw.background(rng, str(rng.choice(rule.backgrounds)), height, width)
    plates = [(found.box, pixels) for found, pixels in signs] + ([(chart[0].box, chart[1])] if chart else [])
    for (left, top, right, bottom), pixels in plates:
        ground[top:bottom, left:right] = pixels
    pictures, labels = [], []
    for frame in range(frames):
        canvas = ground.copy()
        for thing in things:
            if thing.visible(frame):
                left, top = thing.corner(frame)
                draw.paste(canvas, draw.shape_mask(thing.shape, thing.side_px), thing.rgb, left, top)
        pictures.append(np.round(canvas).astype(np.uint8))
        labels.append(label_frame(frame, things, [found for found, _ in signs], chart and chart[0], height, width))
    return Scene(
        split,
        seed,
        rule,
        np.stack(pictures),
        step_s,
        tuple(things),
        sign[0] if sign and rule.signs == 1 else None,
        chart[0] if chart else None,
        {kind: np.stack([label[kind] for label in labels]) for kind in labels[0]},
    )
