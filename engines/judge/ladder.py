"""The rungs of a robustness measurement: what is done to the pictures, from clean to hardly legible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engines.judge.noise import add_noise
from engines.judge.perspective import corners, warp
from engines.media import Media
from engines.media.record import media_of

Kind = Literal["clean", "noise", "perspective"]
SNR_DB = (20.0, 15.0, 10.0, 5.0)
STRENGTHS = (0.15, 0.3, 0.45, 0.6)


@dataclass(frozen=True)
class Rung:
    """One level. `strength`: of noise the signal-to-noise ratio in dB, of perspective how far the corners move in,
    as a share of half a side."""

    kind: Kind
    strength: float = 0.0

    @property
    def label(self) -> str:
        if self.kind == "noise":
            return f"{self.strength:g} dB"
        return f"{self.strength:.2f}" if self.kind == "perspective" else "clean"

    def apply(self, media: Media, seed: int = 0) -> Media:
        """The media as this level shows them; of the clean one the same object. The same content and seed give the
        same pixels, and in a clip each frame has its own noise, while the camera stays where it is."""
        if self.kind == "clean":
            return media
        rng = np.random.default_rng([seed, int(media.digest[:15], 16)])
        if self.kind == "noise":
            frames = np.stack([add_noise(frame, self.strength, rng) for frame in media.frames])
        else:
            frames = warp(media.frames, corners(self.strength, rng))
        return media_of(
            media.kind, media.name, frames, media.timestamps_s, media.duration_s, media.source_fps, list(media.notes)
        )


CLEAN = Rung("clean")
LADDER = (
    CLEAN,
    *(Rung("noise", strength) for strength in SNR_DB),
    *(Rung("perspective", strength) for strength in STRENGTHS),
)
