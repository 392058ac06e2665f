"""Who is let in."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from app.api.errors import ApiError
from app.api.gate import ANYONE, Gate, read_keys
from tests.app.fake import FakeEngine
from tests.app.serving import ask, client, send, serving

KEYS = {"alice": "alice-key-0123456789", "bob": "bob-key-01234567890"}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("# ours\n\n" + "\n".join(f"{tenant}: {key}" for tenant, key in KEYS.items()))
    return path


def test_keys_name_their_tenants(keys_file: Path) -> None:
    gate = Gate(keys=read_keys(keys_file))
    for tenant, key in KEYS.items():
        assert gate.tenant(f"Bearer {key}", "example.org") == tenant
        assert gate.tenant(f"bearer {key} ", None) == tenant
    for wrong in (
        None,
        "",
        "Bearer ",
        "Bearer wrong",
        f"Basic {KEYS['bob']}",
        KEYS["bob"],
        f"Bearer {KEYS['bob'][:-1]}",
    ):
        with pytest.raises(ApiError) as refused:
            gate.tenant(wrong, "localhost")
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "holds no key"),
        ("# none\n", "holds no key"),
        ("alice", "Line 1 .* tenant:key"),
        (":0123456789abcdef", "Line 1 .* tenant:key"),
        ("alice:0123 456789abcdef", "tenant:key"),
        ("alice:short", "5 characters; at least 16"),
        ("a:0123456789abcdef\nb:0123456789abcdef", "Line 2 .* given before"),
    ],
)
def test_a_bad_key_file_gets_a_sentence_without_the_key(tmp_path: Path, lines: str, sentence: str) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(lines)
    with pytest.raises(ValueError, match=sentence) as refused:
        read_keys(path)
    assert "0123456789abcdef" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "keys", "wanted", "guarded", "expected"),
    [
        ("127.0.0.1", False, None, False, Gate(this_machine_only=True)),
        ("localhost", False, None, False, Gate(this_machine_only=True)),
        ("::1", False, None, False, Gate(this_machine_only=True)),
        ("0.0.0.0", False, None, False, "off"),
        ("192.168.1.2", False, None, False, "off"),
        ("127.0.0.1", False, None, True, "off"),
        ("0.0.0.0", False, True, True, Gate()),
        ("127.0.0.1", False, False, False, "off"),
        ("0.0.0.0", True, None, True, Gate(keys={b"x": "a"})),
        ("127.0.0.1", True, True, False, Gate(keys={b"x": "a"})),
    ],
)
def test_the_default_is_safe(host: str, keys: bool, wanted: bool | None, guarded: bool, expected: Gate | str) -> None:
    gate = Gate.choose(host=host, keys={b"x": "a"} if keys else None, wanted=wanted, guarded=guarded)
    if expected == "off":
        assert "The endpoint is off" in gate.closed
    else:
        assert gate == expected


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "127.0.0.1:7860", "[::1]:7860", "127.1.2.3"])
def test_without_keys_this_machine_is_let_in(host: str) -> None:
    assert Gate(this_machine_only=True).tenant(None, host) == ANYONE


@pytest.mark.parametrize("host", [None, "", "example.org", "localhost.example.org", "192.168.1.2:7860", "[::", "a@b"])
def test_a_name_that_was_made_to_point_here_is_not(host: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        Gate(this_machine_only=True).tenant(None, host)
    assert refused.value.status == 403


def test_a_server_with_keys(keys_file: Path) -> None:
    with serving(FakeEngine(), Gate(keys=read_keys(keys_file))) as address:
        for key in KEYS.values():
            assert ask(address, key=key).choices[0].message.content == "A red circle"
        for key in ("wrong", "none"):
            with pytest.raises(openai.AuthenticationError) as refused:
                ask(address, key=key)
            assert refused.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError), client(address, key) as api:
                api.models.list()
        status, headers, _ = send(f"{address}/metrics")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert send(f"{address}/metrics", Authorization=f"Bearer {KEYS['bob']}")[0] == 200
        assert send(f"{address}/health")[0] == 200, "orchestrators have no key"
        assert send(f"{address}/ready")[0] == 200


def test_a_server_whose_endpoint_is_off_says_so() -> None:
    with serving(FakeEngine(), Gate.choose(host="0.0.0.0", keys=None, wanted=None, guarded=False)) as address:
        with pytest.raises(openai.PermissionDeniedError, match="--api-keys FILE"):
            ask(address)
        assert send(f"{address}/metrics")[0] == 403
        assert send(f"{address}/health")[0] == 200
        assert send(f"{address}/")[0] == 200


def test_another_host_name_is_refused_by_a_server_without_keys() -> None:
    with serving(FakeEngine()) as address:
        status, _, said = send(f"{address}/v1/models", Host="evil.example.org")
        assert status == 403
        assert json.loads(said)["error"]["code"] == "host_not_allowed"


def test_the_password_of_the_page_is_not_the_key_of_the_endpoint(keys_file: Path) -> None:
    with serving(FakeEngine(), Gate(keys=read_keys(keys_file)), auth=("me", "secret")) as address:
        assert send(f"{address}/config")[0] == 401
        assert ask(address, key=KEYS["bob"]).choices[0].finish_reason == "stop"
