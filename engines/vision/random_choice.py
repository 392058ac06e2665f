from dataclasses import dataclass

import torch
from torch import Tensor

from engines.vision.base import Reducer, Units


@dataclass(frozen=True)
class Random(Reducer):
    """A random choice of units goes on and the others skip the later layers, the same for every image of one size.

    It cannot depend on the seed of the request: what the encoder cache keeps of an image serves all requests.
    """

    name = "random"
    label = "Random"
    help = "A fixed random choice skips the later layers: the baseline that every other method must beat."
    source = "Control."

    def assign(self, units: Units, keep: int) -> Tensor:
        # Drawn on the CPU so that every device chooses the same units.
        goes_on = torch.randperm(units.count, generator=torch.Generator().manual_seed(0))[:keep]
        owner = torch.full((units.count,), -1)
        owner[goes_on] = goes_on
        return owner.to(units.left.device)
