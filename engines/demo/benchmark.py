"""The bundled labelled benchmark: 1,200 questions on still scenes and 300 on clips, the same ones always.

Its scenes are from the test split, which training never draws.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engines.answers import matches
from engines.demo.blind import BlindGuess
from engines.demo.questions import Question, ask
from engines.demo.samples import write_media
from engines.demo.scenes import Scene, make_scene
from engines.evaluation import Item, Score
from engines.media import FrameSampling

QUESTIONS_PER_SCENE = 4


@dataclass(frozen=True)
class Part:
    """Questions of one level: `quotas` per category, scenes in turn of the given sizes (height, width)."""

    name: str
    level: str
    sizes: tuple[tuple[int, int], ...]
    quotas: dict[str, int]


_STILL_QUOTAS = {
    "colour": 36,
    "shape": 36,
    "count": 37,
    "count_colour": 36,
    "position": 37,
    "relation": 36,
    "existence": 36,
    "reading": 37,
    "chart": 36,
    "list": 37,
    "describe": 36,
}
_CLIP_QUOTAS = {"motion": 40, "when": 40, "order": 40, "colour": 10, "shape": 10, "existence": 10}
STILLS = (
    Part("224 px", "medium", ((224, 224), (224, 320), (320, 224)), _STILL_QUOTAS),
    Part("448 px", "large", ((448, 448), (448, 384), (384, 448)), _STILL_QUOTAS),
    Part("672 px", "huge", ((640, 640), (576, 672), (672, 576), (448, 672), (672, 448)), _STILL_QUOTAS),
)
CLIPS = (
    Part("short clip", "clip", ((128, 160), (160, 160), (160, 192)), _CLIP_QUOTAS),
    Part("long clip", "long clip", ((128, 128), (128, 160), (160, 160)), _CLIP_QUOTAS),
)
SETS: dict[str, tuple[Part, ...]] = {"all": STILLS + CLIPS, "stills": STILLS, "clips": CLIPS}


def select(part: Part, split: str = "test") -> Iterator[tuple[Scene, list[Question]]]:
    """The scenes of a part with the questions asked about each: the first ones that fill the quotas."""
    missing = Counter(part.quotas)
    seed = 0
    while missing.total():
        scene = make_scene(split, seed, part.level, part.sizes[seed % len(part.sizes)])
        asked = ask(scene)
        chosen: list[Question] = []
        for index in np.random.default_rng(seed).permutation(len(asked)):
            question = asked[int(index)]
            wanted = missing[question.category] > 0 and question.category not in {q.category for q in chosen}
            if wanted and len(chosen) < QUESTIONS_PER_SCENE:
                chosen.append(question)
                missing[question.category] -= 1
        if chosen:
            yield scene, chosen
        seed += 1


def items(name: str, folder: Path, every: int = 1, split: str = "test") -> Iterator[Item]:
    """Every so-manieth question of a set, scene by scene; a scene's file is written when its first question comes.

    The benchmark is that of the test split; whoever tunes something takes the same questions of "validation".
    """
    number = 0
    for part in SETS[name]:
        for scene, questions in select(part, split):
            chosen = [question for place, question in enumerate(questions, start=number) if place % every == 0]
            number += len(questions)
            if not chosen:
                continue
            path = write_media(scene, folder, f"{part.level.replace(' ', '_')}_{scene.seed}")
            # A clip is sampled at its own rate, so that every frame is seen once.
            frames = FrameSampling(fps=1 / scene.step_s) if scene.is_clip else FrameSampling()
            for question in chosen:
                groups = {"category": question.category, "size": part.name, "language": question.language}
                yield Item((path,), question.text, question.answer, groups, frames)


def swapped(asked: list[Item]) -> list[Item]:
    """Every question with the media of the next scene of its size: what is answered right now was not seen."""
    found: list[Item] = []
    for one in asked:
        alike = [item for item in asked if item.groups["size"] == one.groups["size"]]
        media = list(dict.fromkeys(item.media for item in alike))
        other = media[(media.index(one.media) + 1) % len(media)]
        frames = next(item.frames for item in alike if item.media == other)
        found.append(replace(one, media=other, frames=frames))
    return found


def blind_scores(name: str, scenes: int = 600) -> dict[str, Score]:
    """By category, how often the best guess without an image is right, after so many training scenes a level."""
    guesses: dict[str, list[bool]] = defaultdict(list)
    for part in SETS[name]:
        guess = BlindGuess(make_scene("train", seed, part.level) for seed in range(scenes))
        for _, questions in select(part):
            for question in questions:
                guesses[question.category].append(matches(guess(question), question.answer))
    return {category: Score(len(rights), sum(rights)) for category, rights in guesses.items()}


def size(name: str, every: int = 1) -> int:
    """How many questions `items` gives."""
    return -(-sum(sum(part.quotas.values()) for part in SETS[name]) // every)
