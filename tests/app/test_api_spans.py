"""Traces: what a collector on this machine receives, decoded."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from app.api import spans
from app.api.spans import ENDPOINT, TRACES_ENDPOINT, Spans, make_spans
from app.observed import ObservedEngine
from engines.config import CompressionConfig, SamplingConfig
from engines.results import EngineError, RunRequest
from tests.app.fake import LAST, ONCE, FakeEngine
from tests.app.serving import MODEL, client, serving

proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
CONFIG = CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5"])


class Collector(http.server.HTTPServer):
    """Keeps what is sent to /v1/traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.received: list[Any] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        scopes = [scope for export in self.received for sent in export.resource_spans for scope in sent.scope_spans]
        return [span for scope in scopes for span in scope.spans]


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        export = proto.ExportTraceServiceRequest()
        export.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append(export)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(ENDPOINT, server.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def made(collector: Collector) -> Spans:
    found = make_spans(MODEL)
    assert found is not None
    return found


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        found[item.key] = [inner.string_value for inner in value.values] if kind == "array_value" else value
    return found


def test_a_run_becomes_a_span_with_its_stages(collector: Collector, made: Spans) -> None:
    request = RunRequest("A secret question?", sampling=SamplingConfig(9, 0.5, 0.9, 7))
    list(ObservedEngine(FakeEngine(), [made]).run(request, CONFIG))
    made.flush()
    root = next(span for span in collector.spans if not span.parent_span_id)
    children = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert root.name == f"chat {MODEL}"
    assert root.kind == 1, "INTERNAL: the model runs in this process"
    said = attributes(root)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "Fake",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.response.time_to_first_chunk": 0.5,
        "workbench.keep_ratio_asked": 0.5,
        "workbench.keep_ratio_achieved": 0.5,
    }
    assert {name: said.get(name) for name in expected} == expected
    assert "workbench.peak_memory_bytes" not in said, "what was not measured is not said"
    assert [span.name for span in children] == [*ONCE, "decode", LAST]
    assert all(span.trace_id == root.trace_id for span in children)
    lasted_s = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in children]
    assert lasted_s == pytest.approx([0.1] * len(ONCE) + [0.12, 0.01], abs=1e-5)
    starts = [span.start_time_unix_nano for span in children]
    assert starts == sorted(starts)
    assert (starts[0] - root.start_time_unix_nano) / 1e9 == pytest.approx(0.2, abs=1e-5), "after its preparations"
    decode = next(span for span in children if span.name == "decode")
    assert attributes(decode)["workbench.decode_s"] == pytest.approx(0.06)
    everything = str(collector.received)
    assert "secret" not in everything
    assert "circle" not in everything, "neither questions nor answers leave"
    resource = {
        item.key: item.value.string_value for item in collector.received[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "qwen-vl-moe-workbench"


def test_an_endpoint_for_traces_alone_is_enough(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT)
    monkeypatch.setenv(TRACES_ENDPOINT, f"{collector.address}/v1/traces")
    made = make_spans(MODEL)
    assert made is not None
    list(ObservedEngine(FakeEngine(), [made]).run(RunRequest("?"), CONFIG))
    made.flush()
    assert any(span.name == f"chat {MODEL}" for span in collector.spans)


def test_a_failure_is_marked(collector: Collector, made: Spans) -> None:
    with pytest.raises(EngineError):
        list(ObservedEngine(FakeEngine(fail=EngineError("secret")), [made]).run(RunRequest("?"), CONFIG))
    made.flush()
    (root,) = collector.spans
    assert root.status.code == 2
    assert attributes(root)["error.type"] == "EngineError"
    assert "secret" not in str(collector.received)


def test_a_request_continues_its_callers_trace(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Spans | None] = []
    monkeypatch.setattr("app.server.make_spans", lambda name: made.append(make_spans(name)) or made[0])
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with serving(FakeEngine()) as address, client(address) as api:
        for headers in ({"traceparent": f"00-{trace}-{parent}-01"}, {}):
            api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "?"}], extra_headers=headers)
    assert made[0] is not None
    made[0].flush()
    first, second = (span for span in collector.spans if span.name.startswith("chat"))
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (trace, parent)
    assert second.trace_id.hex() != trace
    assert not second.parent_span_id


def test_nothing_is_traced_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.delenv(TRACES_ENDPOINT, raising=False)
    assert make_spans(MODEL) is None


def test_a_missing_package_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert make_spans(MODEL) is None
    assert capsys.readouterr().err.splitlines() == [spans.MISSING]


def test_a_collector_that_is_not_there_troubles_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with serving(FakeEngine()) as address, client(address) as api:
        assert api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "?"}]).choices
        with pytest.raises(openai.BadRequestError):
            api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": ""}])
