"""Which layers would lose values in fp16: a real run at the checkpoint's own precision, watched by hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engines.checkpoint import Checkpoint
from engines.config import PARTS
from engines.precision.probe import run_request
from engines.reports import CollapseLayer, CollapseReport
from engines.results import RunRequest

# Values that a layer put out are looked at in pieces of this many, to bound the room that takes.
_PIECE = 1 << 22


def measure_collapse(checkpoint: Checkpoint, request: RunRequest) -> CollapseReport:
    """Answer the request and count, by layer, the values that fp16 would flush to zero or make infinite."""
    watch = Watch(checkpoint)
    with watch.watching(), torch.inference_mode():
        prompt, answer = run_request(checkpoint, request, tokens=request.sampling.max_new_tokens)
    native = str(checkpoint.dtype).removeprefix("torch.")
    return CollapseReport(watch.layers(), native, prompt, answer)


class Watch:
    """Counts in the outputs of every product and of every block, whose outputs are the residual stream."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        structure = checkpoint.structure
        watched: dict[int, tuple[str, nn.Module]] = {
            id(slot.module): (part, slot.module) for part in PARTS for slot in structure.slots(part)
        }
        for part, blocks in (
            ("vision", getattr(structure.visual, "blocks", [])),
            ("language", structure.language_model.layers),
        ):
            watched |= {id(block): (part, block) for block in blocks}
        # In the order of the model, so that the chart reads from the pixels to the answer.
        self._watched = [
            (name, *watched[id(module)]) for name, module in checkpoint.model.named_modules() if id(module) in watched
        ]
        self._counts: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, _, module in self._watched:
                stack.callback(module.register_forward_hook(self._hook(name)).remove)
            yield

    def layers(self) -> tuple[CollapseLayer, ...]:
        """Those that ran."""
        found = []
        for name, part, _ in self._watched:
            if name in self._counts:
                values, flushed, subnormal, overflowed = self._counts[name].tolist()
                largest = float(self._largest[name])
                found.append(CollapseLayer(name, part, values, flushed, subnormal, overflowed, largest))
        return tuple(found)

    def _hook(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            for piece in values.detach().flatten().split(_PIECE):
                counts, largest = count(piece)
                self._counts[name] = self._counts.get(name, 0) + counts
                self._largest[name] = torch.maximum(self._largest.get(name, largest), largest)

        return hook


def count(values: Tensor) -> tuple[Tensor, Tensor]:
    """(4,) numbers of all values, of those that become 0, lose digits, or become infinite; and the largest magnitude.

    Values that are infinite or no number already are counted with all, and nowhere else.
    """
    half, finite = values.to(torch.float16), values.isfinite()
    flushed = (half == 0) & (values != 0)
    subnormal = (half != 0) & (half.abs() < torch.finfo(torch.float16).tiny)
    overflowed = half.isinf() & finite
    counts = torch.stack(
        [finite.new_tensor(values.numel(), dtype=torch.long), flushed.sum(), subnormal.sum(), overflowed.sum()]
    )
    return counts, values.abs().float().masked_fill(~finite, 0.0).max()
