"""Bytes to frames: a visitor's file becomes upright RGB pixels with real times, or a sentence saying why not.

    media = load_media("clip.mp4", sampling=FrameSampling(fps=None, num_frames=8))
    media.frames            # uint8 (8, height, width, 3)

What a file is gets decided by its content (sniff.py). Stills and animations are read by Pillow (image.py,
animation.py), clips by PyAV (container.py, video.py, pixels.py). No file can make a reader open another file
or an address.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from .animation import is_animated, read_animation
from .image import open_image, read_image
from .limits import (
    ALLOWED,
    IMAGE_SUFFIXES,
    MIB,
    SUFFIXES,
    VIDEO_SUFFIXES,
    FrameSampling,
    MediaError,
    MediaLimits,
)
from .record import Kind, Media
from .sniff import HEAD_BYTES, sniff
from .video import read_video

__all__ = [
    "IMAGE_SUFFIXES",
    "SUFFIXES",
    "VIDEO_SUFFIXES",
    "FrameSampling",
    "Kind",
    "Media",
    "MediaError",
    "MediaLimits",
    "load_all",
    "load_media",
]


def load_media(path: str | Path, *, limits: MediaLimits | None = None, sampling: FrameSampling | None = None) -> Media:
    """Decode one image or the sampled frames of one clip; MediaError with a sentence if it cannot."""
    limits, sampling = limits or MediaLimits(), sampling or FrameSampling()
    name = display_name(path)
    with _open_regular(path, name, limits) as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        kind, decoder = sniff(name, head)
        if kind == "video":
            return read_video(file, decoder, name, limits, sampling)
        image = open_image(file, decoder, name)
        if is_animated(image):
            file.seek(0)
            return read_animation(file, decoder, name, limits, sampling)
        return read_image(image, name, limits)


def load_all(
    paths: Iterable[str | Path], *, limits: MediaLimits | None = None, sampling: FrameSampling | None = None
) -> list[Media]:
    """`load_media` for each, in order; too many of them is a MediaError before any is opened."""
    limits = limits or MediaLimits()
    paths = list(paths)
    if len(paths) > limits.max_items:
        raise MediaError(
            f"{len(paths)} files were given and at most {limits.max_items} are allowed in one request:"
            f" leave out {len(paths) - limits.max_items}."
        )
    return [load_media(path, limits=limits, sampling=sampling) for path in paths]


def display_name(path: str | Path) -> str:
    """The base name, printable and short, whatever a visitor called the file."""
    name = Path(os.fspath(path).replace("\\", "/")).name or "The file"
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= 80 else f"{name[:60]}...{name[-16:]}"


def _open_regular(path: str | Path, name: str, limits: MediaLimits) -> BinaryIO:
    """Open a plain file of an allowed size. Links are refused: they may lead out of the upload folder."""
    if "://" in os.fspath(path):
        raise MediaError(f"{name} is an address, and addresses are not opened: save the file and upload it.")
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise MediaError(f"{name} is a link to another place, and links are not followed: upload the file itself.")
        if stat.S_ISDIR(mode):
            raise MediaError(f"{name} is a folder: upload the files in it, at most {limits.max_items} at once.")
        if not stat.S_ISREG(mode):
            raise MediaError(f"{name} is not a plain file: upload {ALLOWED}.")
        # O_NOFOLLOW: the path may have become a link since it was looked at.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(path, flags), "rb")
    except MediaError:
        raise
    except FileNotFoundError as error:
        raise MediaError(f"{name} does not exist (any more): upload it again.") from error
    except (OSError, ValueError) as error:
        raise MediaError(f"{name} cannot be opened: check that it may be read, or upload it again.") from error
    size = os.fstat(file.fileno()).st_size
    if size > limits.max_bytes:
        file.close()
        raise MediaError(
            f"{name} is {size / MIB:.1f} MiB, and at most {limits.max_bytes / MIB:.1f} MiB are allowed:"
            " shorten or compress it and upload it again."
        )
    return file
