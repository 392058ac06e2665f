from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from engines.config import setting
from engines.pruning.base import Selection, Selector, Values, Visual, cosine_similarity

# What a token adds is bounded below: a residual this small is rounding, and its logarithm would be too.
_SPANNED = 1e-5


@dataclass(frozen=True)
class ConditionalDiversity(Selector):
    """Tokens that have to do with the question and differ from one another: a conditional determinantal point process.

    With the cosine similarities S of the visual tokens and the relevance r of each to the question, the set of
    highest (1 - theta) log det S + theta sum r is sought: one by one, each time the token that adds the most. What
    it adds to log det S is the logarithm of its residual, the part of it that no picked token spans.

    Relevance is the mean cosine similarity to the question's tokens, scaled to 0-1 over the span. Question and
    visual tokens are compared as they enter the language model, which nothing has trained to be comparable there:
    look at the scores before you trust them.
    """

    name = "relevance"
    label = "Relevance and diversity"
    help = "Picks tokens one by one: near to the question, but not spanned by those already picked."
    source = (
        "CDPruner (arXiv 2506.10967): a determinantal point process conditioned on the question; greedy inference "
        "as in Chen et al., NeurIPS 2018."
    )
    # Each pick costs more than the one before: half of so many tokens takes some seconds, of twice as many a minute.
    largest_span = 4096

    theta: float = setting(
        0.5,
        label="Relevance or diversity",
        help="1 looks at relevance to the question alone, 0 at diversity alone.",
        low=0.0,
        high=1.0,
        step=0.05,
    )

    def select(self, visual: Visual, keep: int) -> Selection:
        similarity = cosine_similarity(visual.embeddings).cpu().numpy()
        tokens = len(similarity)
        relevance = self.theta * relevance_to(visual).astype(np.float64)
        # Exactly 1 for every token, or 0 for one of zeros: else the first picks would go by rounding.
        residual = np.rint(similarity.diagonal()).astype(np.float64)
        # Row by row what each picked token spans of every other: the Cholesky factor of S, rows of picked tokens.
        factor = np.empty((min(keep, visual.embeddings.shape[1]), tokens))
        rank = 0
        scores = np.empty(tokens, dtype=np.float32)
        taken = np.zeros_like(scores)
        kept = np.empty(keep, dtype=np.int64)
        for position in range(keep):
            value = self._value(relevance, residual)
            chosen = int(np.argmax(value + taken))
            kept[position] = chosen
            scores[chosen] = value[chosen]
            taken[chosen] = -np.inf
            # A token that is spanned already spans nothing new.
            if residual[chosen] > _SPANNED and rank < len(factor):
                row = similarity[chosen] - factor[:rank, chosen] @ factor[:rank]
                factor[rank] = row / np.sqrt(residual[chosen])
                residual -= factor[rank] ** 2
                rank += 1
        dropped = taken == 0
        scores[dropped] = self._value(relevance, residual)[dropped]
        return Selection(torch.from_numpy(np.sort(kept)), torch.from_numpy(scores))

    def _value(self, weighted_relevance: np.ndarray, residual: np.ndarray) -> Values:
        # In float32, so that of values that are equal up to rounding the earlier token wins.
        added = (1.0 - self.theta) * np.log(np.maximum(residual, _SPANNED))
        return (weighted_relevance + added).astype(np.float32)


def relevance_to(visual: Visual) -> Values:
    """(tokens,) in 0-1: nearness to the question; the same for all where there is no question or no difference."""
    if visual.text is None:
        return np.zeros(len(visual.embeddings), dtype=np.float32)
    tokens, words = (F.normalize(vectors.float(), dim=-1) for vectors in (visual.embeddings, visual.text))
    nearness = (tokens @ words.T).mean(dim=1)
    spread = nearness.max() - nearness.min()
    # Differences within rounding are none.
    if spread < 1e-6:
        return np.zeros(len(nearness), dtype=np.float32)
    return ((nearness - nearness.min()) / spread).cpu().numpy()
