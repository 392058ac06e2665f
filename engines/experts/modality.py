from dataclasses import dataclass

import torch
from torch import Tensor

from engines.experts.base import Routing, Skipper
from engines.settings import setting


@dataclass(frozen=True)
class ModalityThresholds(Skipper):
    """A pair is computed if the layer's importance times its routing weight reaches the threshold of its modality."""

    name = "modality"
    label = "Modality-aware thresholds"
    help = "Skips experts of little weight in layers of little importance, with a threshold for each modality."
    source = (
        "MoDES (arXiv 2511.15690), which also skips a token's best expert where it is below the threshold and "
        "does not renormalise."
    )
    calibrated = True
    strengths = tuple({"visual_threshold": low, "text_threshold": low} for low in (0.05, 0.1, 0.15, 0.25, 0.5))

    visual_threshold: float = setting(
        0.15,
        label="Threshold for visual tokens",
        help="Experts below it are skipped. 0 skips nothing.",
        low=0.0,
        high=1.0,
        step=0.001,
    )
    text_threshold: float = setting(
        0.05,
        label="Threshold for text tokens",
        help="Experts below it are skipped. 0 skips nothing.",
        low=0.0,
        high=1.0,
        step=0.001,
    )
    keep_best: bool = setting(
        True,
        label="Always keep the best expert",
        help="Off: a token whose experts are all below the threshold uses none in that layer.",
    )

    def keep(self, routing: Routing) -> Tensor:
        threshold = torch.where(routing.tokens.visual, self.visual_threshold, self.text_threshold)
        kept = routing.weights * routing.importance >= threshold[:, None]
        if self.keep_best:
            kept[:, 0] = True
        return kept
