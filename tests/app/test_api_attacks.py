"""Two tenants, the same picture: one tries by every forged id, scope, header and key to find what the other left."""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.api.errors import ApiError
from app.api.gate import Gate, digest_of
from engines.engine import Engine
from tests.app.serving import MODEL, ask, send, serving
from tests.app.test_api_real import part

ADA, BOB, LOOKALIKE = "a-key-of-ada-0123", "a-key-of-bob-0123", "a-key-of-other-01"
# The third is named like the first, in Cyrillic.
TENANTS = {ADA: "ada", BOB: "bob", LOOKALIKE: "аdа"}
GATE = Gate(keys={digest_of(key): name for key, name in TENANTS.items()})
SETTINGS = ["cache.prefix=true", "cache.encoder=true", "cache.scope=tenant"]


@pytest.fixture(scope="module")
def address(engines: dict[str, Engine]) -> Iterator[str]:
    with serving(engines["qwen3_vl_moe"], GATE) as found:
        yield found
    engines["qwen3_vl_moe"].clear_caches()


@pytest.fixture
def victim(address: str, engines: dict[str, Engine], media_files: dict[str, Path]) -> Iterator[list[dict[str, Any]]]:
    """What Ada has asked, at every level and by name."""
    content = [part("image", media_files["wide"]), {"type": "text", "text": "What is shown?"}]
    for scope in ("session", "resource", "user", "tenant"):
        names = {"user": "ada", "prompt_cache_key": "session of ada", "extra_body": body(f"cache.scope={scope}")}
        ask(address, content, ADA, max_tokens=2, **names)
    yield content
    engines["qwen3_vl_moe"].clear_caches()


def body(*settings: str, **more: Any) -> dict[str, Any]:
    return {"compression": {"settings": [*SETTINGS, *settings]}, "return_trace": True, "resource": "of ada", **more}


def found(answer: Any) -> int:
    """Tokens, images and frames that were found in any cache, by the answer's own account."""
    run = answer.model_dump()["workbench"]["cache_stats"]["run"]
    assert answer.usage.prompt_tokens_details.cached_tokens == run["prefix"]["tokens"]
    return sum(stats["hits"] for stats in run.values())


NAMES = [
    {"user": "ada", "prompt_cache_key": "session of ada"},
    {"user": "key ada", "prompt_cache_key": "ada"},
    {"user": 'ada", "session of ada'},
    {"user": "аdа", "prompt_cache_key": "sеssiоn of аdа"},
    {"user": "ada\u0000", "prompt_cache_key": "session of ada\u200b"},
    {"user": '["tenant","key ada"]'},
    {"user": "../ada", "prompt_cache_key": "*"},
    {},
]
HEADERS = [
    {"X-Tenant": "ada", "X-Tenant-Id": "key ada", "X-Api-Key": "ada"},
    {"OpenAI-Organization": "ada", "OpenAI-Project": "ada", "X-Session-Id": "session of ada"},
    {"X-Forwarded-User": "ada", "X-Remote-User": "ada", "Remote-User": "ada", "Cookie": "session=session of ada"},
    {"Forwarded": "for=127.0.0.1;host=localhost", "X-Forwarded-Host": "localhost", "X-Real-IP": "127.0.0.1"},
]
FIELDS = [
    {"tenant": "ada", "tenant_id": "key ada", "owner": {"tenant": "key ada"}, "session": "session of ada"},
    {"scope": {"tenant": "key ada", "user": "ada", "session": "session of ada"}, "api_key": ADA[:-1]},
    {"metadata": {"tenant": "ada"}, "safety_identifier": "ada", "prompt_cache_retention": "24h"},
]


@pytest.mark.parametrize("key", [BOB, LOOKALIKE])
@pytest.mark.parametrize("scope", ["session", "resource", "user", "tenant", "global"])
def test_no_forged_name_finds_anothers(
    address: str, engines: dict[str, Engine], victim: list[dict[str, Any]], key: str, scope: str
) -> None:
    attempts = [
        *({**names, "extra_body": body(f"cache.scope={scope}")} for names in NAMES),
        *({**NAMES[0], "extra_headers": headers, "extra_body": body(f"cache.scope={scope}")} for headers in HEADERS),
        *({**NAMES[0], "extra_body": body(f"cache.scope={scope}", **fields)} for fields in FIELDS),
    ]
    for attempt in attempts:
        assert found(ask(address, victim, key, max_tokens=2, **attempt)) == 0, attempt
        engines["qwen3_vl_moe"].clear_caches(tenant=f"key {TENANTS[key]}")  # or the next would find its own
    own = {**NAMES[0], "extra_body": body("cache.scope=user")}
    assert found(ask(address, victim, ADA, max_tokens=2, **own)) > 0, "Ada finds hers after all of it"


