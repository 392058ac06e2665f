from dataclasses import dataclass

import torch
from torch import Tensor

from engines.vision.base import Reducer, Units


@dataclass(frozen=True)
class StillUnits(Reducer):
    """The units that the layer changed least, by the norm of the change over that of the unit, skip all later ones.

    They enter the mergers as that layer left them, and the units that go on attend to each other alone. Of equal
    changes the earlier unit goes on.
    """

    name = "still"
    label = "Skip what stands still"
    help = "The units that the layer changed least skip the later layers, and stay as they are."
    source = "Token-wise depth skipping; the relative change of the residual stream decides."

    def assign(self, units: Units, keep: int) -> Tensor:
        left = units.left.float()
        size = left.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
        change = (left - units.entered.float()).norm(dim=-1) / size
        goes_on = change.argsort(descending=True, stable=True)[:keep]
        owner = torch.full((units.count,), -1, device=left.device)
        owner[goes_on] = goes_on
        return owner
