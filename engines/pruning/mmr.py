from dataclasses import dataclass

import torch

from engines.config import setting
from engines.pruning.base import Selection, Selector, Visual, cosine_distance


@dataclass(frozen=True)
class MaximalMarginalRelevance(Selector):
    """Importance and diversity, weighed against each other token by token."""

    name = "mmr"
    label = "Maximal marginal relevance"
    help = "Picks tokens one by one: important, but unlike those already picked."
    source = "IDPruner (arXiv 2602.13315): maximal marginal relevance; importance here is the embedding norm."

    balance: float = setting(
        0.5,
        label="Importance or diversity",
        help="1 looks at importance alone, 0 at diversity alone.",
        low=0.0,
        high=1.0,
        step=0.05,
    )

    def select(self, visual: Visual, keep: int) -> Selection:
        norm = visual.embeddings.float().norm(dim=-1)
        spread = (norm.max() - norm.min()).clamp_min(torch.finfo(norm.dtype).tiny)
        importance = (norm - norm.min()) / spread
        similarity = 1.0 - cosine_distance(visual.embeddings)
        tokens = importance.shape[0]
        kept = torch.empty(keep, dtype=torch.long, device=norm.device)
        scores = torch.empty(tokens, device=norm.device)
        # Before anything is picked nothing is similar to it, so the first pick is the most important token.
        closest = torch.zeros_like(importance)
        taken = torch.zeros(tokens, dtype=torch.bool, device=norm.device)
        for position in range(keep):
            marginal = self.balance * importance - (1.0 - self.balance) * closest
            chosen = marginal.masked_fill(taken, float("-inf")).argmax().view(1)
            kept[position] = chosen
            scores[chosen] = marginal[chosen]
            taken[chosen] = True
            row = similarity.index_select(0, chosen)[0]
            closest = torch.maximum(closest, row) if position else row
        marginal = self.balance * importance - (1.0 - self.balance) * closest
        scores[~taken] = marginal[~taken]
        return Selection(kept.sort().values.cpu(), scores.cpu())
