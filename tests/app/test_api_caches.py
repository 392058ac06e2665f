"""What the endpoint reuses and whom it tells: cached tokens in `usage`, and nothing of another tenant."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app import tenants
from app.api.gate import Gate, digest_of
from app.panels.caches import ANY_SCOPE
from app.session import Session
from app.workbench import Workbench
from engines.cache.scope import LOCAL
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.media import MediaLimits
from engines.results import RunRequest
from tests.app.fake import FakeEngine, result
from tests.app.serving import ask, send, serving

KEYS = {"ada": "a-key-of-ada-0123", "ada again": "another-of-ada-01", "bob": "a-key-of-bob-0123"}
GATE = Gate(keys={digest_of(key): name.split()[0] for name, key in KEYS.items()})
SETTINGS = ["cache.prefix=true", "cache.encoder=true"]


@pytest.fixture
def address(moe: Engine) -> Iterator[str]:
    with serving(moe, GATE) as found:
        yield found
    moe.clear_caches()


def cached_tokens(address: str, key: str, path: Path, question: str = "What is shown?", **extra: Any) -> int:
    data = base64.b64encode(path.read_bytes()).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    settings = [*SETTINGS, *extra.pop("settings", [])]
    answer = ask(
        address, [picture, {"type": "text", "text": question}], KEYS[key], max_tokens=3,
        extra_body={"compression": {"settings": settings}, **extra},
    )  # fmt: skip
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_another_question_counts_its_cached_tokens(address: str, media_files: dict[str, Path]) -> None:
    assert cached_tokens(address, "ada", media_files["wide"]) == 0
    assert cached_tokens(address, "ada", media_files["wide"], "How many blocks?") >= 40
    assert cached_tokens(address, "ada again", media_files["wide"], "And why?") >= 40, "keys of one tenant"
    assert cached_tokens(address, "ada", media_files["tall"]) < 10


@pytest.mark.parametrize("level", ["session", "resource", "user", "tenant", "global"])
def test_no_key_finds_what_another_tenant_left(
    address: str, moe: Engine, media_files: dict[str, Path], level: str
) -> None:
    names = {"user": "ada", "prompt_cache_key": "s", "resource": "r", "settings": [f"cache.scope={level}"]}
    assert cached_tokens(address, "ada", media_files["wide"], **names) == 0
    assert cached_tokens(address, "ada", media_files["wide"], **names) > 0
    forged = [names, {**names, "user": "key ada"}, {**names, "tenant": "ada", "scope": {"tenant": "key ada"}}]
    # Each of Bob's own would be found by the next: what he leaves is forgotten in between.
    for said in forged:
        assert cached_tokens(address, "bob", media_files["wide"], **said) == 0
        moe.clear_caches(tenant="key bob")


def test_a_session_is_shared_by_whoever_names_it(address: str, media_files: dict[str, Path]) -> None:
    level = {"settings": ["cache.scope=session"], "user": "u"}
    assert cached_tokens(address, "ada", media_files["wide"], prompt_cache_key="1", **level) == 0
    assert cached_tokens(address, "ada", media_files["wide"], prompt_cache_key="2", **level) == 0
    assert cached_tokens(address, "ada", media_files["wide"], prompt_cache_key="1", **level) > 40
    for _ in range(2):
        assert cached_tokens(address, "ada", media_files["wide"], **level) == 0, "without a name nothing is cached"


def test_the_trace_says_nothing_of_all_tenants_together(address: str) -> None:
    answer = ask(address, key=KEYS["bob"], max_tokens=2, extra_body={"return_trace": True})
    report = answer.model_dump()["workbench"]["cache_stats"]
    assert set(report) == {"run"}
    assert set(report["run"]) == {"encoder", "prefix"}
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_the_metrics_count_tokens(address: str, media_files: dict[str, Path]) -> None:
    def counted(name: str) -> float:
        text = send(f"{address}/metrics", Authorization=f"Bearer {KEYS['ada']}")[2].decode()
        (line,) = (line for line in text.splitlines() if line.startswith(f"vllm:prefix_cache_{name}_total{{"))
        return float(line.rpartition(" ")[2])

    before = counted("hits")
    cached_tokens(address, "ada", media_files["wide"])
    found = cached_tokens(address, "ada", media_files["wide"])
    assert counted("hits") - before == found
    assert counted("queries") >= counted("hits")


# ---- visitors of the page ----


def visitor(name: str = "a", host: str = "localhost:7860") -> Any:
    return SimpleNamespace(session_hash=name, username=None, headers={"host": host})


def test_a_visitor_is_a_tenant_unless_alone_at_this_machine() -> None:
    public, mine = Workbench(FakeEngine(), MediaLimits()), Workbench(FakeEngine(), MediaLimits(), alone=True)
    one, other = Session(), Session()
    assert public._scope(one, visitor()).tenant != public._scope(other, visitor()).tenant
    assert public._scope(one, visitor()) == public._scope(one, visitor("another page of the same session"))
    assert mine._scope(one, visitor()).tenant == mine._scope(other, visitor()).tenant == LOCAL
    assert mine._scope(one, visitor()).session != mine._scope(other, visitor()).session
    proxied = visitor(host="demo.example.org")
    assert mine._scope(one, proxied).tenant != mine._scope(other, proxied).tenant


def test_names_that_visitors_and_keys_have_do_not_meet() -> None:
    scopes = [
        tenants.of_visitor("ada", None, alone=False),
        tenants.of_visitor("x", "ada", alone=False),
        tenants.of_caller("ada", None, None, None, this_machine_only=False),
        tenants.of_caller("local", None, None, None, this_machine_only=False),
        tenants.of_visitor("x", "local", alone=False),
        tenants.of_visitor("x", None, alone=True),
    ]
    assert len({scope.tenant for scope in scopes}) == len(scopes)
    logged_in = [tenants.of_visitor(session, "ada", alone=False) for session in ("x", "y")]
    assert logged_in[0].tenant == logged_in[1].tenant


def test_a_button_clears_a_level_of_ones_own_and_of_nobody_elses(moe: Engine, media_files: dict[str, Path]) -> None:
    page = Workbench(moe, MediaLimits())
    with gr.Blocks():
        page.draw()
    me, other = Session(), Session()
    caches = CompressionConfig.full().with_settings(SETTINGS)

    def hits(session: Session, level: str, *settings: str) -> int:
        request = RunRequest(
            "What is shown?", (media_files["wide"],), sampling=SamplingConfig(2), warm_up=False,
            scope=page._scope(session, visitor()),
        )  # fmt: skip
        # The encoder cache is not asked where the prefix cache has the media.
        only = caches.with_settings(["cache.prefix=false"] if level == "encoder" else ["cache.encoder=false"])
        stats = moe.answer(request, only.with_settings(list(settings))).cache_stats.run[level]
        assert not stats.queries or set(stats.scopes) == {only.with_settings(list(settings)).cache.scope}
        return stats.hits

    for level, clear in (("encoder", page.clear_encoder_cache), ("prefix", page.clear_prefix_cache)):
        for session in (me, other):
            assert hits(session, level) == 0
            assert hits(session, level) > 0
        clear(other, ANY_SCOPE, visitor())
        assert hits(me, level) > 0, "another visitor cleared"
        assert hits(other, level) == 0
        assert hits(me, level, "cache.scope=session") == 0
        clear(me, "session", visitor())
        assert hits(me, level) > 0, "another scope was cleared"
        assert hits(me, level, "cache.scope=session") == 0
    totals = moe.cache_totals()
    assert all(totals[level].scopes["session"].queries > 0 for level in totals)


def test_a_session_adds_up_its_runs() -> None:
    session = Session()
    assert not session.cache_uses
    one = result(CompressionConfig.full())
    for _ in range(3):
        session.count_caches(one)
    assert session.cached["encoder"].hits == 3
    assert session.cached["encoder"].bytes == 3 * one.cache_stats.run["encoder"].bytes
    assert len(session.cache_uses) == 3
