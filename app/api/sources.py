"""Where the media of a request may come from: data URLs, the caller's own uploaded files, addresses on a list."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

from app.api.errors import bad_request, too_large
from app.api.filestore import PREFIX, FileStore
from app.api.media import decode
from engines.media import MIB

# For fetching one file, from the first byte sent to the last received.
FETCH_S = 30
_PIECE_BYTES = 1 << 16
_PORTS = {"https": 443, "http": 80}

Origin = tuple[str, str, int]
"""Scheme, host and port."""


@dataclass(frozen=True)
class Sources:
    files: FileStore
    origins: frozenset[Origin] = frozenset()
    """What the operator has said may be fetched from. Empty: nothing is fetched."""

    def read(self, tenant: str, url: str, name: str, most: int) -> bytes:
        """What `url` stands for, `name` being what sentences call it. ApiError where it may not be had."""
        if url.startswith(PREFIX):
            return self.files.read(tenant, url)
        if self.origins and url[:5].lower() != "data:":
            return self._fetch(url, name, most)
        return decode(url, name)

    def _fetch(self, url: str, name: str, most: int) -> bytes:
        # Backslashes, spaces and user names are where readers of addresses differ over what the host is.
        plain = url.isascii() and url.isprintable() and not set(url) & set('\\ @"<>')
        if not plain or _origin(url) not in self.origins:
            allowed = ", ".join(sorted(f"{scheme}://{host}:{port}" for scheme, host, port in self.origins))
            raise bad_request(
                f"The URL of {name} leads to no place that may be fetched from here ({allowed}); "
                "send the file itself as a data URL.",
                code="invalid_url",
            )
        end_s = time.monotonic() + FETCH_S
        data = bytearray()
        try:
            with _OPENER.open(url, timeout=FETCH_S) as response:
                while piece := response.read1(_PIECE_BYTES):
                    data += piece
                    if len(data) > most:
                        raise too_large(f"{name} is larger than {most / MIB:.0f} MiB.")
                    if time.monotonic() > end_s:
                        raise TimeoutError
        except urllib.error.HTTPError as error:
            raise bad_request(f"{name} could not be fetched (status {error.code}).", code="fetch_failed") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Nothing of the failure itself: it may tell of the network behind the server.
            raise bad_request(f"{name} could not be fetched.", code="fetch_failed") from error
        return bytes(data)


def read_origins(texts: Iterable[str]) -> frozenset[Origin]:
    """Of `https://host`, `http://host:port`, or a bare host, which means https. ValueError for any other."""
    found = set()
    for text in texts:
        url = text if "://" in text else f"https://{text}"
        origin = _origin(url)
        if origin is None or "@" in url or urlsplit(url)[2:] not in (("", "", ""), ("/", "", "")):
            raise ValueError(f"{text!r} is no place to fetch from; write a host name, or https://host:port.")
        found.add(origin)
    return frozenset(found)


def _origin(url: str) -> Origin | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port or _PORTS[parts.scheme]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A place on the list must not be able to send us to another that is not."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
