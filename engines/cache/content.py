"""What an image or a frame group holds, as one digest: names, and files that decode alike, make no difference."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engines.prompt import VisualItem, frame_groups

SAMPLES = Path(__file__).resolve().parents[2] / "assets" / "samples"


def group_contents(item: VisualItem, temporal_patch: int) -> list[str]:
    """SHA-256, in hex, of each frame group's kind, decoded pixels, and grid of patches."""
    media, grid = item.media, item.grid[1:]
    if media.kind == "image":
        # Its own digest covers nothing but its pixels, and is there already.
        return [hashlib.sha256(f"image {media.digest} {grid}".encode()).hexdigest()]
    found = []
    for frames, _ in frame_groups(item, temporal_patch):
        digest = hashlib.sha256(f"video {media.frames.shape[1:]} {len(frames)} {grid}".encode())
        for frame in frames:
            digest.update(media.frames[frame].data)
        found.append(digest.hexdigest())
    return found


def are_bundled(files: Sequence[Path]) -> bool:
    """Whether all of these files, of which there is at least one, are by their content among the bundled samples."""
    return bool(files) and all(_file_digest(file) in _bundled() for file in files)


@cache
def _bundled() -> frozenset[str]:
    return frozenset(_file_digest(file) for file in SAMPLES.iterdir())


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
