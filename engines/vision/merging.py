from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.vision.base import Reducer, Units


@dataclass(frozen=True)
class TokenMerging(Reducer):
    """Bipartite soft matching: every second unit looks for its most similar one among the others, the best pairs merge.

    Similarity is the cosine of the attention keys. A pair goes on as one unit at the place of the second; its keys
    are the mean over all units in it. One round can merge half of the units at most, so a lower keep ratio takes
    several rounds in the same layer. Of equal similarities the earlier unit wins, on both sides.

    Unlike the paper's classifier this needs every token back: what the later layers change of a merged unit is added
    to each of its members, which keep what they had of their own until then (as in ToMe for Stable Diffusion, arXiv
    2303.17604). Attention is not weighted by the size of the units, for which the fast kernels have no place.
    """

    name = "merging"
    label = "Token merging"
    help = "Similar neighbours go through the later layers as one, and get back what these change."
    source = "ToMe (arXiv 2210.09461): bipartite soft matching by attention keys, here of whole merge units."

    def assign(self, units: Units, keep: int) -> Tensor:
        owner = torch.arange(units.count, device=units.keys.device)
        alive, keys = owner.clone(), units.keys
        sizes = torch.ones(units.count, device=keys.device)
        while len(alive) > keep:
            unit = F.normalize(keys, dim=-1)
            best, partner = (unit[::2] @ unit[1::2].T).max(dim=1)
            merges = min(len(alive) - keep, len(best))
            chosen = best.argsort(descending=True, stable=True)[:merges]
            sources, targets = 2 * chosen, 2 * partner[chosen] + 1
            # Whoever went on as one of the sources goes on as its target from now on.
            moved = torch.arange(units.count, device=owner.device)
            moved[alive[sources]] = alive[targets]
            owner = moved[owner]
            keys, sizes = _add_to(targets, sources, keys, sizes)
            stays = torch.ones(len(alive), dtype=torch.bool, device=alive.device)
            stays[sources] = False
            alive, keys, sizes = alive[stays], keys[stays], sizes[stays]
        return owner


def _add_to(targets: Tensor, sources: Tensor, keys: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The mean keys and the sizes after the sources joined their targets."""
    # One matrix product instead of adding by index, whose order a GPU leaves open.
    joined = torch.eye(len(keys), device=keys.device)
    joined[targets, sources] = 1.0
    weighed = joined @ (keys * sizes[:, None])
    sizes = joined @ sizes
    return weighed / sizes[:, None], sizes
