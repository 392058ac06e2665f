"""The last part of `check`: how fast this device could be, and which layers do not suit its matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from app.words import count, megabytes, seconds

if TYPE_CHECKING:
    from engines.device.report import Estimate, Misfit, Placement, Rates
    from engines.engine import Engine

COLUMNS = ("format", "stage", "GFLOP", "moved", "FLOP/byte", "bound by", "at least")
WIDTHS = (8, 18, 12, 12, 11, 10, 10)
MOST_MISFITS = 20


def lines(engine: Engine, visual_tokens: int, text_tokens: int) -> Iterator[str]:
    """Measures for about two seconds, then says it line by line."""
    from engines.device.matrix_units import misfits, rules_of
    from engines.device.rates import measure_rates
    from engines.device.roofline import estimates
    from engines.device.work import Load

    structure, device = engine.checkpoint.structure, engine.checkpoint.device
    yield ""
    yield from placement_lines(engine.placement())
    formats = [one.name for one in engine.capabilities().precisions if one.name in ("fp32", "bf16") and one.available]
    native = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[str(engine.checkpoint.dtype)[6:]]
    rates = measure_rates(device, tuple(dict.fromkeys([*formats, native])))
    load = Load(visual_tokens, text_tokens)
    yield ""
    yield (
        f"An ESTIMATE by the roofline model, for one image of {count(visual_tokens)} visual tokens and "
        f"{count(text_tokens)} text tokens. No stage is quicker than this; real ones are slower."
    )
    yield f"Measured just now: {rates_words(rates)}. Loaded in {native}."
    yield row(COLUMNS)
    yield from (row(estimate_cells(one)) for one in estimates(structure, load, rates))
    yield ""
    rules = rules_of(device)
    if not rules:
        yield "Matrix units: none are known for this device, so no layer is checked."
        return
    wants = "; ".join(f"{rule.dtype} {rule.inner} inputs and {rule.outer} outputs" for rule in rules)
    yield f"Matrix units ({rules[0].unit}) want multiples of: {wants}."
    yield from misfit_lines(misfits(structure, rules))


def placement_lines(found: Placement) -> Iterator[str]:
    places = ", ".join(f"{megabytes(size)} in {place}" for place, size in found.by_place.items())
    yield f"The weights: {places}."
    if found.split:
        yield found.note
        yield from (f"{part.part}: {megabytes(part.bytes)} in {part.place}" for part in found.parts)


def rates_words(rates: Rates) -> str:
    said = [f"{rates.bytes_per_s / 1e9:.1f} GB/s of memory"]
    said += [f"{rate / 1e9:,.0f} GFLOP/s of {name} products" for name, rate in rates.flops_per_s.items()]
    if rates.transfer_bytes_per_s is not None:
        said.append(f"{rates.transfer_bytes_per_s / 1e9:.1f} GB/s to the GPU")
    return ", ".join(said)


def estimate_cells(one: Estimate) -> tuple[str, ...]:
    stage = one.stage
    return (
        one.dtype,
        stage.name,
        f"{stage.flops / 1e9:,.3g}" if stage.flops < 1e11 else f"{stage.flops / 1e9:,.0f}",
        megabytes(int(stage.bytes)),
        f"{stage.intensity:,.1f}",
        one.bound,
        seconds(one.seconds),
    )


def row(cells: tuple[Any, ...]) -> str:
    """Words to the left, figures to the right."""
    left = (0, 1, 5)
    return "".join(
        f"{cell:<{width}}" if place in left else f"{cell:>{width - 2}}  "
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ).rstrip()


def misfit_lines(found: tuple[Misfit, ...]) -> Iterator[str]:
    if not found:
        yield "Every layer has them."
    for one in found[:MOST_MISFITS]:
        times = f"{one.count} x " if one.count > 1 else ""
        yield f"{one.dtype}: {times}{one.path} ({one.outer} x {one.inner}): {one.why}"
    if len(found) > MOST_MISFITS:
        yield f"... and {len(found) - MOST_MISFITS} kinds of layers more."
