"""How long each stage would take if the device did nothing but compute, or nothing but move bytes: an estimate.

The roofline model (Williams, Waterman, Patterson, 2009): no stage is quicker than its FLOPs at the best rate of
products, nor than its bytes at the best bandwidth. Real stages are slower than both.
"""

from __future__ import annotations

from engines.device.rates import DTYPES
from engines.device.report import Estimate, Rates, Stage
from engines.device.work import Load, stages
from engines.structure import Structure


def estimates(structure: Structure, load: Load, rates: Rates) -> tuple[Estimate, ...]:
    """Each stage at each number format whose rate was measured, as if all weights were in it."""
    return tuple(
        estimate(stage, dtype, rates)
        for dtype in rates.flops_per_s
        for stage in stages(structure, load, DTYPES[dtype].itemsize)
    )


def estimate(stage: Stage, dtype: str, rates: Rates) -> Estimate:
    """Computing and reading memory go on side by side; weights on their way to the GPU hold both up."""
    times = {"compute": stage.flops / rates.flops_per_s[dtype], "memory": stage.bytes / rates.bytes_per_s}
    seconds = max(times.values())
    if stage.transfer_bytes and rates.transfer_bytes_per_s:
        times["transfer"] = stage.transfer_bytes / rates.transfer_bytes_per_s
        seconds += times["transfer"]
    return Estimate(stage, dtype, seconds, max(times, key=lambda name: times[name]))
