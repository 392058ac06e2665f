"""Many at once: page and endpoint on one engine, tenants, a full line, and clients that hang up."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from app.api.gate import Gate, digest_of
from app.server import QUEUE_SIZE
from engines.results import TokenReady
from tests.app.fake import FakeEngine
from tests.app.serving import FileEngine, ask, dial, in_thread, send, serving, until, waiting
from tests.app.test_api_chat import PNG, image, text, url

ALICE, BOB = "alice-key-0123456789", "bob-key-01234567890"
TWO = Gate(keys={digest_of(ALICE): "alice", digest_of(BOB): "bob"})


class Patient(threading.Event):
    """Waits longer than the fake would, because the machine may be busy."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(120)


class HeldEngine(FileEngine):
    """Stops before one of its words until it is let go, and counts how many runs are in it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pause = Patient()
        self.most_at_once = 0
        self.stop_after: int | None = None

    def run(self, request: Any, config: Any) -> Iterator[Any]:
        for event in super().run(request, config):
            self.most_at_once = max(self.most_at_once, self.open_runs)
            if isinstance(event, TokenReady) and event.index == self.stop_after:
                self.pause.clear()
            yield event


@pytest.fixture
def engine() -> Iterator[HeldEngine]:
    held = HeldEngine()
    yield held
    held.pause.set()


def press_run(address: str) -> str:
    """Ask on the page, by the requests that the page itself would send; returns all that is streamed back."""
    config = json.loads(send(f"{address}/config")[2])
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
    values = {c["id"]: c["props"].get("value") for c in config["components"]}
    begin = next(d for d in config["dependencies"] if [ids["run"], "click"] in d["targets"])
    run = next(d for d in config["dependencies"] if any(kind == "change" for _, kind in d["targets"])
               and ids["answers"] in d["outputs"] and ids["queue-status"] in d["outputs"])  # fmt: skip
    said = ""
    number = None
    for dependency in (begin, run):
        data = [values.get(part) for part in dependency["inputs"]]
        if dependency is begin:
            data[dependency["inputs"].index(ids["question"])] = "What is on the page?"
            data[dependency["inputs"].index(ids["files"])] = None
        else:
            data[1] = number
        body = json.dumps({"fn_index": dependency["id"], "session_hash": "visitor", "data": data}).encode()
        send(f"{address}/gradio_api/queue/join", body, Content_Type="application/json")
        said = send(f"{address}/gradio_api/queue/data?session_hash=visitor")[2].decode()
        done = [json.loads(line[5:]) for line in said.splitlines() if '"process_completed"' in line]
        number = done[-1]["output"]["data"][0]
    return said


def test_page_and_endpoint_share_the_engine(engine: HeldEngine) -> None:
    with serving(engine) as address:
        runs = [in_thread(lambda: ask(address)), in_thread(lambda: press_run(address)), in_thread(lambda: ask(address))]
        until(lambda: engine.open_runs == 1)
        until(lambda: waiting(address) == 2)
        engine.pause.set()
        for thread, outcome in runs:
            thread.join(60)
            assert outcome
            assert not isinstance(outcome[0], Exception), outcome[0]
        assert engine.most_at_once == 1
        assert len(engine.seen) == 4, "two of the page, one for each of its sides"
        questions = {request.question for request, _ in engine.seen}
        assert questions == {"What is shown?", "What is on the page?"}
        assert "circle" in runs[1][1][0], "the page shows its answer"


def test_a_full_line_asks_to_come_back(engine: HeldEngine) -> None:
    with serving(engine) as address:
        asking = [in_thread(lambda: ask(address))]
        until(lambda: engine.open_runs == 1)
        assert send(f"{address}/ready")[0] == 200
        asking += [in_thread(lambda: ask(address)) for _ in range(QUEUE_SIZE)]
        until(lambda: send(f"{address}/ready")[0] == 503)
        with pytest.raises(openai.RateLimitError) as refused:
            ask(address)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert refused.value.code == "queue_full"
        assert send(f"{address}/health")[0] == 200
        engine.pause.set()
        for thread, outcome in asking:
            thread.join(60)
            assert outcome[0].choices[0].message.content == "A red circle"
        assert send(f"{address}/ready")[0] == 200
        assert engine.most_at_once == 1


def test_one_tenant_cannot_fill_the_line(engine: HeldEngine) -> None:
    with serving(engine, TWO) as address:
        asking = [in_thread(lambda: ask(address, key=ALICE, content="alice"))]
        until(lambda: engine.open_runs == 1)
        asking += [in_thread(lambda: ask(address, key=ALICE, content="alice")) for _ in range(QUEUE_SIZE // 2)]
        until(lambda: waiting(address, BOB) == QUEUE_SIZE // 2)
        with pytest.raises(openai.RateLimitError):
            ask(address, key=ALICE)
        asking.append(in_thread(lambda: ask(address, key=BOB, content="bob")))
        until(lambda: waiting(address, BOB) == QUEUE_SIZE // 2 + 1)
        engine.pause.set()
        for thread, _ in asking:
            thread.join(60)
        asked = [request.question for request, _ in engine.seen]
        assert asked.index("bob") <= 2, "a tenant waits for one request of another, not for all of them"
        assert len(asked) == 10


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_frees_the_engine(engine: HeldEngine, stream: bool) -> None:
    with serving(engine) as address:
        content = [image(url(PNG)), text()]
        with dial(address, messages=[{"role": "user", "content": content}], stream=stream):
            until(lambda: engine.open_runs == 1)
            assert not engine.seen[0][0].cancel.is_set()
        until(engine.seen[0][0].cancel.is_set)
        engine.pause.set()
        until(lambda: engine.open_runs == 0)
        until(lambda: not any(folder.exists() for folder in engine.folders))
        assert ask(address).choices[0].message.content == "A red circle"


def test_hanging_up_in_the_middle_of_a_stream(engine: HeldEngine) -> None:
    engine.stop_after = 0
    engine.pause.set()
    with serving(engine) as address:
        with dial(address, messages=[{"role": "user", "content": "?"}], stream=True) as line:
            said = b""
            while b'"content":"A"' not in said:
                said += line.recv(4096)
            assert said.startswith(b"HTTP/1.1 200")
        until(engine.seen[0][0].cancel.is_set)
        engine.pause.set()
        until(lambda: engine.open_runs == 0)


def test_hanging_up_in_the_line_leaves_it(engine: HeldEngine) -> None:
    with serving(engine) as address:
        first, outcome = in_thread(lambda: ask(address))
        until(lambda: engine.open_runs == 1)
        with dial(address, messages=[{"role": "user", "content": "?"}]):
            until(lambda: waiting(address) == 1)
        until(lambda: waiting(address) == 0)
        engine.pause.set()
        first.join(60)
        assert outcome[0].choices[0].finish_reason == "stop"
        assert len(engine.seen) == 1


def test_hanging_up_before_the_request_is_whole() -> None:
    engine = FakeEngine()
    with serving(engine) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            line.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
            )
            until(lambda: waiting(address) == 1)
        until(lambda: waiting(address) == 0)
        assert engine.seen == []


def test_nobody_reads_what_belongs_to_another(engine: HeldEngine) -> None:
    """Two tenants at once, each with a picture of its own."""
    other = PNG + b"of bob"
    with serving(engine, TWO) as address:
        both = [
            in_thread(lambda: ask(address, [image(url(PNG)), text("alice?")], key=ALICE)),
            in_thread(lambda: ask(address, [image(url(other)), text("bob?")], key=BOB)),
        ]
        until(lambda: engine.open_runs == 1)
        engine.pause.set()
        for thread, outcome in both:
            thread.join(60)
            assert outcome[0].choices[0].finish_reason == "stop"
    seen = {request.question: files for (request, _), files in zip(engine.seen, engine.files, strict=True)}
    assert seen == {"alice?": [PNG], "bob?": [other]}
    assert len(engine.folders) == 2
    assert not any(folder.exists() for folder in engine.folders)


def test_a_failed_request_keeps_no_place(engine: HeldEngine) -> None:
    engine.pause.set()
    with serving(engine) as address:
        for _ in range(QUEUE_SIZE + 2):
            with pytest.raises(openai.BadRequestError):
                ask(address, "")
        assert send(f"{address}/ready")[0] == 200
        assert not engine.seen
