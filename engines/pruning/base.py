"""The shape of a pruning method: one dataclass of parameters and one method that chooses tokens."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.config import check_settings


@dataclass(frozen=True)
class Visual:
    """The merged visual tokens of one image, or of one frame group of a video: what a method may look at."""

    embeddings: Tensor
    """(tokens, hidden): as they would enter the language model, row by row of the grid."""
    rows: int
    columns: int
    seed: int
    """Differs between the frames of a request and is the same in every run of it."""


@dataclass(frozen=True)
class Selection:
    """Which tokens to keep. `kept` holds `keep` different indices in rising order; `scores` one value a token."""

    kept: Tensor
    scores: Tensor | None


@dataclass(frozen=True)
class Selector(ABC):
    """Base of every method. Subclasses are frozen dataclasses whose fields, made by `setting()`, are its parameters."""

    name: ClassVar[str]
    label: ClassVar[str]
    help: ClassVar[str]
    source: ClassVar[str]
    """The paper or the reason that the method comes from."""

    def __post_init__(self) -> None:
        check_settings(self, "pruning.options")

    @abstractmethod
    def select(self, visual: Visual, keep: int) -> Selection:
        """Choose `keep` of the tokens, 1 <= keep <= tokens. Must give the same choice for the same input."""


def select_top(scores: Tensor, keep: int) -> Tensor:
    """Indices of the `keep` highest scores in rising order; of equal scores the earlier token wins."""
    order = torch.argsort(scores, descending=True, stable=True)
    return order[:keep].sort().values


def cosine_similarity(embeddings: Tensor) -> Tensor:
    """Cosine similarity of every pair, in [-1, 1]. (tokens, hidden) -> (tokens, tokens) in float32."""
    unit = F.normalize(embeddings.float(), dim=-1)
    return (unit @ unit.T).clamp_(-1.0, 1.0)


Values = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class MethodDescription:
    """A method as the page shows it. Each parameter is (name, default, metadata of `setting()`, type name)."""

    name: str
    label: str
    help: str
    source: str
    parameters: tuple[tuple[str, Any, dict[str, Any], str], ...]


def describe(method: type[Selector]) -> MethodDescription:
    parameters = tuple(
        (item.name, item.default, dict(item.metadata), str(item.type))
        for item in dataclasses.fields(method)
        if "label" in item.metadata
    )
    return MethodDescription(method.name, method.label, method.help, method.source, parameters)
