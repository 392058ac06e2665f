"""What Prometheus reads: page and endpoint counted alike, under names that the bundled board asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.metrics import Metrics
from app.observed import ObservedEngine
from app.session import Session
from app.workbench import Workbench
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.results import EngineError, Finished, RunRequest
from tests.app.fake import FakeEngine
from tests.app.serving import MODEL, ask, send, serving

BOARD = Path(__file__).resolve().parents[2] / "assets" / "grafana" / "workbench.json"
COMPRESSED = CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5", "experts.method=modality"])


class MeasuringEngine(FakeEngine):
    """On a device whose peak memory can be read."""

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Any]:
        for event in super().run(request, config):
            if isinstance(event, Finished):
                memory = replace(event.result.memory, peak_bytes=1 << 20)
                event = Finished(replace(event.result, memory=memory))
            yield event


def watched(engine: FakeEngine, waiting: int = 0) -> tuple[ObservedEngine, Metrics]:
    metrics = Metrics(MODEL, engine, lambda: waiting)
    return ObservedEngine(engine, [metrics]), metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Values by name, with the labels beside the model's name where there are any."""
    text, _ = metrics.text("")
    return values(text.decode())


def values(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            others = "".join(f"{{{value}}}" for name, value in sample.labels.items() if name != "model_name")
            found[sample.name + others] = sample.value
    return found


def test_a_run_is_counted() -> None:
    engine, metrics = watched(MeasuringEngine(), waiting=3)
    assert samples(metrics)["vllm:num_requests_waiting"] == 3
    running = engine.run(RunRequest("?"), COMPRESSED)
    next(running)
    assert samples(metrics)["vllm:num_requests_running"] == 1
    for _ in running:
        pass
    found = samples(metrics)
    assert found["vllm:num_requests_running"] == 0
    assert found["vllm:time_to_first_token_seconds_sum"] == 0.5
    assert found["vllm:e2e_request_latency_seconds_count"] == 1
    for name in ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"):
        assert found[f"{name}_count"] == 3, "four tokens, three gaps"
        assert found[f"{name}_sum"] == pytest.approx(0.3)
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert found["vllm:request_prefill_time_seconds_sum"] == 0.5
    assert found["vllm:request_decode_time_seconds_sum"] == pytest.approx(0.3)
    assert found["vllm:request_inference_time_seconds_sum"] == pytest.approx(0.8)
    assert found["vllm:request_prompt_tokens_sum"] == 20
    assert found["vllm:request_generation_tokens_sum"] == 4
    assert found["vllm:request_max_num_generation_tokens_sum"] == RunRequest("?").sampling.max_new_tokens
    assert found["workbench_cache_queries_total{prefix}{user}"] == 80
    assert found["workbench_cache_hits_total{encoder}{tenant}"] == 1
    assert found["vllm:prompt_tokens_total"] == 20
    assert found["vllm:generation_tokens_total"] == 4
    assert found["vllm:request_success_total{stop}"] == 1
    assert found["vllm:mm_cache_queries_total"] == 4
    assert found["vllm:mm_cache_hits_total"] == 1
    assert found["vllm:prefix_cache_queries_total"] == 80
    assert found["vllm:prefix_cache_hits_total"] == 60
    assert found["workbench_keep_ratio_achieved_sum"] == 0.5
    assert found["workbench_expert_pairs_skipped_share_sum"] == pytest.approx(9 / 24)
    assert found["workbench_stage_seconds_total{prefill}"] == pytest.approx(0.1)
    assert found["workbench_stage_seconds_total{decode}"] == pytest.approx(0.06)
    assert found["workbench_peak_memory_bytes"] == 1 << 20
    assert found["workbench_weight_bytes"] == 4096
    assert found["workbench_cache_saved_seconds_total{encoder}"] == 0.5
    assert found["workbench_cache_saved_seconds_total{prefix}"] == 0.75
    assert found["workbench_cache_evictions_total{encoder}"] == 2
    assert found["workbench_cache_bytes{encoder}"] == 2048


def test_the_full_model_says_nothing_of_compression() -> None:
    engine, metrics = watched(MeasuringEngine())
    list(engine.run(RunRequest("?"), CompressionConfig.full()))
    assert samples(metrics)["workbench_keep_ratio_achieved_count"] == 0
    assert samples(metrics)["workbench_expert_pairs_skipped_share_count"] == 0


def test_failures_and_readers_that_go_away_are_counted_apart() -> None:
    engine, metrics = watched(FakeEngine(fail=EngineError("no")))
    with pytest.raises(EngineError):
        list(engine.run(RunRequest("?"), COMPRESSED))
    assert samples(metrics)["workbench_request_errors_total"] == 1
    running = engine.run(RunRequest("?"), CompressionConfig.full())
    next(running)
    running.close()  # type: ignore[attr-defined]
    found = samples(metrics)
    assert found["vllm:request_success_total{abort}"] == 1
    assert found["workbench_request_errors_total"] == 1
    assert found["vllm:num_requests_running"] == 0
    assert found["vllm:e2e_request_latency_seconds_count"] == 0


def test_who_counts_cannot_break_a_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def began(self, run: Any) -> None:
            raise RuntimeError("no disk")

        ended = began

    events = list(ObservedEngine(FakeEngine(), [Broken()]).run(RunRequest("?"), COMPRESSED))
    assert isinstance(events[-1], Finished)
    assert "could not be counted" in caplog.text


def test_the_whole_engine_is_passed_on() -> None:
    inner = FakeEngine()
    engine, _ = watched(inner)
    engine.clear_caches()
    assert inner.cleared == [(None, None, None)]
    assert engine.capabilities() == inner.capabilities()
    assert engine.cache_totals() == inner.cache_totals()
    with pytest.raises(ValueError, match="nonsense"):
        engine.check(CompressionConfig.full().with_settings(["pruning.method=nonsense"]))


def test_visitors_in_the_queue_of_the_page_are_counted() -> None:
    from tests.app.test_runs import ticket_for

    page = Workbench(FakeEngine(), MediaLimits())
    tickets = [ticket_for(page.tickets, Session(), name) for name in ("a", "b", "c")]
    assert page.waiting() == 3
    with page.turnstile.turn("page"):
        assert page.waiting() == 2, "one has its turn"
        with page.turnstile.take("tenant x"):
            assert page.waiting() == 3
    tickets[0].cancel.set()
    page.tickets.drop("b", tickets[1].number)
    assert page.waiting() == 1


def test_the_server_exports_what_it_answered() -> None:
    with serving(FakeEngine()) as address:
        ask(address)
        ask(address, stream=True, extra_body={"compression": {"settings": ["pruning.keep_ratio=0.5"]}})
        status, headers, text = send(f"{address}/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=")
        found = values(text.decode())
        assert found["vllm:request_success_total{stop}"] == 2
        assert found["vllm:request_queue_time_seconds_count"] == 2
        assert found["workbench_keep_ratio_achieved_count"] == 1
        kind = send(f"{address}/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]["content-type"]
        assert kind.startswith("application/openmetrics-text")


# What the boards that vLLM ships ask for, of what a server of one engine has (docs.vllm.ai, "Production metrics").
VLLM_BOARDS = """
    num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
    mm_cache_queries_total mm_cache_hits_total prompt_tokens_total generation_tokens_total request_success_total
    time_to_first_token_seconds_bucket time_to_first_token_seconds_sum time_to_first_token_seconds_count
    inter_token_latency_seconds_bucket inter_token_latency_seconds_sum inter_token_latency_seconds_count
    time_per_output_token_seconds_bucket e2e_request_latency_seconds_bucket e2e_request_latency_seconds_sum
    e2e_request_latency_seconds_count request_queue_time_seconds_sum request_prefill_time_seconds_sum
    request_decode_time_seconds_sum request_inference_time_seconds_sum request_prompt_tokens_bucket
    request_generation_tokens_bucket request_max_num_generation_tokens_bucket request_params_max_tokens_bucket
"""


def test_boards_that_people_have_find_their_names() -> None:
    engine, metrics = watched(MeasuringEngine())
    list(engine.run(RunRequest("?"), COMPRESSED))
    exported = {name.partition("{")[0] for name in samples(metrics)}
    assert {f"vllm:{name}" for name in VLLM_BOARDS.split()} <= exported


# ---- the board ----


def queries() -> list[str]:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def test_the_board_asks_for_what_is_exported() -> None:
    engine, metrics = watched(MeasuringEngine())
    list(engine.run(RunRequest("?"), COMPRESSED))
    with pytest.raises(EngineError):
        list(watched_error(metrics).run(RunRequest("?"), COMPRESSED))
    exported = {name.partition("{")[0] for name in samples(metrics)}
    asked = {name for query in queries() for name in re.findall(r"(?:vllm:|workbench_)\w+", query)}
    assert len(asked) >= 15
    assert asked <= exported


def watched_error(metrics: Metrics) -> ObservedEngine:
    return ObservedEngine(FakeEngine(fail=EngineError("no")), [metrics])


def test_the_board_is_one_that_grafana_can_load() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    assert board["id"] is None
    assert board["uid"]
    assert board["schemaVersion"] >= 39
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "model_name"}
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        mine = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not mine & cells, f"{panel['title']} lies over another panel"
        cells |= mine
        assert panel["description"]
        for target in panel["targets"]:
            assert 'model_name=~"$model_name"' in target["expr"]
            assert target["datasource"]["uid"] == "${datasource}"
