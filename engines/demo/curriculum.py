"""What is shown and asked at each step of the training: a function of the seed and the step alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from engines.demo.labels import MERGE, PATCH_PX, TEMPORAL
from engines.demo.questions import Question, ask
from engines.demo.scenes import LEVEL_NAMES, LEVELS, Scene, draw_size, make_scene


@dataclass(frozen=True)
class Phase:
    """Up to a step: the share of the steps that each level gets, and whether the vision tower learns alone.

    The tower alone bears a higher learning rate: the language model stood still at it.
    """

    until: int
    levels: dict[str, float]
    tower_alone: bool = False

    @property
    def rate(self) -> float:
        """Share of the highest learning rate."""
        return 1.0 if self.tower_alone else 0.5


# Few small objects first: binding a colour to a shape is learned there, and carries over to crowded scenes; the other
# way round it does not come. The vision tower learns alone at first: until it tells shapes and characters apart the
# language model has nothing to bind, and would cost most of the time. It does so again when characters and motion,
# which take it longest, are what holds the answers back.
CURRICULUM = (
    Phase(1_500, {"dense": 0.7, "small": 0.1, "medium": 0.05, "clip": 0.15}, tower_alone=True),
    Phase(2_000, {"tiny": 0.3, "small": 0.45, "clip": 0.25}),
    Phase(2_500, {"tiny": 0.15, "small": 0.4, "medium": 0.2, "clip": 0.25}),
    Phase(2_750, {"small": 0.3, "medium": 0.35, "large": 0.1, "clip": 0.2, "long clip": 0.05}),
    Phase(3_500, {"tiny": 0.25, "small": 0.5, "clip": 0.25}),
    Phase(4_000, {"small": 0.3, "medium": 0.35, "large": 0.1, "huge": 0.05, "clip": 0.15, "long clip": 0.05}),
    Phase(
        4_450,
        {"dense": 0.15, "small": 0.2, "medium": 0.3, "large": 0.1, "huge": 0.05, "clip": 0.15, "long clip": 0.05},
    ),
    Phase(6_500, {"dense": 0.4, "dense, zoomed": 0.2, "clip": 0.3, "medium": 0.1}, tower_alone=True),
    Phase(7_250, {"signs": 0.5, "dense": 0.15, "dense, zoomed": 0.1, "clip": 0.15, "medium": 0.1}, tower_alone=True),
    Phase(7_500, {"signs": 0.3, "dense": 0.3, "dense, zoomed": 0.15, "clip": 0.15, "medium": 0.1}, tower_alone=True),
    Phase(
        8_250,
        {"dense": 0.1, "small": 0.25, "medium": 0.25, "large": 0.1, "huge": 0.05, "clip": 0.2, "long clip": 0.05},
    ),
    Phase(8_500, {"signs": 0.35, "dense": 0.3, "dense, zoomed": 0.1, "clip": 0.1, "medium": 0.15}, tower_alone=True),
    Phase(
        1 << 60,
        {"dense": 0.1, "small": 0.25, "medium": 0.25, "large": 0.1, "huge": 0.05, "clip": 0.2, "long clip": 0.05},
    ),
)
TOWER_STEPS = CURRICULUM[0].until


def phase_of(step: int) -> Phase:
    return next(phase for phase in CURRICULUM if step < phase.until)


# What few scenes offer, and the list, which names everything there is.
ALWAYS_ASKED = ("list", "reading", "chart", "relation", "motion", "when", "order")


@dataclass(frozen=True)
class Lesson:
    """The scenes of one step, all of one size and length, with the questions asked about each.

    `size`: how many scenes the step has, of which a worker gets its share.
    """

    level: str
    size: int
    scenes: list[Scene]
    asked: list[list[Question]]


def draw_lesson(
    step: int,
    first: int,
    *,
    seed: int,
    alone: bool,
    work: int,
    questions: int,
    worker: int = 0,
    workers: int = 1,
) -> Lesson:
    """The lesson of a step, or one worker's share of it.

    `first` is the number of the first scene: all scenes of earlier steps come before it.
    `alone`: whether the vision tower learns without the language model, and nothing is asked.
    `work`: about this many tokens, text and visual, the latter weighted by what the tower costs. A lone tower gets
    fewer scenes a step than it could: many small steps take it further than few large ones.
    """
    rng = np.random.default_rng([seed, step])
    mix = phase_of(step).levels
    name = str(rng.choice(list(mix), p=np.array(list(mix.values())) / sum(mix.values())))
    level = LEVELS[LEVEL_NAMES.index(name)]
    height, width = draw_size(rng, level)
    frames, step_s = int(rng.choice(level.frames)), float(rng.choice(level.steps_s))
    visual = height * width // (PATCH_PX * MERGE) ** 2 * -(-frames // TEMPORAL)
    questions = 0 if alone else questions
    size = max(2, workers, work // (14 * questions + (10 if alone else 5) * visual))
    first += seed * 1_000_000_000
    share = range(worker, size, workers)
    scenes = [make_scene("train", first + number, name, (height, width), frames, step_s) for number in share]
    asked = [
        choose(ask(scene), questions, np.random.default_rng([seed, step, number])) if questions else []
        for scene, number in zip(scenes, share, strict=True)
    ]
    return Lesson(name, size, scenes, asked)


def choose(questions: list[Question], count: int, rng: np.random.Generator) -> list[Question]:
    """At most `count` questions in random order: one of each rare kind always, two of each other kind before thirds."""
    order = [questions[i] for i in rng.permutation(len(questions))]
    seen: dict[str, int] = defaultdict(int)
    ranked = []
    for number, question in enumerate(order):
        always = question.category in ALWAYS_ASKED and not seen[question.category]
        ranked.append((0 if always else 1 + seen[question.category] // 2, number, question))
        seen[question.category] += 1
    ranked.sort(key=lambda item: item[:2])
    return [question for _, _, question in sorted(ranked[:count], key=lambda item: item[1])]
