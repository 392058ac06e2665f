"""The endpoint through OpenAI's own client: answers, pieces of answers, media, history, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engines.config import CompressionConfig, PrecisionConfig, SamplingConfig
from engines.media import MediaError
from engines.results import EngineError, Turn
from tests.app.serving import MODEL, FileEngine, ask, client, send, serving

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
MP4 = b"\0\0\0\x18ftypmp42" + bytes(64)


@pytest.fixture(scope="module")
def engine() -> FileEngine:
    return FileEngine()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server makes its temporary folders."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def address(engine: FileEngine, scratch: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, serving(engine, max_upload_mb=1) as found:
        patch.setattr(tempfile, "tempdir", str(scratch))
        yield found


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(link: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": link, "detail": "auto"}}


def video(link: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": link}}


def text(words: str = "What is shown?") -> dict[str, Any]:
    return {"type": "text", "text": words}


# ---- what is answered ----


def test_models(address: str) -> None:
    with client(address) as api:
        assert [model.id for model in api.models.list()] == [MODEL]
        assert api.models.retrieve(MODEL).object == "model"
        with pytest.raises(openai.NotFoundError):
            api.models.retrieve("gpt-4o")


def test_a_whole_answer(address: str, engine: FileEngine) -> None:
    answer = ask(address, temperature=0.7, top_p=0.9, seed=3, max_completion_tokens=7, user="someone", n=1)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "A red circle"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 20
    assert answer.usage.total_tokens == 20 + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is None, "unknown is absent, not 0"
    request, config = engine.seen[-1]
    assert request.question == "What is shown?"
    assert request.sampling == SamplingConfig(7, 0.7, 0.9, 3)
    assert request.warm_up is False
    assert config == CompressionConfig.full()


def test_a_stream(address: str) -> None:
    chunks = ask(address, stream=True)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "A red circle"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_usage(address: str) -> None:
    *chunks, last = ask(address, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.prompt_tokens == 20
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_a_stream_is_server_sent_events(address: str) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi?"}], "stream": True}).encode()
    status, headers, said = send(f"{address}/v1/chat/completions", body, Content_Type="application/json")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = said.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    assert json.loads(events[0][6:])["object"] == "chat.completion.chunk"


def test_media_reach_the_engine_and_are_deleted(address: str, engine: FileEngine) -> None:
    ask(address, [text(), image(url(PNG)), video(url(MP4, "application/octet-stream"))])
    assert engine.files[-1] == [PNG, MP4]
    assert [path.name for path in engine.seen[-1][0].media] == ["image 1", "video 2"]
    assert engine.folders
    assert not any(folder.exists() for folder in engine.folders)


def test_history(address: str, engine: FileEngine) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [image(url(PNG)), text("What is it?")]},
        {"role": "assistant", "content": "A dot."},
        {"role": "user", "content": "What colour?"},
    ]
    ask(address, messages=messages)
    request, _ = engine.seen[-1]
    assert request.question == "What colour?"
    assert request.history == (Turn("What is it?", "A dot."),)
    assert len(request.media) == 1


@pytest.mark.parametrize(
    "compression",
    [
        {"settings": ["pruning.keep_ratio=0.5", "precision.all=int8"]},
        {"pruning": {"keep_ratio": 0.5}, "precision": dataclasses.asdict(PrecisionConfig.all("int8"))},
    ],
    ids=["settings", "nested"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_compression_and_its_trace(address: str, engine: FileEngine, compression: dict, stream: bool) -> None:
    extra = {"compression": compression, "return_trace": True}
    answer = ask(address, stream=stream, extra_body=extra)
    config = CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5", "precision.all=int8"])
    assert engine.seen[-1][1] == config
    report = (answer[-1] if stream else answer).model_dump()["workbench"]
    assert report["prune_report"]["asked_keep_ratio"] == 0.5
    assert report["trace"]["spans"][0]["name"] == "decode media"
    assert report["memory"]["kv_cache_bytes"] == 64
    if stream:
        assert not any("workbench" in chunk.model_dump() for chunk in answer[:-1])


# ---- what is refused ----

TURNS = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"content": [image("http://127.0.0.1:9/x.png"), text()]}, "no other is opened here"),
    ({"content": [image("https://example.org/x.png"), text()]}, "no other is opened here"),
    ({"content": [video("file:///etc/hostname"), text()]}, "no other is opened here"),
    ({"content": [image("/etc/hostname"), text()]}, "no other is opened here"),
    ({"content": [image("data:image/png,abc"), text()]}, "of the form data:TYPE;base64,DATA"),
    ({"content": [image("data:image/png;base64,???"), text()]}, "image 1 is not valid base64"),
    ({"content": [image(url(b"only words")), text()]}, "image 1 is a text file"),
    ({"content": [video(url(b"<svg/>")), text()]}, "video 1 is an SVG drawing"),
    ({"content": [image(url(PNG))] * 9 + [text()]}, "at most 8 are allowed"),
    ({"content": [image(url(PNG))]}, "has no text"),
    ({"content": [{"type": "input_audio", "input_audio": {}}]}, "expected tags"),
    ({"content": [{"type": "image_url", "image_url": "x"}]}, "messages.0.content.0"),
    ({"content": "  "}, "has no text"),
    ({"content": None}, "messages.0.content"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "Be kind."}, TURNS[0]]}, "no system message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "'tool' is not supported"),
    ({"messages": [TURNS[0], TURNS[0]]}, "must alternate"),
    ({"messages": TURNS}, "must be the user's"),
    ({"messages": [*TURNS, {"role": "user", "content": [image(url(PNG)), text()]}]}, "first user message only"),
    ({"temperature": 3}, "temperature is 3"),
    ({"top_p": 0}, "top_p is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": 10**6}, "max_tokens is 1000000"),
    ({"n": 2}, "n is not supported"),
    ({"stop": ["."]}, "stop is not supported"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
    ({"logprobs": True}, "logprobs is not supported"),
    ({"frequency_penalty": 1.0}, "frequency_penalty is not supported"),
    ({"stream_options": {"include_usage": True}}, "streamed answers only"),
    ({"extra_body": {"compression": {"settings": ["pruning.keep_ratio=2"]}}}, "at most 1"),
    ({"extra_body": {"compression": {"settings": ["keep_ratio"]}}}, "group.name=value"),
    ({"extra_body": {"compression": {"settings": "pruning.keep_ratio=0.5"}}}, "compression must be"),
    ({"extra_body": {"compression": {"pruning": {"ratio": 1}}}}, "Unknown setting pruning.ratio"),
    ({"extra_body": {"compression": {"speed": {}}}}, "Unknown group"),
    ({"extra_body": {"compression": {"pruning": {"method": "nonsense"}}}}, "nonsense"),
    ({"extra_body": {"compression": "all"}}, "compression"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_input_gets_a_sentence(address: str, engine: FileEngine, options: dict, sentence: str) -> None:
    runs = len(engine.seen)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(address, **options)
    error = refused.value.body
    assert isinstance(error, dict)
    assert sentence in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(engine.seen) == runs, "the engine was not troubled"


def test_an_unknown_model_is_not_found(address: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        ask(address, model="gpt-4o")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"),
    [
        (b"{", "application/json", 400, "Invalid JSON"),
        (b"[]", "application/json", 400, "Input should be an object"),
        (b"{}", "application/json", 400, "model: Field required"),
        (b'{"model": "fake", "messages": [{"role": "user", "content": "?"}], "temperature": NaN}', "application/json",
         400, "temperature"),
        (b"{}", "text/plain", 415, "must be JSON"),
        (b"\xff\xfe", "application/json", 400, "Invalid JSON"),
    ],
)  # fmt: skip
def test_what_no_client_would_send(address: str, body: bytes, kind: str, status: int, sentence: str) -> None:
    found, _, said = send(f"{address}/v1/chat/completions", body, Content_Type=kind)
    assert found == status
    assert sentence in json.loads(said)["error"]["message"]


def test_other_addresses_are_refused_in_the_same_form(address: str) -> None:
    for path, body, status in (("embeddings", b"{}", 404), ("chat/completions", None, 405), ("", None, 404)):
        found, _, said = send(f"{address}/v1/{path}", body)
        assert found == status
        assert json.loads(said)["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large_is_refused(address: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        ask(address, [image(url(PNG + bytes(1_100_000))), text()])
    assert refused.value.status_code == 413
    assert "larger than 1 MiB together" in refused.value.message
    status, _, said = send(f"{address}/v1/chat/completions", b" " * 3_000_000, Content_Type="application/json")
    assert status == 413
    assert "larger than 2 MiB" in json.loads(said)["error"]["message"]


def test_a_body_of_unstated_length_is_bounded_too(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(6):
                line.sendall(chunk)
        except OSError:
            pass  # refused while we were still sending
        assert line.recv(64).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (EngineError("The prompt is too long."), 400, "The prompt is too long."),
        (MediaError("image 1 is broken."), 400, "image 1 is broken."),
        (RuntimeError("secret path /srv"), 500, "Something went wrong"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_of_the_engine(error: Exception, status: int, sentence: str, stream: bool) -> None:
    engine = FileEngine(fail_full=error)
    with serving(engine) as address, pytest.raises(openai.APIStatusError) as failed:
        ask(address, [image(url(PNG)), text()], stream=stream)
    assert failed.value.status_code == status, "in a stream too: nothing was sent before"
    assert sentence in failed.value.message
    assert "secret" not in str(failed.value.body)
    assert engine.open_runs == 0
    assert not any(folder.exists() for folder in engine.folders)


class BreaksLate(FileEngine):
    """Fails after its first word."""

    def run(self, request: Any, config: Any) -> Any:
        for event in super().run(request, config):
            yield event
            if getattr(event, "index", None) == 0:
                raise RuntimeError("secret path /srv")


def test_a_failure_within_a_stream_is_said_in_it() -> None:
    with serving(BreaksLate()) as address, pytest.raises(openai.APIError, match="Something went wrong"):
        ask(address, stream=True)


def test_the_page_is_still_there(address: str) -> None:
    status, headers, said = send(f"{address}/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert b"gradio" in said
    status, _, said = send(f"{address}/config")
    assert status == 200
    assert json.loads(said)["mode"] == "blocks"


def test_nothing_is_left_behind(address: str, engine: FileEngine, scratch: Path) -> None:
    """Of all the requests above, answered and refused."""
    ask(address, [image(url(PNG)), text()])
    assert {folder.parent for folder in engine.folders} == {scratch}
    assert not list(scratch.glob("workbench-api-*"))
