"""Power, temperature, clock, utilisation and memory of the device, behind one small interface.

jetson-stats reads a Jetson, NVML any other NVIDIA GPU, psutil a CPU. What can't be read is left out, with the reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from engines.device.report import DeviceReading

_DEVICE_TREE = Path("/proc/device-tree/model")


class ReaderError(RuntimeError):
    """A reader that is not there, in one sentence."""


class Reader(Protocol):
    """Opened, read and closed in one thread. `read` may raise anything and take as long as it likes."""

    source: str

    def read(self) -> DeviceReading: ...

    def close(self) -> None: ...


def open_reader(device: torch.device) -> Reader:
    """The reader that suits the device. Raises ReaderError, or whatever its library raises."""
    if is_jetson():
        return JetsonReader()
    if device.type == "cuda":
        return NvmlReader(device)
    return CpuReader()


def is_jetson() -> bool:
    try:
        return "jetson" in _DEVICE_TREE.read_text(errors="replace").lower()
    except OSError:
        return False


class CpuLoad:
    """The share of all cores' time that was busy since the last call, 0-1."""

    def __init__(self) -> None:
        self._times = cpu_times()

    def read(self) -> float | None:
        before, self._times = self._times, cpu_times()
        busy, passed = (now - then for now, then in zip(self._times, before, strict=True))
        return min(1.0, max(0.0, busy / passed)) if passed > 0 else None


def cpu_times() -> tuple[float, float]:
    """Seconds of all cores together since the machine started: busy, and in all."""
    times = psutil.cpu_times()
    # Guest time is part of user time already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


class CpuReader:
    """The CPU and the machine's memory, through psutil."""

    source = "CPU through psutil"
    # Sensors of a CPU, by the drivers' names: Intel, AMD, ARM boards.
    SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")

    def __init__(self) -> None:
        self._load = CpuLoad()

    def read(self) -> DeviceReading:
        memory = psutil.virtual_memory()
        values = {"memory_bytes": float(memory.total - memory.available)}
        missing = {"power_w": "psutil reads no power."}
        load = self._load.read()
        if load is None:
            missing["utilisation"] = "No CPU time has passed since the last reading."
        else:
            values["utilisation"] = load
        temperature = self._temperature()
        if temperature is None:
            missing["temperature_c"] = "This system shows no temperature sensor of the CPU."
        else:
            values["temperature_c"] = temperature
        clock = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
        if clock is None or not clock.current:
            missing["clock_mhz"] = "This system does not show the CPU's clock."
        else:
            values["clock_mhz"] = float(clock.current)
        return DeviceReading.of(self.source, values, missing, memory_total_bytes=int(memory.total))

    def _temperature(self) -> float | None:
        """The hottest of the CPU's sensors."""
        found = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        return max((sensor.current for name in self.SENSORS for sensor in found.get(name, ())), default=None)

    def close(self) -> None:
        """Nothing is held."""


class NvmlReader:
    """A desktop or server GPU, through NVML."""

    def __init__(self, device: torch.device) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            raise ReaderError("NVIDIA's reader is not installed: pip install nvidia-ml-py.") from None
        self._nvml.nvmlInit()
        properties = torch.cuda.get_device_properties(device)
        # By its own name: NVML counts GPUs that this process may not see.
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(_nvml_uuid(str(properties.uuid)))
        self.source = f"{properties.name} through NVML"

    def read(self) -> DeviceReading:
        nvml, handle = self._nvml, self._handle
        values: dict[str, float] = {}
        missing: dict[str, str] = {}

        def take(name: str, look: Callable[[], float]) -> None:
            try:
                values[name] = float(look())
            except nvml.NVMLError as error:
                missing[name] = f"NVML gives no such reading: {error}"

        take("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        take("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        take("clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        take("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        take("memory_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        # Beside the quantities: not every GPU counts its energy.
        take("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)
        take("total", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        energy, total = values.pop("energy", None), values.pop("total", None)
        missing = {name: why for name, why in missing.items() if name not in ("energy", "total")}
        return DeviceReading.of(
            self.source, values, missing, memory_total_bytes=None if total is None else int(total), energy_j=energy
        )

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def _nvml_uuid(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class JetsonReader:
    """A Jetson, through jetson-stats and its service: power of the whole board, GPU, and the memory that they share."""

    source = "Jetson through jetson-stats"

    def __init__(self) -> None:
        try:
            library = importlib.import_module("jtop")
        except ModuleNotFoundError:
            raise ReaderError(
                "jetson-stats is not installed: sudo pip3 install --break-system-packages -U jetson-stats, "
                "and the same version here with pip install '.[jetson]'."
            ) from None
        self._jtop = library.jtop()
        # Raises with its own sentence when the service does not run or is of another version.
        self._jtop.start()

    def read(self) -> DeviceReading:
        if not self._jtop.ok(spin=True):
            raise ReaderError("The connection with the service of jetson-stats was lost.")
        jtop = self._jtop
        values: dict[str, float] = {}
        missing: dict[str, str] = {}

        def take(name: str, look: Callable[[], float | None]) -> None:
            try:
                found = look()
            except (KeyError, TypeError, AttributeError) as error:
                missing[name] = f"jetson-stats has no such reading here ({type(error).__name__}: {error})."
                return
            if found is None:
                missing[name] = "jetson-stats has no such reading here."
            else:
                values[name] = float(found)

        take("power_w", lambda: jtop.power["tot"]["power"] / 1000)
        take("temperature_c", lambda: _hottest(jtop.temperature))
        take("clock_mhz", lambda: _integrated(jtop.gpu)["freq"]["cur"] / 1000)
        take("utilisation", lambda: _integrated(jtop.gpu)["status"]["load"] / 100)
        take("memory_bytes", lambda: jtop.memory["RAM"]["used"] * 1024)
        take("total", lambda: jtop.memory["RAM"]["tot"] * 1024)
        total = values.pop("total", None)
        missing.pop("total", None)
        return DeviceReading.of(self.source, values, missing, memory_total_bytes=None if total is None else int(total))

    def close(self) -> None:
        self._jtop.close()


def _hottest(sensors: dict[str, dict[str, Any]]) -> float | None:
    """The junction where it is shown, as on Orin, and otherwise the hottest sensor that is on."""
    on = {name.lower(): sensor["temp"] for name, sensor in sensors.items() if sensor.get("online", True)}
    return on.get("tj", max(on.values(), default=None))


def _integrated(gpus: dict[str, dict[str, Any]]) -> dict[str, Any]:
    for gpu in gpus.values():
        if gpu.get("type", "integrated") == "integrated":
            return gpu
    raise KeyError("integrated GPU")


def why(error: BaseException) -> str:
    """A reader's failure in a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, ReaderError) else f"The reader failed ({type(error).__name__}: {text})."
