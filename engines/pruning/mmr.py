from dataclasses import dataclass

import numpy as np
import torch

from engines.pruning.base import LARGEST_COMPARED, Selection, Selector, Visual, cosine_similarity, pick_greedily
from engines.settings import setting


@dataclass(frozen=True)
class MaximalMarginalRelevance(Selector):
    """Importance and diversity, weighed against each other token by token."""

    name = "mmr"
    label = "Maximal marginal relevance"
    help = "Picks tokens one by one: important, but unlike those already picked."
    source = "IDPruner (arXiv 2602.13315): maximal marginal relevance; importance here is the embedding norm."
    largest_span = LARGEST_COMPARED

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
        importance = self.balance * ((norm - norm.min()) / spread).cpu().numpy()
        weight = np.float32(1.0 - self.balance)
        # Before anything is picked nothing is similar to it, so the first pick is the most important token.
        return pick_greedily(
            cosine_similarity(visual.embeddings), keep, importance, lambda closest: importance - weight * closest
        )
