"""Gaussian noise together with salt and pepper, at a signal-to-noise ratio that is reached and not just asked for."""

from __future__ import annotations

import numpy as np

# Scaling stops this near to the ratio that was asked for.
_TOLERANCE_DB = 0.02
_STEPS = 25


def snr_db(clean: np.ndarray, noisy: np.ndarray) -> float:
    """Signal power over noise power in decibels; infinite where nothing differs. Both are pixels of one shape."""
    signal = clean.astype(np.float32)
    noise = float(np.square(noisy.astype(np.float32) - signal).mean())
    return 10 * float(np.log10(np.square(signal).mean() / noise)) if noise else float("inf")


def add_noise(frame: np.ndarray, target_db: float, rng: np.random.Generator) -> np.ndarray:
    """A noisy copy of one frame, uint8 (height, width, 3), whose `snr_db` is the target to within a tenth of a dB,
    or 0.3 dB where the picture is of one colour.

    Half of the noise power is Gaussian, drawn for every channel; half is salt and pepper, pixels that are white or
    black whole. Power is the mean square of the pixels, 0 to 255. Clipping and rounding change the noise, so its
    scale is corrected until the picture as it is handed on has the ratio. A black picture has no power to measure
    against and stays as it is.
    """
    clean = frame.astype(np.float32)
    power = float(np.square(clean).mean())
    if power == 0:
        return frame.copy()
    target = power / 10 ** (target_db / 10)
    gauss = rng.standard_normal(frame.shape, dtype=np.float32)
    chosen = rng.random(frame.shape[:2], dtype=np.float32)
    extreme = np.where(rng.random(frame.shape[:2]) < 0.5, np.float32(0), np.float32(255))[..., None]
    # What a pixel adds, on average over white and black, when it is replaced.
    replaced = float((np.square(clean) + np.square(255 - clean)).mean()) / 2
    scale, noisy = 1.0, frame
    for _ in range(_STEPS):
        share = min(1.0, scale * target / 2 / replaced)
        noise = clean + gauss * np.float32((scale * target / 2) ** 0.5)
        noise = np.where((chosen < share)[..., None], extreme, noise)
        noisy = noise.clip(0, 255).round().astype(np.uint8)
        off_db = snr_db(frame, noisy) - target_db
        if abs(off_db) <= _TOLERANCE_DB:
            break
        # More power lowers the ratio; an unchanged picture, in which all noise was rounded away, needs much more.
        scale *= 10 ** (min(off_db, 10.0) / 10)
    return noisy
