"""The shape of a pruning method: one dataclass of parameters and one method that chooses tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.methods import Method


@dataclass(frozen=True)
class Group:
    """One image, or one frame group of a video: a grid whose tokens lie row by row from `start` on."""

    start: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    @property
    def rows_of(self) -> slice:
        """Where its tokens are among those of the span."""
        return slice(self.start, self.start + self.tokens)


@dataclass(frozen=True)
class Visual:
    """A span of merged visual tokens that share one budget: what a method may look at.

    A span is one image or frame group, one whole video, or all media of the prompt: see `pruning.scope`.
    """

    embeddings: Tensor
    """(tokens, hidden): as they would enter the language model, or have left the layer after which the method
    chooses; the groups one after the other."""
    groups: tuple[Group, ...]
    seed: int
    """Differs between the spans of a request and is the same in every run of it."""
    text: Tensor | None = None
    """(n, hidden): the question's own tokens as they enter the language model; None where it has none."""
    attention: Tensor | None = None
    """(tokens,): what each received from the prompt's last token, in the layer after which the method chooses; None
    for a method that chooses before the language model."""
    depth: float = 0.0
    """The share of the language model's layers that the tokens have passed; 0 before the first."""


@dataclass(frozen=True)
class Selection:
    """Which tokens to keep. `kept` holds `keep` different indices in rising order; `scores` one value a token."""

    kept: Tensor
    scores: Tensor | None
    protected: Tensor | None = None
    """(tokens,) bool: those that the method never drops, whatever the budget; then `kept` may hold more."""


@dataclass(frozen=True)
class Selector(Method):
    """Base of every pruning method."""

    section = "pruning"
    scope: ClassVar[str | None] = None
    """The only scope that the method works in; None: whichever `pruning.scope` asks for."""
    largest_span: ClassVar[int | None] = None
    """Tokens of the largest span that it takes; a larger one is cut between two of its groups."""

    @property
    def asked_layer(self) -> int | None:
        """The layer of the language model, counted from 1, after which it chooses; None: before the first."""
        return None

    def floors(self, groups: tuple[Group, ...], least: int) -> tuple[int, ...]:
        """How many tokens of each group of a span are kept whatever their scores: `least`, or all if it has fewer."""
        return tuple(min(group.tokens, least) for group in groups)

    @abstractmethod
    def select(self, visual: Visual, keep: int) -> Selection:
        """Choose `keep` of the tokens, 1 <= keep <= tokens. Must give the same choice for the same input.

        A method for spans of several groups must give scores: by them its choice is corrected where a group would
        keep fewer tokens than `floors` promises.
        """


def select_top(scores: Tensor, keep: int) -> Tensor:
    """Indices of the `keep` highest scores in rising order; of equal scores the earlier token wins."""
    order = torch.argsort(scores, descending=True, stable=True)
    return order[:keep].sort().values


# Spans of more tokens are cut: their similarities, in float32, would fill more than 256 MiB.
LARGEST_COMPARED = 8192


def cosine_similarity(embeddings: Tensor) -> Tensor:
    """Cosine similarity of every pair, in [-1, 1]. (tokens, hidden) -> (tokens, tokens) in float32."""
    unit = F.normalize(embeddings.float(), dim=-1)
    return (unit @ unit.T).clamp_(-1.0, 1.0)


Values = npt.NDArray[np.float32]


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


def pick_greedily(similarity: Tensor, keep: int, first: Values, value: Callable[[Values], Values]) -> Selection:
    """Pick tokens one by one, each time the one of the highest value; of equal values the earlier token wins.

    `first` (tokens,) decides the first pick; later ones go by `value(closest)`, where `closest` (tokens,) is each
    token's highest similarity to a token picked so far. A kept token's score is its value when it was picked, a
    dropped one's its value at the end.
    """
    # On the CPU whatever the device: a few hundred steps over small vectors are all overhead on a GPU.
    rows = similarity.cpu().numpy()
    scores = np.empty(rows.shape[0], dtype=np.float32)
    taken = np.zeros_like(scores)
    kept = np.empty(keep, dtype=np.int64)
    current = first
    closest: Values | None = None
    for position in range(keep):
        chosen = int(np.argmax(current + taken))
        kept[position] = chosen
        scores[chosen] = current[chosen]
        taken[chosen] = -np.inf
        closest = rows[chosen].copy() if closest is None else np.maximum(closest, rows[chosen], out=closest)
        current = value(closest)
    dropped = taken == 0
    scores[dropped] = current[dropped]
    return Selection(torch.from_numpy(np.sort(kept)), torch.from_numpy(scores))
