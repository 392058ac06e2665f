"""Readings of the device: each reader's units, what is missing and why, and that a bad reader never touches a run."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from engines.device import readings
from engines.device.monitor import Monitor
from engines.device.readings import CpuReader, JetsonReader, NvmlReader, ReaderError
from engines.device.report import QUANTITIES, DeviceReading

NAMES = {quantity.name for quantity in QUANTITIES}


def complete(reading: DeviceReading) -> bool:
    return set(reading.values) | set(reading.missing) == NAMES and not set(reading.values) & set(reading.missing)


def test_a_cpu_is_really_read() -> None:
    reader = CpuReader()
    sum(range(2_000_000))
    reading = reader.read()
    assert complete(reading)
    assert 0 < reading.values["memory_bytes"] < psutil.virtual_memory().total == reading.memory_total_bytes
    assert reading.missing["power_w"] == "psutil reads no power."
    assert all(reading.missing.values())


class NvmlError(Exception):
    """As pynvml's: of a kind of its own."""


def nvml(**changes: Any) -> ModuleType:
    """pynvml as it answers for a GPU: milliwatts, millijoules, percent."""
    library = ModuleType("pynvml")
    asked: list[str] = []
    values = {
        "NVMLError": NvmlError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "asked": asked,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: asked.append("shut down"),
        "nvmlDeviceGetHandleByUUID": lambda uuid: asked.append(uuid) or "handle",
        "nvmlDeviceGetPowerUsage": lambda handle: 250_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1980,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=75),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=4 << 30, total=140 << 30),
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 9_000,
    }
    vars(library).update({**values, **changes})
    return library


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="A GPU", uuid="1234-abcd")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_asked_by_its_own_name_and_in_its_own_units(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    reader = NvmlReader(torch.device("cuda"))
    reading = reader.read()
    reader.close()
    assert reading.values == {
        "power_w": 250.5, "temperature_c": 61, "clock_mhz": 1980, "utilisation": 0.75, "memory_bytes": 4 << 30,
    }  # fmt: skip
    assert (reading.memory_total_bytes, reading.energy_j, reading.source) == (140 << 30, 9.0, "A GPU through NVML")
    assert library.asked == ["GPU-1234-abcd", "shut down"]


@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_does_not_say_is_missing_and_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> None:
        raise NvmlError("Not Supported")

    library = nvml(nvmlDeviceGetPowerUsage=refuse, nvmlDeviceGetTotalEnergyConsumption=refuse)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    reading = NvmlReader(torch.device("cuda")).read()
    assert complete(reading)
    assert reading.missing == {"power_w": "NVML gives no such reading: Not Supported"}
    assert reading.energy_j is None


def test_a_library_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "jtop", None)
    with pytest.raises(ReaderError, match="pip install nvidia-ml-py"):
        NvmlReader(torch.device("cuda"))
    with pytest.raises(ReaderError, match="jetson-stats is not installed"):
        JetsonReader()


class Jtop:
    """jetson-stats as on AGX Orin: milliwatts, kilohertz, percent, KiB."""

    power: dict[str, Any] = {"tot": {"power": 15_300}}  # noqa: RUF012
    temperature: dict[str, Any] = {  # noqa: RUF012
        "cpu": {"temp": 48.0, "online": True}, "tj": {"temp": 51.5, "online": True},
        "cv0": {"temp": -256.0, "online": False},
    }  # fmt: skip
    gpu: dict[str, Any] = {  # noqa: RUF012
        "ga10b": {"type": "integrated", "status": {"load": 40.0}, "freq": {"cur": 1_300_500}}
    }
    memory: dict[str, Any] = {"RAM": {"used": 1 << 20, "tot": 60 << 20}}  # noqa: RUF012
    alive = True

    def start(self) -> None:
        """The service runs."""

    def ok(self, spin: bool) -> bool:
        return self.alive

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def jtop(monkeypatch: pytest.MonkeyPatch) -> type[Jtop]:
    double = type("Jtop", (Jtop,), {})
    library = ModuleType("jtop")
    library.jtop = double  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jtop", library)
    return double


def test_an_orin_is_read_in_its_own_units(jtop: type[Jtop]) -> None:
    reading = JetsonReader().read()
    assert reading.values == {
        "power_w": 15.3, "temperature_c": 51.5, "clock_mhz": 1300.5, "utilisation": 0.4, "memory_bytes": 1 << 30,
    }  # fmt: skip
    assert reading.memory_total_bytes == 60 << 30


def test_a_board_without_a_sensor_says_so(jtop: type[Jtop]) -> None:
    jtop.power = {}
    reading = JetsonReader().read()
    assert complete(reading)
    assert "jetson-stats has no such reading here" in reading.missing["power_w"]


def test_a_lost_service_is_a_reason(jtop: type[Jtop]) -> None:
    reader = JetsonReader()
    jtop.alive = False
    reading = Monitor(lambda: reader).fresh(5.0)
    assert not reading.values
    assert set(reading.missing.values()) == {"The connection with the service of jetson-stats was lost."}


def test_a_jetson_is_told_by_its_device_tree(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "model"
    tree.write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    monkeypatch.setattr(readings, "_DEVICE_TREE", tree)
    assert readings.is_jetson()
    monkeypatch.setattr(readings, "_DEVICE_TREE", tmp_path / "none")
    assert not readings.is_jetson()


class Steady:
    """A reader whose power is the same for ever."""

    source = "a double"

    def __init__(self, power_w: float = 20.0) -> None:
        self.power_w, self.closed = power_w, False

    def read(self) -> DeviceReading:
        return DeviceReading.of(self.source, {"power_w": self.power_w}, {})

    def close(self) -> None:
        self.closed = True


def test_energy_is_power_over_time() -> None:
    monitor = Monitor(Steady, period_s=0.05)
    with monitor.recording() as recording:
        time.sleep(1.2)
        report = recording.report(tokens=4)
    assert report.samples > 3
    assert report.energy_j == pytest.approx(20.0 * report.seconds)
    assert report.energy_per_token_j == pytest.approx(5.0 * report.seconds)
    assert "integrated over time" in report.energy_source


def test_a_short_run_has_no_energy_and_says_why() -> None:
    monitor = Monitor(Steady, period_s=0.05)
    with monitor.recording() as recording:
        time.sleep(0.2)
        report = recording.report(tokens=4)
    assert report.energy_j is None
    assert report.energy_per_token_j is None
    assert "less than 1 s" in report.energy_source


def test_a_reader_that_raises_is_a_reason_and_is_opened_again() -> None:
    opened = []

    class Broken(Steady):
        def read(self) -> DeviceReading:
            raise OSError("driver gone")

    def open_() -> Steady:
        opened.append(Broken() if not opened else Steady())
        return opened[-1]

    monitor = Monitor(open_)
    assert "driver gone" in monitor.fresh(5.0).missing["power_w"]
    assert monitor.fresh(5.0).values == {"power_w": 20.0}
    assert opened[0].closed


def test_a_reader_that_hangs_holds_up_nobody() -> None:
    release = threading.Event()

    class Hanging(Steady):
        def read(self) -> DeviceReading:
            release.wait(30)
            return super().read()

    monitor = Monitor(Hanging, hung_s=0.2)
    try:
        began_s = time.monotonic()
        with monitor.recording() as recording:
            report = recording.report(tokens=1)
        later = monitor.fresh(0.5)
        assert time.monotonic() - began_s < 3
        assert report.samples == 0
        assert all(gauge.mean is None and gauge.reason for gauge in report.gauges)
        assert later.missing["power_w"] == "The reader does not answer."
    finally:
        release.set()
