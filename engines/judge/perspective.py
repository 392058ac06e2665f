"""Perspective distortion: the picture as seen from aside, all of it still in sight."""

from __future__ import annotations

import cv2
import numpy as np


def corners(strength: float, rng: np.random.Generator) -> np.ndarray:
    """(4, 2): where the corners go, as shares of width and height, clockwise from the top left.

    Each moves inwards by between a half and all of `strength` x half a side, as in torchvision's RandomPerspective
    (which draws from 0 on), so that nothing is cut off.
    """
    inwards = rng.uniform(0.5, 1.0, (4, 2)) * strength / 2
    still = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    return still + inwards * np.where(still == 0, 1, -1)


def warp(frames: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Every frame alike; uint8 (frames, height, width, 3). What the picture leaves free repeats its edge."""
    height, width = frames.shape[1:3]
    size = np.array([width - 1, height - 1], dtype=np.float32)
    still = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.float32) * size
    matrix = cv2.getPerspectiveTransform(still, (moved * size).astype(np.float32))
    return np.stack(
        [
            cv2.warpPerspective(frame, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            for frame in frames
        ]
    )
