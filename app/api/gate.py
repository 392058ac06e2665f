"""Who may use the endpoint: holders of a key, whoever reaches it, programs on this machine only, or nobody."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from app.api.errors import ApiError

# Shorter ones can be guessed by trying.
SHORTEST_KEY = 16
# Whom requests without a key belong to.
ANYONE = "anyone"

SAFE_DEFAULT = (
    "The endpoint is off: without --api-keys FILE it is on by itself only on a loopback host "
    "without --auth and --share. Start with --api-keys FILE, or with --api to let in whoever reaches it."
)
SWITCHED_OFF = "The endpoint is off: the server was started with --no-api."


@dataclass(frozen=True)
class Gate:
    """`tenant` names whose request it is, or refuses it."""

    keys: Mapping[bytes, str] = field(default_factory=dict)
    """Tenants by the SHA-256 of their keys. Empty: no key is asked for."""
    this_machine_only: bool = False
    closed: str = ""
    """Why nobody is let in, as a sentence; empty when the endpoint is on."""

    @classmethod
    def choose(cls, *, host: str, keys: Mapping[bytes, str] | None, wanted: bool | None, guarded: bool) -> Self:
        """The gate for a server on `host`; `wanted` is --api (True), --no-api (False) or neither (None).

        `guarded` says that the page asks for a password or is shared with the public: an open door beside it
        would be a surprise, on a loopback host too, since a proxy or the relay leads to it.
        """
        if wanted is False:
            return cls(closed=SWITCHED_OFF)
        if keys:
            return cls(keys=keys)
        if wanted:
            return cls()
        if is_loopback(host) and not guarded:
            return cls(this_machine_only=True)
        return cls(closed=SAFE_DEFAULT)

    @property
    def lets_strangers_in(self) -> bool:
        """Callers without a key who need not be one person."""
        return not self.keys and not self.this_machine_only

    def describe(self) -> str:
        """Who is let in, for the line that the server prints."""
        if self.keys:
            return "for holders of a key"
        return "for programs on this machine" if self.this_machine_only else "for whoever reaches it"

    def tenant(self, authorization: str | None, host: str | None) -> str:
        """Whose request it is, by its `Authorization` and `Host` headers; ApiError if it is not let in."""
        if self.closed:
            raise ApiError(403, self.closed, code="endpoint_off")
        if self.this_machine_only and not names_loopback(host):
            # A web page whose name was made to point here could otherwise speak to the endpoint through a
            # visitor's browser (DNS rebinding).
            raise ApiError(
                403,
                "Without keys this endpoint answers only requests to localhost or 127.0.0.1; "
                "start it with --api-keys FILE or --api for other names.",
                code="host_not_allowed",
            )
        if not self.keys:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        given = digest_of(key.strip())
        # Every key is compared, each in constant time, so that the time taken tells nothing about any of them.
        owners = [tenant for digest, tenant in self.keys.items() if hmac.compare_digest(digest, given)]
        if scheme.lower() != "bearer" or not owners:
            raise ApiError(
                401,
                "The API key is wrong." if key else "An API key is needed: send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return owners[0]


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(path: Path) -> dict[bytes, str]:
    """Tenants by the digest of their keys, from lines of `tenant:key`. ValueError with a sentence if it cannot.

    Empty lines and lines that begin with # are left out. A tenant may have several keys. No error repeats a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"The key file {path} cannot be read ({reason}).") from error
    keys: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        tenant, colon, key = (part.strip() for part in line.partition(":"))
        where = f"Line {number} of the key file {path}"
        if not colon or not tenant or not key or not key.isascii() or " " in key:
            raise ValueError(f"{where} is not of the form tenant:key, with a key of plain letters, digits and signs.")
        if len(key) < SHORTEST_KEY:
            raise ValueError(f"{where} has a key of {len(key)} characters; at least {SHORTEST_KEY} are needed.")
        if digest_of(key) in keys:
            raise ValueError(f"{where} has a key that was given before.")
        keys[digest_of(key)] = tenant
    if not keys:
        raise ValueError(f"The key file {path} holds no key; write one tenant:key a line.")
    return keys


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(header: str | None) -> bool:
    """Whether a Host header, with or without a port, names this machine itself."""
    try:
        return is_loopback(urlsplit(f"//{header or ''}").hostname or "")
    except ValueError:
        return False
