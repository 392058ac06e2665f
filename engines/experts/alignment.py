from dataclasses import dataclass

import torch
from torch import Tensor

from engines.experts.base import Routing, Skipper, keep_first
from engines.settings import setting


@dataclass(frozen=True)
class AlignmentConfidence(Skipper):
    """All experts for the visual tokens nearest to a text token, one for the other visual tokens.

    A visual token's distance is 1 - its cosine similarity to the best matching text token, both as they enter the
    language model; of equal distances the earlier token counts as nearer. The choice does not depend on the layer.
    """

    name = "alignment"
    label = "Alignment confidence"
    help = "Visual tokens close to a word of the prompt use all their experts, the others only the best one."
    source = "Alignment-confidence routing: cross-modal embedding distance decides how many experts a token gets."
    strengths = ({"kappa": 75.0}, {"kappa": 50.0}, {"kappa": 25.0}, {"kappa": 0.0})

    kappa: float = setting(
        30.0,
        label="Visual tokens with all experts (%)",
        help="This share of the visual tokens, the best aligned, uses all experts. 100 skips nothing.",
        low=0.0,
        high=100.0,
        step=5.0,
    )

    def keep(self, routing: Routing) -> Tensor:
        tokens, (_, k) = routing.tokens, routing.weights.shape
        whole = int(tokens.visual_count * self.kappa / 100.0 + 0.5)
        nearest = tokens.distance.masked_fill(~tokens.visual, torch.inf).argsort(stable=True)[:whole]
        counts = torch.where(tokens.visual, 1, k)
        counts[nearest] = k
        return keep_first(counts, k)
