"""Where a compressed model leaves the full one, token by token along the full model's answer: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.agreement import Agreement
from engines.config import CompressionConfig
from engines.reports import FramePruning
from engines.tokens.registry import Mask, TokenRegistry

SCHEMA_VERSION = 1
# Dropped cells of a token that are written out one by one.
_MOST_CELLS = 8

Shares = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidate:
    """A token that a model might draw. Probability 0-1, before temperature and top-p."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True)
class TokenDivergence:
    """One token of the full model's answer, and what both models would have made of its place."""

    index: int
    token: int
    text: str
    kl: float
    """Kullback-Leibler divergence of the compressed prediction from the full one, in nats."""
    same_top: bool
    """Whether both models have the same most likely token."""
    full_probability: float
    compressed_probability: float
    full_top: tuple[Candidate, ...]
    """The most likely first."""
    compressed_top: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class VisualAttention:
    """Where in the pictures the full model looked before each token: means over its layers of full attention and
    their heads."""

    shares: Shares
    """(tokens, cells): of the attention on visual tokens, the share of each; rows sum to 1."""
    visual_share: tuple[float, ...]
    """Of all attention before each token, the share on visual tokens."""
    registry: TokenRegistry
    """Of the full model's prompt."""
    pruned: Mask
    """(cells,): what the compressed run dropped of them before the first token of the answer."""
    evicted: Mask
    """(cells,): what it had dropped once its KV cache was compressed, those pruned included."""

    def dropped(self, index: int) -> Mask:
        """(cells,): what the compressed model could not look at before a token."""
        # The first token comes from the prefill, before anything is evicted.
        return self.evicted if index else self.pruned

    def dropped_share(self, index: int) -> float:
        """Of the attention on visual tokens before a token, the share on dropped ones."""
        return float(self.shares[index][self.dropped(index)].sum(dtype=np.float64))

    def frames(self, index: int) -> tuple[FramePruning, ...]:
        """Before one token: each image and frame group with the cells' shares as scores, and what was dropped."""
        kept = ~self.dropped(index)
        return tuple(
            FramePruning(**vars(group), scores=tuple(self.shares[index][own].tolist()), kept=tuple(kept[own].tolist()))
            for group, own in (
                (group, self.registry.cells_of(place)) for place, group in enumerate(self.registry.groups)
            )
        )

    def most_missed(self, index: int) -> int:
        """The image or frame group whose dropped cells have the most attention before a token."""
        missed = np.where(self.dropped(index), self.shares[index], 0)
        places = range(len(self.registry.groups))
        return max(places, key=lambda place: float(missed[self.registry.cells_of(place)].sum(dtype=np.float64)))

    def top_dropped(self, index: int) -> list[dict[str, Any]]:
        """The dropped cells with the most attention before a token."""
        missed = np.where(self.dropped(index), self.shares[index], 0)
        found = []
        for cell in np.argsort(-missed, kind="stable")[:_MOST_CELLS].tolist():
            if missed[cell] > 0:
                place, row, column = self.registry.place(cell)
                group = self.registry.groups[place]
                where = {"item": group.item, "timestamp_s": group.timestamp_s, "row": row, "column": column}
                found.append({**where, "share": float(missed[cell])})
        return found


@dataclass(frozen=True, eq=False)
class DivergenceReport:
    """Of one request at one setting."""

    tokens: tuple[TokenDivergence, ...]
    agreement: Agreement
    attention: VisualAttention | None
    """None where the prompt has no visual tokens, or no layer has full attention."""
    config: CompressionConfig
    cut_short: bool
    """Whether the answer has more tokens than were measured."""

    @property
    def first_difference(self) -> int | None:
        """Index of the first token where the models' most likely tokens differ; None where there is none."""
        return next((token.index for token in self.tokens if not token.same_top), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.config.to_dict(),
            "summary": asdict(self.agreement),
            "first_difference": self.first_difference,
            "cut_short": self.cut_short,
            "tokens": [{**asdict(token), "visual_attention": self._attention(token.index)} for token in self.tokens],
        }

    def _attention(self, index: int) -> dict[str, Any] | None:
        attention = self.attention
        if attention is None:
            return None
        return {
            "visual_share": attention.visual_share[index],
            "dropped_share": attention.dropped_share(index),
            "top_dropped": attention.top_dropped(index),
        }


def not_in(full: TokenRegistry, other: TokenRegistry) -> tuple[Mask, Mask]:
    """Of the full prompt's cells (cells,): those that another run of it pruned, and those that it had given up by its
    end. A cell counts as evicted where most of the layers that it reached no longer hold it.

    A run may leave all images, or all videos, out of its prompt.
    """
    kinds = {group.kind for group in other.groups}
    pruned = np.ones(len(full.cell_positions), dtype=np.bool_)
    gone = pruned.copy()
    places = [place for place, group in enumerate(full.groups) if group.kind in kinds]
    _check_same([full.groups[place].tokens for place in places], [group.tokens for group in other.groups])
    for theirs, place in enumerate(places):
        ours, own = full.cells_of(place), other.cells_of(theirs)
        pruned[ours] = ~other.kept_cells[own]
        gone[ours] = pruned[ours] | (other.evicted_share[own] > 0.5)
    return pruned, gone


def _check_same(ours: Sequence[int], theirs: Sequence[int]) -> None:
    if ours != theirs:
        raise ValueError("The two runs had different media; their tokens cannot be told to be the same.")
