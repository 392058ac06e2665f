"""Reads the device from a thread of its own: a reader that fails or hangs is never waited for by a run."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from engines.device.readings import Reader, open_reader, why
from engines.device.report import QUANTITIES, DeviceReading, DeviceReport, GaugeReport

log = logging.getLogger(__name__)

PERIOD_S = 0.5
# Without anybody who asks for so long, the reader is closed and its thread ends.
IDLE_S = 30.0
# A reading that takes longer than this is not waited for again until it is there.
HUNG_S = 2.0
# What drivers call power is a mean over up to a second: over less than this no energy is said.
LEAST_ENERGY_S = 1.0
NONE_YET = "There is no reading yet."


class Monitor:
    """The readings of one device. May be asked from several threads; holds nothing until it is."""

    def __init__(self, open_: Callable[[], Reader], period_s: float = PERIOD_S, hung_s: float = HUNG_S) -> None:
        self._open, self._period_s, self._hung_s = open_, period_s, hung_s
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._recordings: list[Recording] = []
        self._latest = DeviceReading.nothing("", NONE_YET)
        self._asked = self._served = 0
        self._asked_s = self._read_s = float("-inf")
        self._busy_since_s: float | None = None

    @classmethod
    def of(cls, device: torch.device) -> Monitor:
        return cls(lambda: open_reader(device))

    def fresh(self, timeout_s: float) -> DeviceReading:
        """A reading made after this call; the one before it, or none with the reason, if that takes too long."""
        with self._changed:
            ticket = self._ask()
            if not self._hung():
                self._changed.wait_for(lambda: self._served >= ticket or self._hung(), timeout_s)
            if self._hung():
                return DeviceReading.nothing(self._latest.source, "The reader does not answer.")
            return self._latest

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """While open, readings are collected. Neither end waits for the reader for longer than a moment."""
        recording = Recording(self)
        with self._changed:
            self._recordings.append(recording)
            self._ask()
        try:
            yield recording
        finally:
            with self._changed, suppress(ValueError):
                self._recordings.remove(recording)

    def _ask(self) -> int:
        """Called with the lock. A reading that has begun already does not count for this one."""
        self._asked += 1
        self._asked_s = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_on, name="device readings", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return self._asked

    def _hung(self) -> bool:
        return self._busy_since_s is not None and time.monotonic() - self._busy_since_s > self._hung_s

    def _wait_s(self) -> float:
        """Until the next reading is due."""
        if self._served < self._asked:
            return 0.0
        due_s = self._read_s + self._period_s if self._recordings else self._asked_s + IDLE_S
        return max(0.0, due_s - time.monotonic())

    def _read_on(self) -> None:
        reader: Reader | None = None
        while True:
            with self._changed:
                while (wait_s := self._wait_s()) > 0:
                    self._changed.wait(wait_s)
                if self._served == self._asked and not self._recordings:
                    self._thread = None
                    break
                serving, self._busy_since_s = self._asked, time.monotonic()
            try:
                reader = reader or self._open()
                reading = replace(reader.read(), at_s=time.monotonic())
            # Whatever a driver's library raises must reach the page as a reason, and no run.
            except Exception as error:
                log.debug("The device could not be read", exc_info=True)
                reading = DeviceReading.nothing(reader.source if reader else "", why(error))
                _close(reader)
                reader = None
            with self._changed:
                self._served, self._busy_since_s, self._latest = serving, None, reading
                self._read_s = time.monotonic()
                for recording in self._recordings:
                    recording.samples.append(reading)
                self._changed.notify_all()
        _close(reader)


def _close(reader: Reader | None) -> None:
    if reader is None:
        return
    try:
        reader.close()
    except Exception:
        log.debug("The reader of the device could not be closed", exc_info=True)


class Recording:
    """The readings of one run."""

    # Past the end of a run; enough for every reader that works.
    LAST_S = 0.1

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.samples: list[DeviceReading] = []

    def report(self, tokens: int) -> DeviceReport:
        """What the device did until now, for an answer of so many tokens."""
        last = self._monitor.fresh(self.LAST_S)
        samples = list(self.samples)
        seconds = samples[-1].at_s - samples[0].at_s if samples else 0.0
        energy_j, source = _energy(samples, seconds)
        return DeviceReport(
            source=last.source,
            samples=len(samples),
            seconds=seconds,
            gauges=tuple(_gauge(quantity.name, samples, last) for quantity in QUANTITIES),
            energy_j=energy_j,
            energy_source=source,
            energy_per_token_j=energy_j / tokens if energy_j is not None and tokens else None,
        )


def _gauge(name: str, samples: list[DeviceReading], last: DeviceReading) -> GaugeReport:
    # The first look at a load is over the time before the run.
    counted = samples[1:] if name == "utilisation" else samples
    values = [sample.values[name] for sample in counted if name in sample.values]
    if not values:
        short = "The run was too short for a reading."
        return GaugeReport(name, None, None, None, last.missing.get(name) or short)
    return GaugeReport(name, sum(values) / len(values), min(values), max(values))


def _energy(samples: list[DeviceReading], seconds: float) -> tuple[float | None, str]:
    """Joules between the first and the last sample, and how they were measured, or why they were not."""
    powers = [(sample.at_s, sample.values["power_w"]) for sample in samples if "power_w" in sample.values]
    counted = [sample.energy_j for sample in samples if sample.energy_j is not None]
    if not powers and not counted:
        reason = next((sample.missing["power_w"] for sample in samples if "power_w" in sample.missing), "")
        return None, reason or "The run was too short for a reading."
    if seconds < LEAST_ENERGY_S:
        return None, f"The run took less than {LEAST_ENERGY_S:g} s, over which power readings are no measure."
    if len(counted) == len(samples):
        return counted[-1] - counted[0], "the GPU's own energy counter"
    if len(powers) < 2:
        return None, "There were fewer than two readings of the power."
    joules = sum(
        (end_s - start_s) * (first + second) / 2 for (start_s, first), (end_s, second) in itertools.pairwise(powers)
    )
    return joules, f"{len(powers)} power readings, integrated over time"
