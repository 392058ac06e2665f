"""A signature covers every byte, and says nothing of the key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engines import signing
from engines.signing import HTML_HEAD, JSON_HEAD, SignatureError, read_key, sign, verify

KEY = b"a key of many bytes"
BODIES = {
    "html": HTML_HEAD + b"<html>hmac-sha256:" + b"0" * 64 + "<p>62 ms, größer</p></html>\n".encode(),
    "json": JSON_HEAD + b'  "answer": "none",\n  "ttft_s": 0.062\n}\n',
}


@pytest.mark.parametrize("report", BODIES.values(), ids=BODIES)
def test_what_was_signed_is_valid_and_nothing_else(report: bytes) -> None:
    signed = sign(report, KEY)
    verify(signed, KEY)
    with pytest.raises(SignatureError, match="another key"):
        verify(signed, KEY + b"!")
    with pytest.raises(SignatureError, match="not signed"):
        verify(report, KEY)
    with pytest.raises(SignatureError):
        verify(signed + b"\n", KEY)
    with pytest.raises(SignatureError):
        verify(signed[:-1], KEY)


@pytest.mark.parametrize("report", BODIES.values(), ids=BODIES)
def test_one_changed_byte_anywhere_is_found(report: bytes) -> None:
    """Every place, the signature's own included, with a byte drawn at random and one that differs in case only."""
    signed, draw = sign(report, KEY), random.Random(0)
    for place, byte in enumerate(signed):
        for other in {draw.choice([value for value in range(256) if value != byte]), byte ^ 0x20}:
            with pytest.raises(SignatureError):
                verify(signed[:place] + bytes([other]) + signed[place + 1 :], KEY)


def test_a_signature_within_the_text_is_none() -> None:
    inner = sign(BODIES["html"], KEY)
    with pytest.raises(SignatureError, match="not signed"):
        verify(HTML_HEAD + inner, KEY)
    with pytest.raises(ValueError, match="no place"):
        sign(b"<html>" + HTML_HEAD, KEY)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(signing.KEY_VARIABLE, raising=False)
    assert read_key(None) is None
    monkeypatch.setenv(signing.KEY_VARIABLE, "from the environment")
    assert read_key(None) == b"from the environment"
    file = tmp_path / "key"
    file.write_bytes(b"from a file, with a line's end\n")
    assert read_key(file) == b"from a file, with a line's end"


def test_a_key_that_cannot_be_used_is_refused_and_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"short secret\n")
    with pytest.raises(ValueError, match="16 to 4096 bytes") as refused:
        read_key(file)
    assert "short secret" not in str(refused.value)
    with pytest.raises(ValueError, match="could not be read"):
        read_key(tmp_path / "missing")
