from dataclasses import dataclass

import torch

from engines.pruning.base import Selection, Selector, Visual, cosine_distance


@dataclass(frozen=True)
class MaxMinDiversity(Selector):
    """Greedy farthest-point choice by cosine distance."""

    name = "max_min"
    label = "Max-min diversity"
    help = "Picks tokens one by one, each as different as possible from those already picked."
    source = "DivPrune (arXiv 2503.02175): greedy max-min diversity by cosine distance."

    def select(self, visual: Visual, keep: int) -> Selection:
        distance = cosine_distance(visual.embeddings)
        tokens = distance.shape[0]
        kept = torch.empty(keep, dtype=torch.long, device=distance.device)
        scores = torch.empty(tokens, device=distance.device)
        taken = torch.zeros(tokens, dtype=torch.bool, device=distance.device)
        # The paper starts with the token whose nearest other token is farthest away.
        others = distance.masked_fill(torch.eye(tokens, dtype=torch.bool, device=distance.device), float("inf"))
        nearest = others.min(dim=1).values
        for position in range(keep):
            chosen = nearest.masked_fill(taken, -1.0).argmax().view(1)
            kept[position] = chosen
            # A score is the distance to the nearest token picked before; the first pick gets the largest there is.
            scores[chosen] = nearest[chosen] if position else 2.0
            taken[chosen] = True
            row = distance.index_select(0, chosen)[0]
            nearest = torch.minimum(nearest, row) if position else row
        scores[~taken] = nearest[~taken]
        return Selection(kept.sort().values.cpu(), scores.cpu())
