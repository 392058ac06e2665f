from dataclasses import dataclass

import numpy as np

from engines.pruning.base import LARGEST_COMPARED, Selection, Selector, Visual, cosine_similarity, pick_greedily


@dataclass(frozen=True)
class MaxMinDiversity(Selector):
    """Greedy farthest-point choice by cosine distance."""

    name = "max_min"
    label = "Max-min diversity"
    help = "Picks tokens one by one, each as different as possible from those already picked."
    source = "DivPrune (arXiv 2503.02175): greedy max-min diversity by cosine distance."
    largest_span = LARGEST_COMPARED

    def select(self, visual: Visual, keep: int) -> Selection:
        similarity = cosine_similarity(visual.embeddings)
        # The paper starts with the token whose nearest other token is farthest away.
        others = similarity.clone().fill_diagonal_(-np.inf)
        isolation = (1.0 - others.max(dim=1).values).cpu().numpy()
        selection = pick_greedily(similarity, keep, isolation, lambda closest: 1.0 - closest)
        # The first pick has no earlier one to be near to; it scores the largest distance there is.
        assert selection.scores is not None
        selection.scores[int(isolation.argmax())] = 2.0
        return selection
