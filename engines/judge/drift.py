"""How far the answers, and what the language model saw, drift from the full model's over a set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from engines.config import CompressionConfig
from engines.evaluation import Item
from engines.judge.ask import Asker, Problem, each
from engines.judge.embeddings import ClipEmbeddings, OwnEmbeddings, Vector, cosine, unit
from engines.judge.wasserstein import WassersteinDrift, wasserstein_drift

SCHEMA_VERSION = 1
WARNING, ALARM = 0.15, 0.18
# With fewer samples the 95th percentile lies between the two largest.
FEWEST = 20
_RESAMPLES = 2000

Verdict = Literal["quiet", "warning", "alarm"]


@dataclass(frozen=True)
class Drifts:
    """Drifts, 1 - cosine similarity, of many items: 0 is the same, 1 unrelated, 2 opposite."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def median(self) -> float | None:
        return float(np.median(self.values)) if self.values else None

    @property
    def p95(self) -> float | None:
        """95th percentile, interpolated between neighbours."""
        return float(np.quantile(self.values, 0.95)) if self.values else None

    @cached_property
    def p95_interval(self) -> tuple[float, float] | None:
        """95 % percentile bootstrap over the items (Efron, 1979), 2,000 resamples of a fixed seed."""
        if not self.values:
            return None
        draws = np.random.default_rng(0).choice(self.values, (_RESAMPLES, len(self.values)))
        low, high = np.quantile(np.quantile(draws, 0.95, axis=1), (0.025, 0.975))
        return float(low), float(high)

    @property
    def verdict(self) -> Verdict | None:
        """By the 95th percentile itself, not by its interval."""
        if self.p95 is None:
            return None
        return "alarm" if self.p95 > ALARM else "warning" if self.p95 > WARNING else "quiet"

    def to_dict(self) -> dict[str, Any]:
        return {
            "items": len(self.values),
            "mean": self.mean,
            "median": self.median,
            "p95": self.p95,
            "p95_interval": self.p95_interval,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Drifted:
    """One question with both answers."""

    question: str
    category: str
    full: str
    compressed: str
    answer: float
    """Drift of the answer."""
    visual: float | None
    """Drift of the visual tokens; None where the full run had none."""
    full_vector: Vector | None
    compressed_vector: Vector | None
    fit: tuple[float, float] | None = None
    """Cosine between the media and the answer of the full and of the compressed model; CLIP only."""


@dataclass(frozen=True)
class Drift:
    """What is known after some questions."""

    items: tuple[Drifted, ...]
    by: str
    """Which embeddings the answers were compared with."""
    problems: tuple[Problem, ...] = ()

    @property
    def done(self) -> int:
        return len(self.items)

    @cached_property
    def answers(self) -> Drifts:
        return Drifts(tuple(item.answer for item in self.items))

    @cached_property
    def visual(self) -> Drifts:
        return Drifts(tuple(item.visual for item in self.items if item.visual is not None))

    @cached_property
    def wasserstein(self) -> WassersteinDrift | None:
        """Of the answers' embeddings; None where every answer is empty."""
        sizes = [len(v) for item in self.items for v in (item.full_vector, item.compressed_vector) if v is not None]
        if not sizes:
            return None
        full = np.stack([unit(item.full_vector, sizes[0]) for item in self.items])
        compressed = np.stack([unit(item.compressed_vector, sizes[0]) for item in self.items])
        return wasserstein_drift(full, compressed)

    @property
    def fit(self) -> tuple[float, float] | None:
        """Mean cosine between media and answers, full and compressed; None without CLIP."""
        known = [item.fit for item in self.items if item.fit is not None]
        return (float(np.mean([f for f, _ in known])), float(np.mean([c for _, c in known]))) if known else None

    def worst(self, number: int = 10) -> tuple[Drifted, ...]:
        return tuple(sorted(self.items, key=lambda item: -item.answer)[:number])

    def to_dict(self) -> dict[str, Any]:
        shift = self.wasserstein
        fit = None if self.fit is None else dict(zip(("full", "compressed"), self.fit, strict=True))
        return {
            "schema_version": SCHEMA_VERSION,
            "embeddings": self.by,
            "answers": self.answers.to_dict(),
            "visual_tokens": self.visual.to_dict(),
            "wasserstein": None if shift is None else {**vars(shift), "drift": shift.drift, "alarm": shift.alarm},
            "media_answer_similarity": fit,
            "problems": [vars(problem) for problem in self.problems],
            "items": [
                {"question": item.question, "category": item.category, "full": item.full, "compressed": item.compressed,
                 "answer_drift": item.answer, "visual_drift": item.visual}
                for item in self.items
            ],
        }  # fmt: skip


def measure(
    asker: Asker,
    items: Iterable[Item],
    config: CompressionConfig,
    clip: ClipEmbeddings | None = None,
    base: CompressionConfig | None = None,
) -> Iterator[Drift]:
    """Ask every question of the full model, or of `base`, and of the compressed one; after each, what is known.

    Visual tokens are always compared as the checkpoint made them: CLIP has no part in them.
    """
    own = OwnEmbeddings()
    embed = clip or own
    configs = (base or CompressionConfig.full(), config)
    found: list[Drifted] = []
    problems: list[Problem] = []

    def work(_index: int, item: Item) -> Drifted:
        sides = []
        for side in configs:
            asked = asker.ask(item, side, watch=own)
            sides.append((asked, own.visual(), embed.answer(asked.result)))
        (full, saw_full, said_full), (compressed, saw, said) = sides
        seen = clip.media(full.media) if clip else None
        return Drifted(
            question=item.question,
            category=item.groups.get("category", ""),
            full=full.result.answer,
            compressed=compressed.result.answer,
            answer=1 - cosine(said_full, said),
            visual=None if saw_full is None else 1 - cosine(saw_full, saw),
            full_vector=said_full,
            compressed_vector=said,
            fit=None if seen is None else (cosine(seen, said_full), cosine(seen, said)),
        )

    for item, one in each(items, asker.cancel, work):
        del item
        if isinstance(one, Problem):
            problems.append(one)
        else:
            found.append(one)
        yield Drift(tuple(found), embed.words, tuple(problems))
