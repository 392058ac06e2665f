from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engines.pruning.base import Group, Selection, Selector, Visual, select_top


@dataclass(frozen=True)
class TemporalChange(Selector):
    """Of a video, the tokens that differ from the one at the same place in the frame group before.

    The whole video shares one budget, so that a still stretch gives its tokens to one where something happens. The
    first frame group has none before it and stays whole, and so does an image.
    """

    name = "temporal"
    label = "Temporal change"
    help = "Drops what repeats from frame to frame of a video. Its first frame group, and every image, stay whole."
    source = "EVS (arXiv 2510.14624), on tokens instead of pixels: 1 minus the cosine similarity to the frame before."
    scope = "item"

    def floors(self, groups: tuple[Group, ...], least: int) -> tuple[int, ...]:
        return (groups[0].tokens, *super().floors(groups[1:], least))

    def select(self, visual: Visual, keep: int) -> Selection:
        # (frame groups, tokens a group, hidden)
        frames = visual.embeddings.float().unflatten(0, (len(visual.groups), visual.groups[0].tokens))
        change = 1.0 - F.cosine_similarity(frames[1:], frames[:-1], dim=-1)
        # As much change as there can be, for what has no frame before it.
        scores = torch.cat([torch.full_like(frames[:1, :, 0], 2.0), change]).clamp_(0.0, 2.0).flatten().cpu()
        return Selection(select_top(scores, keep), scores)
