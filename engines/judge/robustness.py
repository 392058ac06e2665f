"""Accuracy on ever poorer pictures, with and without compression."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from engines.compare import SIDES, Side
from engines.config import CompressionConfig
from engines.evaluation import Item, Score
from engines.judge.ask import Asker, Problem, each
from engines.judge.ladder import CLEAN, LADDER, Rung
from engines.media import Media

SCHEMA_VERSION = 1
CATEGORY = "category"


@dataclass(frozen=True)
class LevelScore:
    """One side at one level. `points` is the accuracy less that of the same side's clean level, in percentage
    points, over the same questions."""

    side: Side
    rung: Rung
    overall: Score
    categories: dict[str, Score]
    points: float | None
    category_points: dict[str, float | None]


@dataclass(frozen=True)
class Robustness:
    """What is known after `done` questions, each asked at every level of both sides."""

    done: int
    levels: tuple[LevelScore, ...]
    problems: tuple[Problem, ...] = ()
    unlabelled: int = 0
    """Questions without a right answer, which are left out."""

    def of(self, side: Side, rung: Rung) -> LevelScore:
        return next(level for level in self.levels if (level.side, level.rung) == (side, rung))

    @property
    def rungs(self) -> tuple[Rung, ...]:
        return tuple(dict.fromkeys(level.rung for level in self.levels))

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for level in self.levels for name in level.categories))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "questions": self.done,
            "unlabelled": self.unlabelled,
            "problems": [vars(problem) for problem in self.problems],
            "levels": [
                {
                    "side": level.side,
                    "kind": level.rung.kind,
                    "strength": level.rung.strength,
                    "points": level.points,
                    **level.overall.to_dict(),
                    "categories": {
                        name: {**score.to_dict(), "points": level.category_points[name]}
                        for name, score in level.categories.items()
                    },
                }
                for level in self.levels
            ],
        }


def measure(
    asker: Asker,
    items: Iterable[Item],
    config: CompressionConfig,
    rungs: tuple[Rung, ...] = LADDER,
    seed: int = 0,
) -> Iterator[Robustness]:
    """Ask every question at every level of both sides, question by question, and say after each what is known.

    The clean level is always among them. Both sides see the same pixels. Ends early when the asker is cancelled,
    with the questions that were complete.
    """
    rungs = (CLEAN, *(rung for rung in rungs if rung != CLEAN))
    configs: dict[Side, CompressionConfig] = {"full": CompressionConfig.full(), "compressed": config}
    rights: dict[tuple[Side, Rung], list[tuple[str, bool]]] = {(side, rung): [] for side in SIDES for rung in rungs}
    problems: list[Problem] = []
    done = unlabelled = 0

    def work(_index: int, item: Item) -> dict[tuple[Side, Rung], bool] | None:
        if not item.answer:
            return None
        found: dict[tuple[Side, Rung], bool] = {}
        for rung in rungs:
            alter = None if rung == CLEAN else _once(partial(rung.apply, seed=seed))
            found |= {(side, rung): bool(asker.ask(item, configs[side], alter=alter).right) for side in SIDES}
        return found

    for item, found in each(items, asker.cancel, work):
        if isinstance(found, Problem):
            problems.append(found)
        elif found is None:
            unlabelled += 1
        else:
            done += 1
            for key, right in found.items():
                rights[key].append((item.groups.get(CATEGORY, ""), right))
        yield Robustness(done, _levels(rights), tuple(problems), unlabelled)


def _once(alter: Callable[[Media], Media]) -> Callable[[Media], Media]:
    """The same without making the same pixels twice, as the second side asks for them."""
    made: dict[str, Media] = {}

    def altered(media: Media) -> Media:
        if media.digest not in made:
            made[media.digest] = alter(media)
        return made[media.digest]

    return altered


def _levels(rights: dict[tuple[Side, Rung], list[tuple[str, bool]]]) -> tuple[LevelScore, ...]:
    found = []
    for (side, rung), judged in rights.items():
        overall, categories = _scores(judged)
        clean, clean_categories = _scores(rights[side, CLEAN])
        found.append(
            LevelScore(
                side,
                rung,
                overall,
                categories,
                _points(overall, clean),
                {name: _points(score, clean_categories[name]) for name, score in categories.items()},
            )
        )
    return tuple(found)


def _scores(judged: list[tuple[str, bool]]) -> tuple[Score, dict[str, Score]]:
    by_category: dict[str, list[bool]] = defaultdict(list)
    for category, right in judged:
        by_category[category].append(right)
    overall = Score(len(judged), sum(right for _, right in judged))
    return overall, {name: Score(len(found), sum(found)) for name, found in by_category.items() if name}


def _points(score: Score, clean: Score) -> float | None:
    if score.accuracy is None or clean.accuracy is None:
        return None
    return 100 * (score.accuracy - clean.accuracy)
