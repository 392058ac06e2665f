"""Settings to start from for a scene: plain data, each with its reason. Picked from the media, never applied unasked.

What a preset prunes is a rule of thumb to be checked by eye and on the benchmark, and says so; nothing here was
measured. Long videos and thick documents follow the published ranges (35-45 % over 512 frames, 20-30 % over
8 pages); below these, less is pruned, since there is less that repeats. Photographs follow the page's own
recommendation, and small ones keep more, since each of their few tokens stands for more of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from engines.config import CompressionConfig
from engines.media import Media

Scene = Literal["video", "document", "photo"]

# Shares to prune: from how many frames, pages or pixels on (the first that fits counts).
VIDEO_SHARES = ((1024, 0.45), (768, 0.40), (513, 0.35), (129, 0.30), (0, 0.20))
DOCUMENT_SHARES = ((17, 0.30), (13, 0.25), (9, 0.20), (3, 0.15), (0, 0.10))
PHOTO_SHARES = ((512 * 512, 0.50), (0, 0.25))

# From this rate on, neighbouring frames repeat; slower clips are slides or time lapse.
REPEATING_FPS = 5.0
# Long over short side of paper: from US Letter (1.29) to US Legal (1.65), with ISO A (1.41) between.
PAGE_SIDES = (1.2, 1.7)
# Text on a page of fewer pixels is not read anyway.
PAGE_PIXELS = 600 * 800
# A page is mostly paper: light and without colour.
PAPER_SHARE, PAPER_LIGHT, PAPER_COLOUR = 0.5, 160, 48


@dataclass(frozen=True)
class Facts:
    """What a preset is picked by, of one image or clip. Sizes in pixels."""

    kind: Literal["image", "video"]
    width: int
    height: int
    frames: int
    """Of the whole clip, as far as it is known, and not of the sample that the model sees; 1 for an image."""
    fps: float | None
    """None = unknown, or an image."""
    paper: float
    """Share of the pixels that are light and without colour, 0-1."""

    @classmethod
    def of(cls, media: Media) -> Facts:
        frames = media.n_frames
        if media.duration_s is not None and media.source_fps is not None:
            frames = max(frames, round(media.duration_s * media.source_fps))
        return cls(media.kind, media.width, media.height, frames, media.source_fps, paper_share(media.frames[0]))

    @property
    def is_page(self) -> bool:
        sides = max(self.width, self.height) / min(self.width, self.height)
        return (
            self.kind == "image"
            and PAGE_SIDES[0] <= sides <= PAGE_SIDES[1]
            and self.width * self.height >= PAGE_PIXELS
            and self.paper >= PAPER_SHARE
        )


@dataclass(frozen=True)
class Preset:
    """Settings of visual-token pruning for a scene. All other settings stay as they are."""

    scene: Scene
    label: str
    method: str
    keep_ratio: float
    scope: str
    reason: str
    """Why this scene and this share, for the person who decides."""

    @property
    def assignments(self) -> tuple[str, ...]:
        return (
            f"pruning.method={self.method}",
            f"pruning.keep_ratio={self.keep_ratio}",
            f"pruning.scope={self.scope}",
        )

    def apply(self, config: CompressionConfig) -> CompressionConfig:
        """The same settings with this preset's. Options of another method would not fit the new one."""
        plain = replace(config, pruning=replace(config.pruning, options={}))
        kept = config if config.pruning.method == self.method else plain
        return kept.with_settings(self.assignments)


SCENES: tuple[Scene, ...] = ("video", "document", "photo")


def pick(facts: Sequence[Facts]) -> Scene | None:
    """The scene of these media: a video if there is any, a document if every image is a page; None without media."""
    if not facts:
        return None
    if any(one.kind == "video" for one in facts):
        return "video"
    return "document" if all(one.is_page for one in facts) else "photo"


def suggest(facts: Sequence[Facts]) -> Preset | None:
    """The preset for these media; None without media."""
    scene = pick(facts)
    return None if scene is None else preset(scene, facts)


def preset(scene: Scene, facts: Sequence[Facts] = ()) -> Preset:
    """The preset of a scene for media of this size; for the smallest where there are none of its kind."""
    return {"video": _video, "document": _document, "photo": _photo}[scene](facts)


def paper_share(frame: np.ndarray) -> float:
    """Share of the pixels of (height, width, 3) uint8 that are light and without colour, on a sample of them."""
    step = max(1, min(frame.shape[:2]) // 128)
    pixels = frame[::step, ::step].astype(np.int16)
    light, colour = pixels.min(axis=-1), pixels.max(axis=-1) - pixels.min(axis=-1)
    return float(((light >= PAPER_LIGHT) & (colour <= PAPER_COLOUR)).mean())


def _share(shares: Sequence[tuple[int, float]], size: int) -> float:
    return next(share for least, share in shares if size >= least)


def _video(facts: Sequence[Facts]) -> Preset:
    clips = [one for one in facts if one.kind == "video"]
    longest = max(clips, key=lambda one: one.frames, default=None)
    frames = longest.frames if longest is not None else 0
    share = _share(VIDEO_SHARES, frames)
    slow = longest is not None and longest.fps is not None and longest.fps < REPEATING_FPS
    size = f"{frames:,} frames" if longest is not None else "no clip seen yet"
    rate = f" at {longest.fps:.3g} frames a second" if longest is not None and longest.fps is not None else ""
    length = "videos over 512 frames bear 35 to 45 %" if frames > 512 else "less repeats in 512 frames or fewer"
    how = (
        "in so slow a clip every frame is new, so the tokens are chosen by importance and diversity"
        if slow
        else "neighbouring frames repeat, so what does not change is dropped first, and images stay whole"
    )
    return Preset(
        "video",
        "Video question answering",
        "mmr" if slow else "temporal",
        _kept(share),
        "item",
        f"{size}{rate}: prunes {share * 100:.0f} %, since {length}; {how}.",
    )


def _document(facts: Sequence[Facts]) -> Preset:
    pages = sum(one.kind == "image" for one in facts)
    share = _share(DOCUMENT_SHARES, pages)
    paper = "mostly light paper" if pick(facts) == "document" else "taken as scanned paper"
    size = f"{pages} page{'s' * (pages != 1)}, {paper}" if pages else "no page seen yet"
    thick = (
        "documents over 8 pages bear 20 to 30 %" if pages > 8 else "text suffers first and there are 8 pages or fewer"
    )
    return Preset(
        "document",
        "Scanned document",
        "max_min",
        _kept(share),
        "frame",
        f"{size}: prunes {share * 100:.0f} %, since {thick}; of blank paper one token says as much as many, so the "
        "tokens that differ most stay.",
    )


def _photo(facts: Sequence[Facts]) -> Preset:
    pictures = [one for one in facts if one.kind == "image"]
    largest = max(pictures, key=lambda one: one.width * one.height, default=None)
    share = _share(PHOTO_SHARES, 0 if largest is None else largest.width * largest.height)
    size = f"{largest.width} x {largest.height} pixels" if largest is not None else "no picture seen yet"
    why = "large pictures have many tokens of the same ground" if share == 0.5 else "small pictures have few tokens"
    return Preset(
        "photo",
        "General photo",
        "mmr",
        _kept(share),
        "frame",
        f"{size}: prunes {share * 100:.0f} %, since {why}; the tokens are chosen by importance and diversity.",
    )


def _kept(share: float) -> float:
    return round(1.0 - share, 2)
