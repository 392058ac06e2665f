from dataclasses import dataclass

import torch
from torch import Tensor

from engines.config import OFF
from engines.experts.base import Routing, Skipper


@dataclass(frozen=True)
class Off(Skipper):
    """Every pair is computed."""

    name = OFF
    label = "Off"
    help = "Every routed expert is computed."
    source = "The checkpoint itself."

    def keep(self, routing: Routing) -> Tensor:
        return torch.ones_like(routing.weights, dtype=torch.bool)
