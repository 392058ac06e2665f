from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engines.pruning.base import Selection, Selector, Values, Visual, cosine_similarity, relevance_to
from engines.settings import setting

# What a token adds is bounded below: a residual this small is rounding, and its logarithm would be too.
_SPANNED = 1e-5
# The fewest tokens among which a few picks are made before all others are looked at again.
_FEW = 64


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
    # What each pick spans is held in float64 for every token: half of so many take 64 MiB, of twice as many 256.
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
        spanned = _Spanned(similarity, min(keep, visual.embeddings.shape[1]))
        scores = np.empty(tokens, dtype=np.float32)
        taken = np.zeros_like(scores)
        kept: list[int] = []
        while len(kept) < keep:
            # What a token adds only falls. So the best of a few are the best of all for as long as they are better
            # than any other was when they were chosen; only then must what the others add be brought up to date.
            value = self._value(relevance, spanned.residual) + taken
            order = np.argsort(-value, kind="stable")
            few = np.sort(order[: max(_FEW, tokens // 8)])
            next_best = int(order[len(few)]) if len(few) < tokens else tokens
            others = value[next_best] if len(few) < tokens else -np.inf
            picks = spanned.among(few)
            while len(kept) < keep:
                value = self._value(relevance[few], picks.residual) + taken[few]
                place = int(np.argmax(value))
                chosen = int(few[place])
                if value[place] < others or (value[place] == others and chosen > next_best):
                    break
                kept.append(chosen)
                scores[chosen] = value[place]
                taken[chosen] = -np.inf
                picks.add(place)
            spanned.take(picks)
        dropped = taken == 0
        scores[dropped] = self._value(relevance, spanned.residual)[dropped]
        return Selection(torch.tensor(sorted(kept)), torch.from_numpy(scores))

    def _value(self, weighted_relevance: np.ndarray, residual: np.ndarray) -> Values:
        # In float32, so that of values that are equal up to rounding the earlier token wins.
        added = (1.0 - self.theta) * np.log(np.maximum(residual, _SPANNED))
        return (weighted_relevance + added).astype(np.float32)


class _Spanned:
    """What the picked tokens span of every token: the Cholesky factor of S, rows of picked tokens, in float64."""

    def __init__(self, similarity: Values, most: int) -> None:
        """At most `most` tokens span anything new."""
        self.similarity = similarity
        # Exactly 1 for every token, or 0 for one of zeros: else the first picks would go by rounding.
        self.residual = np.rint(similarity.diagonal()).astype(np.float64)
        self.rows = np.empty((most, len(similarity)))
        self.rank = 0

    def among(self, few: np.ndarray) -> _Picks:
        """Further picks among a few tokens."""
        return _Picks(
            few,
            self.similarity[np.ix_(few, few)],
            self.rows[: self.rank, few],
            self.residual[few],
            len(self.rows) - self.rank,
        )

    def take(self, picks: _Picks) -> None:
        """Bring every token up to date with the picks: one product and one triangular solve for all of them."""
        new, own = picks.count, picks.few[picks.places]
        if not new:
            return
        before = self.rows[: self.rank]
        open_part = self.similarity[own] - before[:, own].T @ before
        triangle = picks.rows[:new, picks.places].T.copy()
        np.fill_diagonal(triangle, picks.pivots)
        added = torch.linalg.solve_triangular(torch.from_numpy(triangle), torch.from_numpy(open_part), upper=False)
        self.rows[self.rank : self.rank + new] = added.numpy()
        self.residual -= np.square(self.rows[self.rank : self.rank + new]).sum(axis=0)
        self.rank += new


class _Picks:
    """Tokens picked one after another among a few, and what is left of each of these."""

    def __init__(
        self, few: np.ndarray, similarity: Values, before: np.ndarray, residual: np.ndarray, most: int
    ) -> None:
        self.few, self.residual = few, residual
        self._similarity, self._before = similarity, before
        self.rows = np.empty((min(most, len(few)), len(few)))
        self.places: list[int] = []
        self.pivots: list[float] = []

    @property
    def count(self) -> int:
        return len(self.places)

    def add(self, place: int) -> None:
        # A token that is spanned already spans nothing new.
        if self.residual[place] <= _SPANNED or self.count == len(self.rows):
            return
        mine = self.rows[: self.count]
        row = self._similarity[place] - self._before[:, place] @ self._before - mine[:, place] @ mine
        pivot = float(np.sqrt(self.residual[place]))
        self.rows[self.count] = row / pivot
        self.residual -= np.square(self.rows[self.count])
        self.places.append(place)
        self.pivots.append(pivot)
