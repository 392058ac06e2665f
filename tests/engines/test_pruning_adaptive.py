"""The keep ratio that follows the device: triggers, formula, and what a run says and reloads."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from engines.cache.encoder import EncoderCache, Features
from engines.config import CompressionConfig
from engines.device import readings
from engines.device.monitor import Monitor
from engines.device.report import DeviceReading
from engines.engine import Engine
from engines.pruning.adaptive import DeviceReader, KeepRatioController, formula
from engines.reports import Reading
from tests.engines.test_off_is_identical import capture_logits, make_request

ADAPTIVE = "pruning.adaptive=true"
NO_MONITOR = Monitor.of(torch.device("cpu"))
"""Asked by nobody: a CPU's load needs none."""


class FakeReader:
    """Readings one after the other, the last one for ever: (memory, cache misses, utilisation)."""

    def __init__(self, *readings: tuple[float | None, float | None, float | None]) -> None:
        self._readings = list(readings)

    def read(self) -> Reading:
        memory, misses, utilisation = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        return Reading(memory, "memory in use", misses, utilisation, "CPU utilisation")


@pytest.mark.parametrize(
    ("memory", "misses", "expected"),
    [(0.0, 0.0, 1.0), (0.5, 0.5, 0.6), (0.9, 0.5, 0.36), (1.0, 1.0, 0.3), (1.0, 0.0, 0.4), (0.0, 1.0, 0.8)],
)
def test_formula(memory: float, misses: float, expected: float) -> None:
    assert formula(memory, misses) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("memory", "misses", "asked", "triggered", "used"),
    [
        (0.85, 0.41, 1.0, True, 1 - 0.6 * 0.85 - 0.2 * 0.41),
        (0.85, 0.40, 1.0, False, 1.0),
        (0.84, 0.90, 1.0, False, 1.0),
        (0.99, 1.00, 0.2, True, 0.2),
        (0.99, None, 1.0, False, 1.0),
        (None, 1.00, 1.0, False, 1.0),
    ],
)
def test_memory_and_misses_trigger_together(
    memory: float | None, misses: float | None, asked: float, triggered: bool, used: float
) -> None:
    found = KeepRatioController(FakeReader((memory, misses, 0.5))).step(asked)
    assert (found.triggered, found.used) == (triggered, pytest.approx(used))
    assert found.asked == asked
    if memory is None or misses is None:
        assert "not measured" in found.sentence


def steps(utilisation: Iterable[float | None]) -> list[bool]:
    controller = KeepRatioController(FakeReader(*((0.5, 0.0, value) for value in utilisation)))
    return [controller.step(1.0).triggered for _ in utilisation]


def test_three_swings_in_a_row_trigger_until_one_step_is_calm() -> None:
    assert steps([0.1, 0.5, 0.1, 0.5, 0.9, 0.8, 0.2]) == [False, False, False, True, True, False, False]
    assert steps([0.1, 0.5, 0.1, 0.2, 0.6, 0.1]) == [False] * 6
    assert steps([0.1, 0.5, None, 0.1, 0.5, 0.1]) == [False] * 6
    assert steps([0.5, 0.75, 0.5, 0.75]) == [False] * 4  # 25 points are not over 25


