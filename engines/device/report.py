"""What is said of the device: readings, a run's share of them, and the places of the weights. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """Something that a reader may be able to read. Shares are 0-1."""

    name: str
    label: str


QUANTITIES = (
    Quantity("power_w", "Power"),
    Quantity("temperature_c", "Temperature"),
    Quantity("clock_mhz", "Clock"),
    Quantity("utilisation", "Utilisation"),
    Quantity("memory_bytes", "Memory in use"),
)


@dataclass(frozen=True)
class DeviceReading:
    """One look at the device. Every quantity is either in `values` or, with the reason, in `missing`."""

    source: str
    """What was read, and through what: `CPU through psutil`."""
    values: dict[str, float]
    missing: dict[str, str]
    memory_total_bytes: int | None = None
    energy_j: float | None = None
    """Counted by the device since some moment in the past; None where it keeps no count."""
    at_s: float = 0.0
    """On the monotonic clock."""

    @classmethod
    def of(
        cls, source: str, values: dict[str, float], missing: dict[str, str], **more: float | int | None
    ) -> DeviceReading:
        """What is in neither gets a reason that says so."""
        rest = {quantity.name: "The reader says nothing of it." for quantity in QUANTITIES}
        reasons = {name: why for name, why in {**rest, **missing}.items() if name not in values}
        return cls(source, values, reasons, **more)  # type: ignore[arg-type]

    @classmethod
    def nothing(cls, source: str, why: str) -> DeviceReading:
        return cls(source, {}, {quantity.name: why for quantity in QUANTITIES})


@dataclass(frozen=True)
class GaugeReport:
    """One quantity over a run; None with the reason where it was not read."""

    name: str
    mean: float | None
    lowest: float | None
    highest: float | None
    reason: str = ""


@dataclass(frozen=True)
class DeviceReport:
    """The device during a run, warming up left out. Readings are the whole device's, other programs included."""

    source: str
    samples: int
    seconds: float
    """Between the first and the last sample."""
    gauges: tuple[GaugeReport, ...]
    energy_j: float | None = None
    """Energy between those samples, what an idle device takes included."""
    energy_source: str = ""
    """How it was measured, or why it was not."""
    energy_per_token_j: float | None = None
    """The whole run's energy, prefill included, over the tokens of the answer."""


@dataclass(frozen=True)
class PlacedPart:
    """Bytes of one part of the model in one kind of memory."""

    part: str
    place: str
    bytes: int


@dataclass(frozen=True)
class Placement:
    """Where the weights lie."""

    parts: tuple[PlacedPart, ...]
    split: bool
    """Whether they were split over the GPU's and the machine's memory, because they did not fit the GPU."""
    note: str = ""

    @property
    def by_place(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.place] = found.get(part.place, 0) + part.bytes
        return found


@dataclass(frozen=True)
class Stage:
    """What one stage of a run computes and moves. `bytes` are read and written once each, as if nothing were cached."""

    name: str
    flops: float
    weight_bytes: float
    activation_bytes: float
    kv_bytes: float = 0.0
    transfer_bytes: float = 0.0
    """Weights that lie in the machine's memory and go to the GPU for every pass."""

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.activation_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Rates:
    """What this device reached just now."""

    bytes_per_s: float
    flops_per_s: dict[str, float]
    """By number format."""
    transfer_bytes_per_s: float | None = None
    """From the machine's memory to the GPU; None where there is no such way."""


@dataclass(frozen=True)
class Estimate:
    """One stage at one number format: an estimate, not a measurement."""

    stage: Stage
    dtype: str
    seconds: float
    bound: str
    """`compute`, `memory` or `transfer`: what takes longest."""


@dataclass(frozen=True)
class DimensionRule:
    """Dimensions that a matrix unit wants as multiples. `inner` is what is summed over, `outer` the outputs."""

    dtype: str
    unit: str
    inner: int
    outer: int


@dataclass(frozen=True)
class Misfit:
    """Equal products that miss a rule."""

    dtype: str
    path: str
    count: int
    outer: int
    inner: int
    why: str