@pytest.mark.parametrize(
    "extra",
    [
        {"compression": {"settings": ["cache.tenant=ada"]}},
        {"compression": {"settings": ["cache.scope=key ada"]}},
        {"compression": {"settings": ["cache.scope=TENANT"]}},
        {"compression": {"cache": {"scope": "tenant", "tenant": "key ada"}}},
        {"compression": {"cache": {"prefix": True, "owner": "key ada"}}},
        {"compression": {"scope": {"tenant": "key ada"}}},
        {"resource": "x" * 257},
        {"user": ["ada"]},
        {"prompt_cache_key": {"tenant": "ada"}},
    ],
)
def test_settings_cannot_name_a_tenant(address: str, victim: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(address, victim, BOB, max_tokens=2, extra_body=extra)


def test_half_a_character_as_a_name_is_refused_or_finds_nothing(address: str) -> None:
    said = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "?"}]}
    text = json.dumps(said)[:-1] + ', "user": "\\ud800", "compression": {"settings": ["cache.prefix=true"]}}'
    status, _, answer = send(
        f"{address}/v1/chat/completions", text.encode(), Authorization=f"Bearer {BOB}", Content_Type="application/json"
    )
    assert status == 400, answer


# ---- keys ----


@pytest.mark.parametrize(
    "key",
    [
        "", " ", "ada", "bob", "key ada", ADA[:-1], ADA + "x", ADA.upper(), ADA + "\0", "\0" + ADA,
        ADA + " x", f"ada:{ADA}",
        ADA.replace("a", "а"), ADA.replace("-", "\u2010"), ADA.replace("0", "０"), ADA + "\u200b", "\ufeff" + ADA,
        digest_of(ADA).hex(), f"{ADA},{BOB}", f'"{ADA}"', "Bearer " + ADA, "null", "undefined", "*", "A" * 100_000,
    ],
    ids=lambda key: ascii(key)[:30],
)  # fmt: skip
def test_nothing_but_a_key_is_a_key(key: str) -> None:
    """As the server gets it: a header's bytes, read as Latin-1."""
    with pytest.raises(ApiError) as refused:
        GATE.tenant("Bearer " + key.encode().decode("latin-1"), "localhost")
    assert refused.value.status == 401
    said = json.dumps(refused.value.body)
    assert not any(secret in said for secret in (*TENANTS, "ada", "bob"))


def raw(address: str, *lines: str) -> bytes:
    """The status line of an answer to header lines of one's own making."""
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as line:
        head = "\r\n".join(("GET /v1/models HTTP/1.1", "Host: localhost", "Connection: close", *lines))
        line.sendall(head.encode("utf-8") + b"\r\n\r\n")
        return line.recv(4096).partition(b"\r\n")[0]


def test_headers_cannot_be_made_to_say_more(address: str) -> None:
    assert b" 200 " in raw(address, f"Authorization: Bearer {BOB}")
    for lines in (
        ["Authorization: Bearer wrong\nAuthorization: Bearer x"],
        ["Authorization: Bearer\r\n " + ADA[:-1]],
        [f"X-Api-Key: {ADA}"],
        [f"Proxy-Authorization: Bearer {ADA}"],
        [f"Cookie: Authorization=Bearer {ADA}"],
        [f"Authorization: Basic {ADA}"],
        [f"Authorization: {ADA}"],
        ["Authorization: Bearer wrong", f"X: Authorization: Bearer {ADA}"],
        [f"Authorization : Bearer {ADA}"],
        ["Authorization: Bearer " + ADA.replace("a", "а")],
    ):
        status = raw(address, *lines)
        assert b" 401 " in status or b" 400 " in status, lines
    status, _, _ = send(f"{address}/v1/models?api_key={ADA}&key={ADA}")
    assert status == 401


def test_every_key_is_compared_in_constant_time_whatever_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("app.api.gate.hmac.compare_digest", spy)
    for key in (ADA, BOB, LOOKALIKE, "", "a", ADA[:-1], "x" * 1000):
        compared.clear()
        try:
            GATE.tenant(f"Bearer {key}", None)
        except ApiError:
            assert key not in TENANTS
        assert compared == [(32, 32)] * len(TENANTS), "digests of one length, all of them, the first hit included"
