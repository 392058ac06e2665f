from dataclasses import dataclass

import torch
from torch import Tensor

from engines.experts.base import Routing, Skipper, keep_first
from engines.settings import setting


@dataclass(frozen=True)
class EntropyAdaptive(Skipper):
    """A quarter, a half or all of the checkpoint's experts a token, by its vision-language semantic entropy.

    The entropy, in nats, is that of the softmax over a visual token's cosine similarities to the text tokens of the
    prompt, and over a text token's similarities to the visual ones, each divided by the temperature, all as they
    enter the language model. A token that clearly means one thing needs few experts; one that could mean many, or
    has nothing of the other kind to be compared with, keeps all. The choice does not depend on the layer.
    """

    name = "entropy"
    label = "Entropy-adaptive top-k"
    help = "The more clearly a token matches one token of the other modality, the fewer experts it uses."
    source = "Entropy-adaptive top-k: 1, 2 or 4 experts at bounds of 0.8 and 1.6 nats, scaled to the checkpoint's k."
    strengths = tuple({"lower_bound": bound, "upper_bound": 2 * bound} for bound in (0.4, 0.8, 1.6, 3.2))

    lower_bound: float = setting(
        0.8,
        label="Lower bound (nats)",
        help="Tokens of less entropy use a quarter of the experts. 0 for both bounds skips nothing.",
        low=0.0,
        high=10.0,
        step=0.1,
    )
    upper_bound: float = setting(
        1.6,
        label="Upper bound (nats)",
        help="Tokens of less entropy than this use half of the experts, all others every one.",
        low=0.0,
        high=10.0,
        step=0.1,
    )
    temperature: float = setting(
        0.02,
        label="Temperature",
        help="Divides the cosine similarities: lower makes every token clearer, so that more is skipped.",
        above=0.0,
        high=1.0,
        step=0.01,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower_bound > self.upper_bound:
            raise ValueError(
                f"experts.options.lower_bound is {self.lower_bound}; it must be at most upper_bound, "
                f"which is {self.upper_bound}."
            )

    def keep(self, routing: Routing) -> Tensor:
        own, (_, k) = routing.own_top_k, routing.weights.shape
        entropy = routing.tokens.entropy(self.temperature)
        few, some = max(1, own // 4), max(1, own // 2)
        counts = torch.where(entropy < self.lower_bound, few, torch.where(entropy < self.upper_bound, some, own))
        return keep_first(counts, k)
