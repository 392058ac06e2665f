"""Pixels of the demo scenes: shapes, backgrounds and signs. Everything here is a pure function of its
arguments.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_ASSETS = Path(__file__).resolve().parents[2] / "assets"

# Saturated colours on washed-out backgrounds: a colour name is then never a matter of taste.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (240, 220, 50),
    "green": (50, 170, 70),
    "cyan": (60, 200, 215),
    "blue": (50, 80, 220),
    "purple": (140, 60, 190),
    "pink": (245, 140, 190),
}
COLOUR_JITTER = 14  # largest change of a channel; small enough that the nearest palette entry stays the named one
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "arrow")
SIZES_PX = {"small": 20, "medium": 32, "large": 48}
# In assets/backgrounds. The order is part of every scene, so append and never reorder.
PHOTOGRAPHS = (
    "brick.jpg",
    "chelsea.jpg",
    "coffee.jpg",
    "grass.jpg",
    "gravel.jpg",
    "hubble_deep_field.jpg",
    "rocket.jpg",
)
BACKGROUNDS = ("plain", "gradient", "noise", "texture", "photo")
# Without I, O, Q, 0 and 1, which cannot be told from their twins at these sizes.
SIGN_CHARACTERS = "ABCDEFGHJKLMNPRSTUVWXYZ23456789"
SIGN_LENGTH = 4  # longest sign
CHART_VALUES = tuple(range(1, 7))

# Aileron is the face that Pillow carries inside; the others are in assets/fonts, with their licences.
FACES = ("Aileron", "DejaVuSerif", "DejaVuSansMono-Bold")

_SUPERSAMPLE = 4


def _outline(shape: str) -> list[tuple[float, float]]:
    """Corner points of a shape in the unit square (x right, y down)."""
    if shape == "square":
        return [(0.06, 0.06), (0.94, 0.06), (0.94, 0.94), (0.06, 0.94)]
    if shape == "triangle":
        return [(0.5, 0.0), (1.0, 0.95), (0.0, 0.95)]
    if shape == "diamond":
        return [(0.5, 0.0), (0.95, 0.5), (0.5, 1.0), (0.05, 0.5)]
    if shape == "star":
        angles = np.pi * (np.arange(10) / 5 - 0.5)
        radii = np.where(np.arange(10) % 2 == 0, 0.52, 0.22)
        return [(0.5 + r * np.cos(a), 0.52 + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]
    if shape == "cross":
        a, b = 0.34, 0.66
        return [
            (a, 0),
            (b, 0),
            (b, a),
            (1, a),
            (1, b),
            (b, b),
            (b, 1),
            (a, 1),
            (a, b),
            (0, b),
            (0, a),
            (a, a),
        ]
    if shape == "arrow":
        return [(0, 0.33), (0.5, 0.33), (0.5, 0.02), (1, 0.5), (0.5, 0.98), (0.5, 0.67), (0, 0.67)]
    if shape == "heart":
        t = np.linspace(0, 2 * np.pi, 40)
        x = 16 * np.sin(t) ** 3
        y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
        return [(0.5 + u / 33, 0.46 - v / 33) for u, v in zip(x, y, strict=True)]
    raise ValueError(f"unknown shape {shape!r}; one of {SHAPES}")


@lru_cache(maxsize=1024)
def shape_mask(shape: str, size_px: int) -> np.ndarray:
    """Coverage of a shape, float32 (size_px, size_px) in [0, 1], antialiased."""
    big = size_px * _SUPERSAMPLE
    canvas = Image.new("L", (big, big), 0)
    pen = ImageDraw.Draw(canvas)
    if shape == "circle":
        pen.ellipse((0.02 * big, 0.02 * big, 0.98 * big, 0.98 * big), fill=255)
    else:
        pen.polygon([(x * (big - 1), y * (big - 1)) for x, y in _outline(shape)], fill=255)
    mask = np.asarray(canvas.resize((size_px, size_px), Image.Resampling.BOX), dtype=np.float32) / 255
    mask.setflags(write=False)  # shared by the cache
    return mask


def background(rng: np.random.Generator, kind: str, height: int, width: int) -> np.ndarray:
    """A washed-out background, float32 (height, width, 3) in 0-255."""
    base = rng.uniform(40, 225) + rng.uniform(-14, 14, 3)
    ground = np.empty((height, width, 3), np.float32)
    ground[:] = base
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    if kind == "gradient":
        angle = rng.uniform(0, 2 * np.pi)
        ramp = np.cos(angle) * x / width + np.sin(angle) * y / height
        ground += (ramp * rng.uniform(30, 80))[..., None] + rng.uniform(-8, 8, 3)
    elif kind == "noise":
        ground += rng.normal(0, rng.uniform(4, 14), (height, width, 1))
    elif kind == "texture":
        period, angle = rng.uniform(6, 24), rng.uniform(0, np.pi)
        wave = np.sin((np.cos(angle) * x + np.sin(angle) * y) * 2 * np.pi / period)
        if rng.random() < 0.5:
            wave = wave * np.sin((np.cos(angle) * y - np.sin(angle) * x) * 2 * np.pi / period)
        ground += (wave * rng.uniform(6, 16))[..., None]
    elif kind == "photo":
        # Faded to a tint, like the other backgrounds, so that only things are colourful.
        crop = _photograph(rng, height, width)
        grey = crop.mean(axis=2, keepdims=True)
        ground += (0.25 * crop + 0.75 * grey - grey.mean()) * rng.uniform(0.25, 0.5)
    elif kind != "plain":
        raise ValueError(f"unknown background {kind!r}; one of {BACKGROUNDS}")
    return np.clip(ground, 0, 255)


@lru_cache(maxsize=1)
def _photographs() -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(Image.open(_ASSETS / "backgrounds" / name).convert("RGB")) for name in PHOTOGRAPHS)


def _photograph(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A random crop of a bundled photograph, float32 (height, width, 3), scaled up where it is too small."""
    whole = _photographs()[int(rng.integers(len(_photographs())))]
    rows, columns = whole.shape[:2]
    scale = min(rows / height, columns / width) * rng.uniform(0.5, 1.0)
    crop_rows, crop_columns = max(1, int(height * scale)), max(1, int(width * scale))
    top = int(rng.integers(rows - crop_rows + 1))
    left = int(rng.integers(columns - crop_columns + 1))
    crop = Image.fromarray(whole[top : top + crop_rows, left : left + crop_columns])
    return np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR), np.float32)


