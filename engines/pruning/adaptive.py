"""A keep ratio that follows the device: read before every run, lowered while memory, cache or load say so."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import Protocol

import psutil
import torch

from engines.cache.encoder import EncoderCache
from engines.config import CompressionConfig
from engines.device.monitor import Monitor
from engines.device.readings import CpuLoad
from engines.reports import Adaptation, Reading

LOWEST = 0.3
MEMORY_TRIGGER = 0.85
MISS_TRIGGER = 0.40
SWING, SWINGS_IN_A_ROW = 0.25, 3
# Misses are counted over so many of the latest readings, so that one picture does not decide.
_WINDOW = 8
# How long a run may wait for its reading.
_READ_S = 0.2


class Reader(Protocol):
    """Where the readings come from; None for what this device or these settings cannot tell."""

    def read(self) -> Reading: ...


def formula(memory: float, misses: float) -> float:
    """The keep ratio for a share of memory in use and a share of cache queries that missed, each 0-1."""
    return max(LOWEST, 1.0 - 0.6 * memory - 0.2 * misses)


class KeepRatioController:
    """Decides the keep ratio of each run from its reader. One per engine; may be used from several threads.

    A run is a step. It is triggered if memory in use is at least 85 % and more than 40 % of the cache queries missed,
    or if utilisation changed by more than 25 points from step to step three times in a row. Only a triggered run's
    ratio is lowered, to the formula's where that is below the one asked for; the next step is judged anew. A reading
    that there is not triggers nothing and takes nothing off the ratio.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._utilisation: float | None = None
        self._swings = 0

    def step(self, asked: float) -> Adaptation:
        """Read once and decide for a run that asks for this ratio."""
        with self._lock:
            reading = self._reader.read()
            self._count_swing(reading.utilisation)
            why = self._why(reading)
        ratio = formula(reading.memory or 0.0, reading.cache_misses or 0.0)
        used = min(asked, ratio) if why else asked
        return Adaptation(reading, asked, ratio, used, bool(why), _sentence(reading, asked, ratio, used, why))

    def _count_swing(self, utilisation: float | None) -> None:
        before, self._utilisation = self._utilisation, utilisation
        swung = before is not None and utilisation is not None and abs(utilisation - before) > SWING
        self._swings = self._swings + 1 if swung else 0

    def _why(self, reading: Reading) -> str:
        reasons = []
        memory, misses = reading.memory, reading.cache_misses
        if memory is not None and misses is not None and memory >= MEMORY_TRIGGER and misses > MISS_TRIGGER:
            reasons.append("memory is at least 85 % in use and over 40 % of the cache queries missed")
        if self._swings >= SWINGS_IN_A_ROW:
            reasons.append(f"utilisation swung by over 25 points {self._swings} times in a row")
        return " and ".join(reasons)


def settled(config: CompressionConfig, adaptation: Adaptation | None) -> CompressionConfig:
    """The settings with the keep ratio that the device was found to need."""
    if adaptation is None:
        return config
    return replace(config, pruning=replace(config.pruning, keep_ratio=adaptation.used, adaptive=False))


def _sentence(reading: Reading, asked: float, ratio: float, used: float, why: str) -> str:
    readings = ", ".join(
        f"{name} {'not measured' if value is None else f'{value:.0%}'.replace('%', ' %')}"
        for name, value in (
            (reading.memory_source or "memory", reading.memory),
            ("cache misses", reading.cache_misses),
            (reading.utilisation_source or "utilisation", reading.utilisation),
        )
    )
    if not why:
        outcome = f"nothing calls for a lower keep ratio than the {asked:g} asked for"
    elif used < asked:
        outcome = f"keep ratio {used:.2f} instead of {asked:g}, because {why}"
    else:
        outcome = f"the {asked:g} asked for is no higher than the formula's {ratio:.2f}, though {why}"
    return f"Adapting to this device ({readings}): {outcome}."


class DeviceReader:
    """Live readings: memory of the machine and of the GPU, whichever is fuller; load; misses of the encoder cache."""

    def __init__(self, device: torch.device, cache: EncoderCache, monitor: Monitor) -> None:
        self._device, self._monitor = device, monitor
        self._cache = cache
        self._counters: deque[tuple[int, int]] = deque([_counters(cache)], maxlen=_WINDOW + 1)
        self._load = CpuLoad()

    def read(self) -> Reading:
        memory, source = psutil.virtual_memory().percent / 100, "memory in use"
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            if (gpu := 1.0 - free / total) > memory:
                memory, source = gpu, "GPU memory in use"
        utilisation, what = self._read_utilisation()
        return Reading(memory, source, self._read_misses(), utilisation, what)

    def _read_misses(self) -> float | None:
        """Over the latest readings; None where the cache was not asked."""
        self._counters.append(_counters(self._cache))
        (queries, hits), (now_queries, now_hits) = self._counters[0], self._counters[-1]
        asked = now_queries - queries
        return 1.0 - (now_hits - hits) / asked if asked else None

    def _read_utilisation(self) -> tuple[float | None, str]:
        if self._device.type == "cuda":
            return self._monitor.fresh(_READ_S).values.get("utilisation"), "GPU utilisation"
        return self._load.read(), "CPU utilisation since the last run"


def _counters(cache: EncoderCache) -> tuple[int, int]:
    stats = cache.stats()
    return stats.queries, stats.hits
