"""A real server on a free loopback port, and the clients that the tests of the endpoint speak to it with."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from app.api.gate import Gate
from app.observed import WorkbenchEngine
from app.server import serve
from engines.config import CompressionConfig
from engines.results import Event, RunRequest
from tests.app.fake import FakeEngine

MODEL = "fake"
OPEN = Gate(this_machine_only=True)


class FileEngine(FakeEngine):
    """Remembers what was in the files, which are gone when the run has ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.files: list[list[bytes]] = []
        self.folders: set[Path] = set()

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        self.files.append([path.read_bytes() for path in request.media])
        self.folders |= {path.parent for path in request.media}
        yield from super().run(request, config)


@contextmanager
def serving(engine: WorkbenchEngine, gate: Gate = OPEN, **options: Any) -> Iterator[str]:
    """The address of a server around the engine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = serve(engine, host="127.0.0.1", port=port, block=False, gate=gate, **{"model_name": MODEL, **options})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        page.close()


def client(address: str, key: str = "none", **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, **options)


def ask(address: str, content: Any = "What is shown?", key: str = "none", **options: Any) -> Any:
    """One question through OpenAI's own client."""
    messages = options.pop("messages", [{"role": "user", "content": content}])
    with client(address, key) as api:
        answer = api.chat.completions.create(**{"model": MODEL, "messages": messages, **options})
        return list(answer) if options.get("stream") else answer


def send(address: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A plain request: status, headers and body, whatever the status."""
    request = urllib.request.Request(address, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def dial(address: str, **body: Any) -> socket.socket:
    """A question on a line of its own, to be hung up by closing it."""
    said = json.dumps({"model": MODEL, **body}).encode()
    line = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60)
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(said)}"
    line.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + said)
    return line


def waiting(address: str, key: str = "none") -> int:
    """How many requests wait, as the server says."""
    said = send(f"{address}/metrics", Authorization=f"Bearer {key}")[2].decode()
    return int(float(re.search(r"^vllm:num_requests_waiting\{.*\} (.*)$", said, re.MULTILINE)[1]))  # type: ignore[index]


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Started; what it returned or raised is in the list when it has ended."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for what another thread is about to do; long, because the machine may be busy."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not come to pass"
        time.sleep(0.01)
