"""What Prometheus reads: every run of the page and of the endpoint, under the names of vLLM's boards.

Times are the engine's own, as the page shows them: neither the wait for a turn nor converting weights or warming up
is in them. A comparison on the page counts as two requests, one of the full and one of the compressed model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.observed import Observation, WorkbenchEngine
from engines.config import CompressionConfig
from engines.results import RunResult

TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
SHARES = tuple(step / 20 for step in range(1, 21))
LABEL = "model_name"


class Metrics:
    """One registry for one served model; `began` and `ended` make it a watcher of the engine."""

    def __init__(self, model_name: str, engine: WorkbenchEngine, waiting: Callable[[], int]) -> None:
        """`waiting` counts the requests of the page and of the endpoint that have not had their turn."""
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._running = self._gauge("vllm:num_requests_running", "Runs on the engine now.")
        self._gauge("vllm:num_requests_waiting", "Requests that wait for the engine.").set_function(waiting)
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From decoding the media to the first token.", REQUEST_S
        )
        # One figure under two names: vLLM's boards before and after it renamed it.
        self._token_gaps = [
            self._histogram(name, "Between one token of an answer and the next.", TOKEN_S)
            for name in ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds")
        ]
        self._latency = self._histogram(
            "vllm:e2e_request_latency_seconds", "From decoding the media to the last token.", REQUEST_S
        )
        self._queue_time = self._histogram(
            "vllm:request_queue_time_seconds", "In the line for the engine; requests of the endpoint only.", REQUEST_S
        )
        self._prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds",
            "From decoding the media to the first token, of whole answers.",
            REQUEST_S,
        )
        self._decode_time = self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last, of whole answers.", REQUEST_S
        )
        self._inference_time = self._histogram(
            "vllm:request_inference_time_seconds", "The last two together.", REQUEST_S
        )
        self._prompt_length = self._histogram(
            "vllm:request_prompt_tokens", "Tokens of a prompt, before pruning.", LENGTHS
        )
        self._answer_length = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", LENGTHS)
        # Two names of one figure where a request has one answer, as all have here.
        self._answer_limit = [
            self._histogram(name, "Tokens that the answer was allowed.", LENGTHS)
            for name in ("vllm:request_max_num_generation_tokens", "vllm:request_params_max_tokens")
        ]
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts, before pruning.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self._success = Counter(
            "vllm:request_success",
            "Runs that ended, by reason: stop, length, or abort where they were cancelled.",
            [LABEL, "finished_reason"],
            registry=self.registry,
        )
        self._errors = self._counter("workbench_request_errors", "Runs that ended with an error.")
        self._keep_ratio = self._histogram(
            "workbench_keep_ratio_achieved", "Share of the visual tokens kept, of runs with pruning on.", SHARES
        )
        self._pairs_skipped = self._histogram(
            "workbench_expert_pairs_skipped_share",
            "Share of the (token, expert) pairs not computed, of compressed runs.",
            (0.0, *SHARES),
        )
        self._stages = Counter(
            "workbench_stage_seconds", "Time in each stage of the runs.", [LABEL, "stage"], registry=self.registry
        )
        self._peak = self._gauge("workbench_peak_memory_bytes", "Peak of the last run, where it can be measured.")
        self._weights = self._gauge("workbench_weight_bytes", "Weights in use in the last run.")
        self.registry.register(_Caches(model_name, engine))

    def began(self, run: Observation) -> None:
        self._running.inc()

    def ended(self, run: Observation) -> None:
        self._running.dec()
        for histogram in self._answer_limit:
            histogram.observe(run.request.sampling.max_new_tokens)
        if run.error is not None:
            self._errors.inc()
        if run.result is not None:
            self._count(run.result, run.token_times_s)
        elif run.error is None:
            self._success.labels(self._model_name, "abort").inc()

    def waited(self, seconds: float) -> None:
        """A request of the endpoint has its turn after so long."""
        self._queue_time.observe(seconds)

    def text(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format that the reader accepts."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _count(self, result: RunResult, token_times_s: list[float]) -> None:
        reason = "abort" if result.finish_reason == "cancelled" else result.finish_reason
        self._success.labels(self._model_name, reason).inc()
        self._prompt_tokens.inc(result.prompt_tokens)
        self._generation_tokens.inc(len(result.tokens))
        if result.ttft_s is not None:
            self._first_token.observe(result.ttft_s)
        for before, after in pairwise(token_times_s):
            for histogram in self._token_gaps:
                histogram.observe(after - before)
        if reason != "abort":
            self._latency.observe(result.trace.total_s)
            self._prompt_length.observe(result.prompt_tokens)
            self._answer_length.observe(len(result.tokens))
        if reason != "abort" and result.ttft_s is not None and token_times_s:
            decode_s = token_times_s[-1] - token_times_s[0]
            self._prefill_time.observe(result.ttft_s)
            self._decode_time.observe(decode_s)
            self._inference_time.observe(result.ttft_s + decode_s)
        for span in result.trace.spans:
            if span.parent is None:
                self._stages.labels(self._model_name, span.name).inc(span.duration_s)
        kept = result.prune_report.achieved_keep_ratio
        if result.config.pruning.active and kept is not None:
            self._keep_ratio.observe(kept)
        experts = result.expert_report
        skipped = experts.skipped_share if experts is not None else None
        if skipped is not None and result.config != CompressionConfig.full():
            self._pairs_skipped.observe(skipped)
        if result.memory.peak_bytes is not None:
            self._peak.set(result.memory.peak_bytes)
        self._weights.set(result.memory.weight_bytes)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, [LABEL], registry=self.registry).labels(self._model_name)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, [LABEL], registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, [LABEL], buckets=buckets, registry=self.registry).labels(self._model_name)


class _Caches(Collector):
    """The engine counts these itself; they are read when Prometheus asks."""

    def __init__(self, model_name: str, engine: WorkbenchEngine) -> None:
        self._model_name, self._engine = model_name, engine

    def collect(self) -> Iterator[Metric]:
        levels = self._engine.cache_totals()
        for level, called, unit in (
            ("encoder", "vllm:mm_cache", "images and frame groups"),
            ("prefix", "vllm:prefix_cache", "tokens of prompts before pruning"),
        ):
            stats = levels.get(level)
            for name in ("queries", "hits") if stats is not None else ():
                about = f"{level.capitalize()} cache {name}, in {unit}."
                family = CounterMetricFamily(f"{called}_{name}", about, labels=[LABEL])
                family.add_metric([self._model_name], getattr(stats, name))
                yield family
        prefix = levels.get("prefix")
        if prefix is not None and prefix.budget_bytes:
            usage = GaugeMetricFamily(
                "vllm:kv_cache_usage_perc", "Share of the prefix cache's byte budget in use, 1 is all.", labels=[LABEL]
            )
            usage.add_metric([self._model_name], prefix.bytes / prefix.budget_bytes)
            yield usage
        asked = CounterMetricFamily(
            "workbench_cache_queries", "Asked of a cache, by whom entries were shared with.",
            labels=[LABEL, "level", "scope"],
        )  # fmt: skip
        found = CounterMetricFamily(
            "workbench_cache_hits", "Found in a cache, by whom entries were shared with.",
            labels=[LABEL, "level", "scope"],
        )  # fmt: skip
        held = GaugeMetricFamily("workbench_cache_bytes", "Held by a cache.", labels=[LABEL, "level"])
        evictions = CounterMetricFamily(
            "workbench_cache_evictions", "Entries that a cache gave up for others.", labels=[LABEL, "level"]
        )
        saved = CounterMetricFamily(
            "workbench_cache_saved_seconds", "Measured cost of what was found in a cache.", labels=[LABEL, "level"]
        )
        for level, stats in levels.items():
            held.add_metric([self._model_name, level], stats.bytes)
            evictions.add_metric([self._model_name, level], stats.evictions)
            saved.add_metric([self._model_name, level], stats.saved_s)
            for scope, part in stats.scopes.items():
                asked.add_metric([self._model_name, level, scope], part.queries)
                found.add_metric([self._model_name, level, scope], part.hits)
        yield from (asked, found, held, evictions, saved)
