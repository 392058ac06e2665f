from dataclasses import dataclass

import torch

from engines.pruning.base import Selection, Selector, Visual, select_top


@dataclass(frozen=True)
class Random(Selector):
    """A seeded random choice."""

    name = "random"
    label = "Random"
    help = "A seeded random choice: the baseline that every other method must beat."
    source = "Control; a strong one, see UniPruneBench (arXiv 2511.02650)."

    def select(self, visual: Visual, keep: int) -> Selection:
        # Drawn on the CPU so that every device keeps the same tokens.
        generator = torch.Generator().manual_seed(visual.seed)
        scores = torch.rand(visual.embeddings.shape[0], generator=generator)
        return Selection(select_top(scores, keep), scores)
