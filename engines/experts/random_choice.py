from dataclasses import dataclass

import torch
from torch import Tensor

from engines.experts.base import Routing, Skipper
from engines.settings import setting


@dataclass(frozen=True)
class Random(Skipper):
    """A seeded random choice among all pairs but each token's best."""

    name = "random"
    label = "Random"
    help = "A seeded random choice: the baseline that every other method must beat."
    source = "Control."
    strengths = ({"skip": 0.25}, {"skip": 0.5}, {"skip": 0.75}, {"skip": 0.88})

    skip: float = setting(
        0.5,
        label="Share of pairs skipped",
        help="Of all (token, expert) pairs; each token's best expert stays. 0 skips nothing.",
        low=0.0,
        high=1.0,
        step=0.05,
    )

    def keep(self, routing: Routing) -> Tensor:
        tokens, k = routing.weights.shape
        kept = torch.ones(tokens, k, dtype=torch.bool)
        others = torch.arange(tokens * k).view(tokens, k)[:, 1:].reshape(-1)
        skipped = min(int(tokens * k * self.skip + 0.5), others.numel())
        # Drawn on the CPU so that every device skips the same pairs.
        drawn = torch.randperm(others.numel(), generator=torch.Generator().manual_seed(routing.layer))
        kept.view(-1)[others[drawn[:skipped]]] = False
        return kept.to(routing.weights.device)