@lru_cache(maxsize=256)
def _font(face: str, height_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if face == "Aileron":
        return ImageFont.load_default(height_px)
    return ImageFont.truetype(_ASSETS / "fonts" / f"{face}.ttf", height_px)


Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


def sign_plate(text: str, face: str, height_px: int, dark: bool, bold: bool) -> tuple[np.ndarray, list[Box]]:
    """A sign: uint8 (h, w, 3), and the box of every character within it. `height_px` is the font size."""
    font, gap, margin = _font(face, height_px), max(1, height_px // 10), max(3, height_px // 5)
    stroke = 1 if bold else 0
    boxes: list[Box] = []
    left = margin
    top_of_text, bottom_of_text = font.getbbox("X", stroke_width=stroke)[1::2]
    height = bottom_of_text - top_of_text + 2 * margin
    for character in text:
        x0, _, x1, _ = font.getbbox(character, stroke_width=stroke)
        boxes.append((left, margin, left + int(x1 - x0), int(height) - margin))
        left += int(x1 - x0) + gap
    paper, ink = ((28, 28, 28), (245, 245, 245)) if dark else ((248, 248, 248), (16, 16, 16))
    plate = Image.new("RGB", (left - gap + margin, int(height)), paper)
    pen = ImageDraw.Draw(plate)
    for character, box in zip(text, boxes, strict=True):
        x0 = font.getbbox(character, stroke_width=stroke)[0]
        pen.text((box[0] - x0, margin - top_of_text), character, fill=ink, font=font, stroke_width=stroke)
    pen.rectangle((0, 0, plate.width - 1, plate.height - 1), outline=ink)
    return np.asarray(plate), boxes


def chart_plate(
    values: tuple[int, ...], colours: list[tuple[int, int, int]], unit_px: int, dark: bool
) -> tuple[np.ndarray, list[Box]]:
    """A bar chart with a line at every whole value: uint8 (h, w, 3), and the box of every bar within it."""
    width, gap, margin = round(1.6 * unit_px), max(3, unit_px // 2), max(4, unit_px // 2)
    full = CHART_VALUES[-1] * unit_px
    paper, ink, line = (
        ((28, 28, 28), (235, 235, 235), (78, 78, 78)) if dark else ((248, 248, 248), (24, 24, 24), (205, 205, 205))
    )
    plate = Image.new("RGB", (2 * margin + len(values) * (width + gap) + gap, full + 2 * margin), paper)
    pen = ImageDraw.Draw(plate)
    base = margin + full
    for value in CHART_VALUES:
        pen.line((margin, base - value * unit_px, plate.width - margin, base - value * unit_px), fill=line)
    boxes = []
    for number, (value, colour) in enumerate(zip(values, colours, strict=True)):
        left = margin + gap + number * (width + gap)
        boxes.append((left, base - value * unit_px, left + width, base))
        pen.rectangle((left, base - value * unit_px, left + width - 1, base - 1), fill=colour)
    pen.line((margin, margin // 2, margin, base), fill=ink)
    pen.line((margin, base, plate.width - margin, base), fill=ink)
    return np.asarray(plate), boxes


def paste(canvas: np.ndarray, mask: np.ndarray, rgb: tuple[int, int, int], left: int, top: int) -> None:
    """Blend a colour into a float32 canvas (h, w, 3) in place, where `mask` (n, n) covers it."""
    size = mask.shape[0]
    region = canvas[top : top + size, left : left + size]
    region += mask[..., None] * (np.asarray(rgb, np.float32) - region)
