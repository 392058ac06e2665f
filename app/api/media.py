"""Pictures and clips of a request: from data URLs and the like to files in a folder of the request's own."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path

from app.api.errors import bad_request, too_large
from app.api.schema import MediaPart
from engines.media import MIB, MediaError, MediaLimits
from engines.media.sniff import HEAD_BYTES, sniff

# All media of one request together, decoded; a smaller upload limit of the page bounds them further.
MOST_MEDIA_BYTES = 50 * MIB
# What a request may hold beside its media.
MOST_TEXT_BYTES = MIB


def most_media_bytes(limits: MediaLimits) -> int:
    return min(limits.max_bytes, MOST_MEDIA_BYTES)


def most_body_bytes(limits: MediaLimits) -> int:
    """Base64 takes four characters for three bytes."""
    return -(-most_media_bytes(limits) // 3) * 4 + MOST_TEXT_BYTES


def store_media(
    parts: Sequence[MediaPart], folder: Path, limits: MediaLimits, read: Callable[[str, str, int], bytes]
) -> tuple[Path, ...]:
    """Write each to a file in `folder`. ApiError for a URL that leads to nothing, a wrong kind of file, or too much.

    `read(url, name, most)` gives the bytes, `most` of them at most, and `name` is for its sentences. Only the beginning
    of each is looked at here, so that a file of a wrong kind need not wait for its turn to be refused; the engine
    decodes it, by its content and never by the type that the URL states.
    """
    if len(parts) > limits.max_items:
        raise bad_request(f"{len(parts)} images and videos were given; at most {limits.max_items} are allowed.")
    paths = []
    total = 0
    for number, part in enumerate(parts, 1):
        kind, url = part.kind, part.url
        # The name is what the media loader's sentences call it.
        path = folder / f"{kind} {number}"
        data = read(url, path.name, most_media_bytes(limits))
        total += len(data)
        if total > most_media_bytes(limits):
            raise too_large(
                f"The images and videos are larger than {most_media_bytes(limits) / MIB:.0f} MiB together; "
                "send fewer or smaller ones."
            )
        check_kind(path.name, data, part.type)
        path.write_bytes(data)
        paths.append(path)
    return tuple(paths)


def check_kind(name: str, data: bytes, param: str) -> None:
    """Refuse what is no image or video by its first bytes."""
    try:
        sniff(name, data[:HEAD_BYTES])
    except MediaError as error:
        raise bad_request(str(error), param) from error


def decode(url: str, name: str) -> bytes:
    """The bytes of a base64 data URL."""
    head, comma, text = url.partition(",")
    scheme, _, rest = head.partition(":")
    if scheme.lower() != "data":
        raise bad_request(
            f"The URL of {name} is not a data URL, and no other is opened here: "
            "send the file itself as data:image/png;base64,... or data:video/mp4;base64,..., or upload it to /v1/files "
            "and give its id.",
            code="invalid_url",
        )
    if not comma or not rest.lower().endswith(";base64"):
        raise bad_request(f"The data URL of {name} must be of the form data:TYPE;base64,DATA.", code="invalid_url")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"The data URL of {name} is not valid base64.", code="invalid_base64") from error
