"""The shape of a pruning method: one dataclass of parameters and one method that chooses tokens."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

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


def cosine_distance(embeddings: Tensor) -> Tensor:
    """1 - cosine similarity of every pair, in [0, 2]. (tokens, hidden) -> (tokens, tokens) in float32."""
    unit = F.normalize(embeddings.float(), dim=-1)
    return (1.0 - unit @ unit.T).clamp_(0.0, 2.0)


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
