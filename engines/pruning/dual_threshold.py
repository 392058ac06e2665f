from dataclasses import dataclass

import torch
from torch import Tensor

from engines.pruning.base import LARGEST_COMPARED, Selection, Selector, Visual, cosine_similarity, relevance_to
from engines.settings import setting


def _threshold(label: str, help_text: str, default: float) -> float:
    return setting(default, label=label, help=help_text, low=0.0, high=1.0, step=0.05)


@dataclass(frozen=True)
class DualThreshold(Selector):
    """A token may be dropped only if its saliency entropy and its task sensitivity are both below their thresholds.

    Saliency entropy: how a token's differences, 1 - cosine similarity, are spread over the other tokens of its own
    image or frame group, as the entropy of that distribution divided by the largest possible one. A token like most
    of the others differs from few, and its entropy is low; one that differs from all alike has the highest.
    Task sensitivity: before the language model the nearness to the question's tokens, see `relevance_to`; inside it
    the attention received from the prompt's last token. Inside, the first is taken of the hidden states.

    Both are scaled to 0-1 over the span that shares a budget, so that a threshold means the same for every
    checkpoint; the token with the highest value is always kept, and a threshold of 0 keeps every token. The score is
    the larger of (entropy - its threshold) and (sensitivity - its threshold): 0 and above is protected. The
    thresholds come before the budget: of what is not protected the highest scores fill it up, and where more is
    protected than it holds, more is kept, and the report's achieved ratio is above the one asked for.
    """

    name = "dual_threshold"
    label = "Dual threshold"
    help = (
        "Drops a token only if its saliency entropy and its task sensitivity are both below their thresholds. "
        "Where these protect more than the keep ratio asks for, more is kept."
    )
    source = "The workbench's own reading of dual-threshold pruning: both criteria must agree before a token may go."
    largest_span = LARGEST_COMPARED

    layer: int = setting(
        0,
        label="Prune after layer",
        help="0 prunes before the language model, with the first two thresholds. Otherwise after this layer, with "
        "those of its half; where it cannot be done there, the result names the layer taken.",
        low=0,
        high=64,
        step=1,
    )
    entropy_before: float = _threshold("Entropy, before", "Saliency entropy below which a token may go.", 0.9)
    task_before: float = _threshold("Task, before", "Task sensitivity below which a token may go.", 0.9)
    entropy_early: float = _threshold(
        "Entropy, early layers", "The same, pruning in the first half of the layers.", 0.9
    )
    task_early: float = _threshold("Task, early layers", "The same, pruning in the first half of the layers.", 0.5)
    entropy_late: float = _threshold("Entropy, late layers", "The same, pruning in the second half.", 0.9)
    task_late: float = _threshold("Task, late layers", "The same, pruning in the second half.", 0.25)

    @property
    def asked_layer(self) -> int | None:
        return self.layer or None

    def thresholds(self, depth: float) -> tuple[float, float]:
        """Of entropy and sensitivity, for tokens that have passed this share of the layers."""
        if not depth:
            return self.entropy_before, self.task_before
        return (self.entropy_early, self.task_early) if depth <= 0.5 else (self.entropy_late, self.task_late)

    def select(self, visual: Visual, keep: int) -> Selection:
        entropy = torch.cat([saliency_entropy(visual.embeddings[group.rows_of]) for group in visual.groups])
        if visual.attention is None:
            sensitivity = torch.from_numpy(relevance_to(visual))
        else:
            sensitivity = scale(visual.attention.float().cpu())
        least_entropy, least_sensitivity = self.thresholds(visual.depth)
        margins = torch.maximum(scale(entropy) - least_entropy, sensitivity - least_sensitivity)
        # What is equal up to rounding is equal: else sums taken in another order would decide.
        scores = margins.round(decimals=6)
        protected = scores >= 0
        order = torch.argsort(scores, descending=True, stable=True)
        return Selection(order[: max(keep, int(protected.sum()))].sort().values, scores, protected)


def saliency_entropy(embeddings: Tensor) -> Tensor:
    """(tokens,) in 0-1, on the CPU: entropy of how a token's differences from the others of its grid are spread.

    0 for a token like all others, and where there are fewer than three.
    """
    tokens = len(embeddings)
    if tokens < 3:
        return torch.zeros(tokens)
    difference = (1.0 - cosine_similarity(embeddings)).fill_diagonal_(0.0)
    # Equal vectors come out as different by rounding.
    difference[difference < 1e-5] = 0.0
    share = difference / difference.sum(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    entropy = torch.special.entr(share).sum(dim=1)
    return (entropy / torch.tensor(tokens - 1.0).log()).cpu()


def scale(values: Tensor) -> Tensor:
    """(tokens,) in 0-1: from the lowest to the highest of them; zeros where they are the same up to rounding."""
    spread = values.max() - values.min()
    # Of attention, which adds up to 1 over the prompt, small differences count.
    if spread <= 1e-6 * values.abs().max():
        return torch.zeros_like(values)
    return (values - values.min()) / spread