def test_steps_from_several_threads_are_all_counted() -> None:
    """Every second reading is a swing from the one before, whichever thread takes it."""
    readings = [(0.5, 0.0, float(step % 2)) for step in range(200)]
    controller = KeepRatioController(FakeReader(*readings))
    threads = [threading.Thread(target=lambda: [controller.step(1.0) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller._swings == 199


def test_live_readings_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EncoderCache(1 << 20)
    times = [(50.0, 50.0), (80.0, 120.0)]  # busy, idle: 30 of 100 seconds busy
    monkeypatch.setattr(readings, "cpu_times", lambda: (times[0][0], sum(times.pop(0))))
    reader = DeviceReader(torch.device("cpu"), cache, NO_MONITOR)
    cache.get("never kept")
    reading = reader.read()
    assert reading.memory == pytest.approx(psutil.virtual_memory().percent / 100, abs=0.1)
    assert (reading.cache_misses, reading.utilisation) == (1.0, pytest.approx(0.3))
    assert reading.memory_source == "memory in use"


def test_cpu_time_is_read() -> None:
    busy, total = readings.cpu_times()
    assert 0 < busy < total


def test_misses_are_counted_over_the_latest_readings() -> None:
    cache = EncoderCache(1 << 20)
    reader = DeviceReader(torch.device("cpu"), cache, NO_MONITOR)
    assert reader.read().cache_misses is None
    cache.put("kept", Features(torch.zeros(2, 2), ()), 0.1)
    for key in ("kept", "gone", "kept", "kept"):
        cache.get(key)
    assert reader.read().cache_misses == 0.25
    for _ in range(8):
        reader.read()
    assert reader.read().cache_misses is None


class FakeGpu:
    """A GPU whose driver says so much of its load."""

    source = "Fake through NVML"

    def __init__(self, load: float | None) -> None:
        self.load = load

    def read(self) -> DeviceReading:
        return DeviceReading.of(self.source, {} if self.load is None else {"utilisation": self.load}, {})

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("load", [None, 0.75])
def test_the_fuller_memory_counts_and_a_missing_load_is_none(
    monkeypatch: pytest.MonkeyPatch, load: float | None
) -> None:
    """As on a GPU whose driver has nothing to say of its load: no utilisation, and no error."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1, 100))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(percent=40.0))
    reading = DeviceReader(torch.device("cuda"), EncoderCache(10), Monitor(lambda: FakeGpu(load))).read()
    assert (reading.memory, reading.memory_source) == (pytest.approx(0.99), "GPU memory in use")
    assert (reading.utilisation, reading.utilisation_source) == (load, "GPU utilisation")


# ---- through the engine ----


def use(engine: Engine, monkeypatch: pytest.MonkeyPatch, *readings: tuple[float, float, float]) -> None:
    monkeypatch.setattr(engine, "_adapted", KeepRatioController(FakeReader(*readings)))


def config_of(*assignments: str) -> CompressionConfig:
    return CompressionConfig.full().with_settings([ADAPTIVE, *assignments])


def test_a_calm_device_is_the_full_model(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(moe, monkeypatch, (0.2, 0.0, 0.1))
    request = make_request(media_files, ["wide", "clip"])
    logits, tokens = capture_logits(moe, request, CompressionConfig.full())
    same, same_tokens = capture_logits(moe, request, config_of())
    assert torch.equal(same, logits)
    assert same_tokens == tokens


def test_a_run_says_its_readings_the_ratio_and_why(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(moe, monkeypatch, (0.9, 0.5, 0.1))
    result = moe.answer(make_request(media_files, ["wide", "clip"], tokens=2), config_of("pruning.keep_ratio=0.8"))
    report = result.prune_report
    assert report.adaptation is not None
    assert (report.asked_keep_ratio, report.adaptation.used) == (0.8, pytest.approx(0.36))
    assert report.achieved_keep_ratio == pytest.approx(0.36, abs=0.05)
    sentence = report.notes[0]
    assert "memory in use 90 %, cache misses 50 %, CPU utilisation 10 %" in sentence
    assert "keep ratio 0.36 instead of 0.8, because memory is at least 85 % in use" in sentence
    assert sentence in result.warnings
    (prune,) = result.trace.named("prune")
    assert prune.attributes["memory_in_use"] == 0.9
    assert prune.attributes["cache_misses"] == 0.5
    assert prune.attributes["adapted_keep_ratio"] == pytest.approx(0.36)
    assert prune.attributes["adaptation_triggered"] is True
    assert json.loads(result.to_json())["prune_report"]["adaptation"]["reading"]["memory"] == 0.9
    assert result.config == config_of("pruning.keep_ratio=0.8")


def test_every_run_is_one_step_however_it_warms_up(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [(0.5, 0.0, value) for value in (0.1, 0.9, 0.1, 0.9)]
    use(moe, monkeypatch, *readings)
    request = make_request(media_files, ["tall"], tokens=1)
    results = [moe.answer(request, config_of()) for _ in readings]
    used = [result.prune_report.adaptation.used for result in results if result.prune_report.adaptation]
    assert used == [1.0, 1.0, 1.0, pytest.approx(0.7)]
    moe.answer(request, CompressionConfig.full())
    assert moe._adapted._swings == 3


def test_dropped_tokens_are_reloaded_without_the_tower(
    moe: Engine, media_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory was short, then it is not: all tokens come back from the encoder cache, and the answer with them."""
    request = make_request(media_files, ["wide", "clip"], tokens=6)
    full = moe.answer(request, CompressionConfig.full())
    use(moe, monkeypatch, (0.95, 0.8, 0.1), (0.3, 0.0, 0.1))
    config = config_of("cache.encoder=true")
    short, after = moe.answer(request, config), moe.answer(request, config)
    assert short.prune_report.tokens_after < short.prune_report.tokens_before
    assert after.prune_report.tokens_after == after.prune_report.tokens_before
    (encode,) = after.trace.named("vision encode")
    assert encode.attributes["encoded_patches"] == 0
    stats = after.cache_stats.run["encoder"]
    assert stats.hits == stats.queries > 0
    assert after.tokens == full.tokens
