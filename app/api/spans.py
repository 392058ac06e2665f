"""OpenTelemetry: one span a run with a child for each stage, sent where OTEL_EXPORTER_OTLP_ENDPOINT says, or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.

Names and attributes are the GenAI semantic conventions' where they have one, `workbench.` otherwise. Neither
questions nor answers are sent. The provider is our own and not the process's, so that no library adds spans to it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.observed import Observation
from engines.results import RunResult
from engines.trace import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
SERVICE = "qwen-vl-moe-workbench"
MISSING = (
    "An OTLP endpoint is set, but OpenTelemetry is not installed, so nothing is traced: "
    "pip install 'qwen-vl-moe-workbench[telemetry]'."
)
# Spans of these come once a token; a trace has one of each pair instead.
PER_TOKEN = ("decode", "detokenise")


def make_spans(model_name: str) -> Spans | None:
    """A watcher of the engine where the environment asks for one; a line on stderr if it cannot be had."""
    if not os.environ.get(ENDPOINT) and not os.environ.get(TRACES_ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        print(MISSING, file=sys.stderr, flush=True)
        return None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come over what is given here.
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: SERVICE}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(model_name, provider)


class Spans:
    """A watcher that turns each run into spans when it has ended."""

    def __init__(self, model_name: str, provider: TracerProvider) -> None:
        self._model_name = model_name
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def attach(self, headers: Mapping[str, str]) -> None:
        """In a request's own context: its spans continue the caller's trace, if its headers name one."""
        from opentelemetry import context, propagate

        context.attach(propagate.extract(headers))

    def flush(self) -> None:
        """Send what is waiting to be sent."""
        self._provider.force_flush()

    def began(self, run: Observation) -> None:
        pass

    def ended(self, run: Observation) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        # The model runs in this very process, for which the conventions say INTERNAL.
        span = self._tracer.start_span(
            f"chat {self._model_name}",
            kind=SpanKind.INTERNAL,
            start_time=run.began_ns,
            attributes=self._asked(run),
        )
        if run.error is not None:
            span.set_attribute("error.type", type(run.error).__name__)
            span.set_status(Status(StatusCode.ERROR))
        if run.result is not None:
            span.set_attributes(_measured(run.result))
            inside = set_span_in_context(span)
            # The engine's clock starts after its preparations, and stands still while its reader is busy.
            zero_ns = run.began_ns + _ns(run.result.prepare_s)
            for stage in stages(run.result):
                child = self._tracer.start_span(
                    stage.name,
                    context=inside,
                    start_time=zero_ns + _ns(stage.span.start_s),
                    attributes={f"workbench.{name}": _plain(value) for name, value in stage.span.attributes.items()},
                )
                child.end(zero_ns + _ns(stage.span.end_s))
        span.end(time.time_ns())

    def _asked(self, run: Observation) -> dict[str, Any]:
        sampling = run.request.sampling
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": SERVICE,
            "gen_ai.output.type": "text",
            "gen_ai.request.model": self._model_name,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.seed": sampling.seed,
            "workbench.media": len(run.request.media),
            "workbench.keep_ratio_asked": run.config.pruning.keep_ratio,
            "workbench.config": run.config.fingerprint(),
        }


@dataclass(frozen=True)
class Stage:
    name: str
    span: Span


def stages(result: RunResult) -> Iterator[Stage]:
    """The stages of a run; those that come once a token are drawn together into one decode."""
    steps = [span for span in result.trace.spans if span.name in PER_TOKEN]
    drawn = [span for span in result.trace.spans if span.name not in PER_TOKEN]
    if steps:
        summed = {f"{name}_s": result.trace.stage_s(name) for name in PER_TOKEN}
        drawn.append(Span("decode", steps[0].start_s, steps[-1].end_s, None, {"tokens": len(result.tokens), **summed}))
    for span in sorted(drawn, key=lambda span: span.start_s):
        yield Stage(span.name, span)


def _measured(result: RunResult) -> dict[str, Any]:
    prefix = result.cache_stats.run.get("prefix")
    found = {
        "gen_ai.response.model": result.model,
        "gen_ai.response.finish_reasons": [result.finish_reason],
        "gen_ai.usage.input_tokens": result.prompt_tokens,
        "gen_ai.usage.output_tokens": len(result.tokens),
        "gen_ai.usage.cache_read.input_tokens": prefix.tokens if prefix is not None else None,
        "gen_ai.response.time_to_first_chunk": result.ttft_s,
        "workbench.device": result.device,
        "workbench.engine_s": result.trace.total_s,
        "workbench.prepare_s": result.prepare_s,
        "workbench.visual_tokens": result.visual_tokens,
        "workbench.keep_ratio_achieved": result.prune_report.achieved_keep_ratio,
        "workbench.peak_memory_bytes": result.memory.peak_bytes,
        "workbench.kv_cache_bytes": result.memory.kv_cache_bytes,
    }
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) else str(value)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
