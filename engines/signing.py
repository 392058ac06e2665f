"""Signed results: HMAC-SHA256 (RFC 2104) over every byte of a report but the signature itself.

A report begins with a line that says `none`, or carries the signature in its place. What is signed is the report as it
is with `none`, so that a change of any byte, the signature's own included, is found.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

KEY_VARIABLE = "QWEN_VL_MOE_WORKBENCH_SIGNING_KEY"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 4096
NONE = b"none"
# Only here may a signature stand: a text further down, such as an answer, cannot pass for one.
HTML_HEAD = b"<!doctype html>\n<!-- signature: none -->\n"
JSON_HEAD = b'{\n  "signature": "none",\n'
_SIGNED = {
    head: re.compile(re.escape(before) + rb"hmac-sha256:([0-9a-f]{64})" + re.escape(after))
    for head in (HTML_HEAD, JSON_HEAD)
    for before, _, after in [head.partition(NONE)]
}


class SignatureError(ValueError):
    """A report that is not what was signed, or not signed at all, in one sentence."""


def sign(report: bytes, key: bytes) -> bytes:
    """The report with its signature. ValueError if it does not begin with a place for one."""
    head = next((head for head in _SIGNED if report.startswith(head)), None)
    if head is None:
        raise ValueError("The report has no place for a signature.")
    before, _, after = head.partition(NONE)
    return before + b"hmac-sha256:" + _digest(report, key).encode() + after + report[len(head) :]


def verify(report: bytes, key: bytes) -> None:
    """Raise SignatureError unless these are the bytes that were signed with this key."""
    for head, pattern in _SIGNED.items():
        found = pattern.match(report)
        if found is not None:
            original = head + report[found.end() :]
            if not hmac.compare_digest(found[1].decode(), _digest(original, key)):
                raise SignatureError("The signature does not fit: the file was changed, or signed with another key.")
            return
    raise SignatureError("The file is not signed.")


def _digest(report: bytes, key: bytes) -> str:
    return hmac.new(key, report, hashlib.sha256).hexdigest()


def read_key(file: Path | None) -> bytes | None:
    """The key in a file, else the one in the environment, else None. ValueError, which never quotes it, if unusable."""
    if file is None:
        text = os.environ.get(KEY_VARIABLE, "").encode()
        if not text:
            return None
        where = f"The signing key in {KEY_VARIABLE}"
    else:
        where = f"The signing key in {file}"
        try:
            with file.open("rb") as stream:
                text = stream.read(MOST_KEY_BYTES + 1)
        except OSError as error:
            raise ValueError(f"The signing key {file} could not be read: {error.strerror}.") from error
    key = text.strip()
    if not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise ValueError(f"{where} must have {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes.")
    return key
