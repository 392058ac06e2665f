"""The page opens only what was uploaded to it: a path that a visitor makes up is refused."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.server import serve
from tests.app.fake import FakeEngine

SECRET = "not for visitors"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = serve(FakeEngine(), host="127.0.0.1", port=port, block=False)
    yield f"http://127.0.0.1:{port}"
    page.close()


def call(address: str, function: int, data: list[Any]) -> str:
    """Everything that the server streams back for one event."""
    body = json.dumps({"fn_index": function, "session_hash": "stranger", "data": data}).encode()
    join = urllib.request.Request(
        f"{address}/gradio_api/queue/join", body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(join, timeout=20) as response:
        response.read()
    said = ""
    with urllib.request.urlopen(f"{address}/gradio_api/queue/data?session_hash=stranger", timeout=20) as stream:
        for line in stream:
            said += line.decode()
            if "process_completed" in said or "close_stream" in said:
                return said
    return said


@pytest.mark.parametrize("kind", ["absolute", "relative", "link"])
def test_a_made_up_path_is_refused(address: str, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text(SECRET)
    path = {"absolute": str(outside), "relative": "../../../../etc/hostname", "link": "http://127.0.0.1:9/x.png"}[kind]
    with urllib.request.urlopen(f"{address}/config", timeout=20) as response:
        config = json.load(response)
    files = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "files")
    takers = [d for d in config["dependencies"] if files in d["inputs"]]
    assert takers
    for dependency in takers:
        data: list[Any] = [None] * len(dependency["inputs"])
        data[dependency["inputs"].index(files)] = [{"path": path, "meta": {"_type": "gradio.FileData"}}]
        said = call(address, dependency["id"], data)
        assert SECRET not in said
        assert '"success":false' in said.replace(" ", "")


def test_files_of_the_server_are_not_served(address: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text(SECRET)
    for path in (outside, Path(__file__), Path("/etc/hostname")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/gradio_api/file={path}", timeout=20)
        assert refused.value.code in (403, 404)
