"""Labelled questions about a scene. Every answer follows from the scene's own list of objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engines.demo import draw
from engines.demo.layout import Event, Thing
from engines.demo.scenes import Scene, scene_rng
from engines.demo.words import CHINESE, ENGLISH, PLACES, Language, article

CHINESE_SHARE = 0.25

# Centres nearer than this share of a side to a border between two thirds are not asked about: both names
# would do.
_BORDER = 0.03


@dataclass(frozen=True)
class Question:
    """`template` names category, language and phrasing: the finest thing a blind guess can know beside the
    text.
    """

    category: str
    text: str
    answer: str
    language: str
    template: str


@dataclass(frozen=True)
class Fact:
    """A question before it is put in words. Fills and answer use English keys; (colour, shape) stands for a thing.

    An answer is a key, a list of things, or what a description must say.
    """

    category: str
    answer: str | tuple[Name, ...] | Description
    what: Name = (None, None)
    other: Name = (None, None)
    colour: str | None = None
    event: str | None = None


Name = tuple[str | None, str | None]


@dataclass(frozen=True)
class Description:
    """The facts of a one-sentence description, each of which must be right."""

    things: int
    leftmost: Name
    sign: str | None
    bars: int | None


def _handles(things: tuple[Thing, ...], thing: Thing) -> list[Name]:
    """The (colour, shape) names that fit this thing alone."""
    names: list[Name] = [(thing.colour, thing.shape), (thing.colour, None), (None, thing.shape)]
    return [n for n in names if sum(_fits(n, t) for t in things) == 1]


def _fits(name: Name, thing: Thing) -> bool:
    return name[0] in (None, thing.colour) and name[1] in (None, thing.shape)


def _colours(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    if len(scene.things) == 1:
        names = [(None, str(rng.choice([scene.things[0].shape, "object"])))]
        return [Fact("colour", scene.things[0].colour, names[0])]
    return [
        Fact("colour", t.colour, (None, t.shape)) for t in scene.things if (None, t.shape) in _handles(scene.things, t)
    ]


def _shapes(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    if len(scene.things) == 1:
        name = (str(rng.choice([scene.things[0].colour, ""])) or None, None)
        return [Fact("shape", scene.things[0].shape, name)]
    return [
        Fact("shape", t.shape, (t.colour, None)) for t in scene.things if (t.colour, None) in _handles(scene.things, t)
    ]


def _changes(scene: Scene) -> bool:
    """Things come or go, so that how many there are depends on when one looks."""
    return any(thing.event for thing in scene.things)


def _counts(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    return [] if _changes(scene) else [Fact("count", str(len(scene.things)))]


def _colour_counts(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    if _changes(scene):
        return []
    present = sorted({t.colour for t in scene.things})
    absent = [c for c in draw.COLOURS if c not in present]
    asked = [str(rng.choice(present))] if present else []
    asked += [str(rng.choice(absent))] if absent else []
    repeated = [c for c in present if sum(t.colour == c for t in scene.things) > 1 and c not in asked]
    return [Fact("count_colour", str(sum(t.colour == c for t in scene.things)), colour=c) for c in asked + repeated]


def place_name(scene: Scene, thing: Thing) -> str | None:
    """The ninth of the image that the thing's centre lies in, or None when it is near a border."""
    height, width = scene.image.shape[:2]
    parts = (thing.y / height, thing.x / width)
    if any(abs(p - border) < _BORDER for p in parts for border in (1 / 3, 2 / 3)):
        return None
    return PLACES[int(parts[0] * 3)][int(parts[1] * 3)]


def _positions(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    facts = []
    for thing in scene.things:
        handles, place = _handles(scene.things, thing), place_name(scene, thing)
        if handles and place and thing.move is None:
            facts.append(Fact("position", place, handles[int(rng.integers(len(handles)))]))
    return facts


def side_name(thing: Thing, other: Thing) -> str | None:
    """On which side of `other` the thing is, along the axis that clearly dominates, or None."""
    dx, dy = thing.x - other.x, thing.y - other.y
    if abs(dx) > 1.5 * abs(dy):
        return "left" if dx < 0 else "right"
    if abs(dy) > 1.5 * abs(dx):
        return "above" if dy < 0 else "below"
    return None


def _relations(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    facts = []
    for thing in scene.things:
        for other in scene.things:
            mine, theirs = _handles(scene.things, thing), _handles(scene.things, other)
            side = None if thing is other or thing.move or other.move else side_name(thing, other)
            if side and mine and theirs:
                pick = (int(rng.integers(len(mine))), int(rng.integers(len(theirs))))
                facts.append(Fact("relation", side, mine[pick[0]], theirs[pick[1]]))
    rng.shuffle(facts)
    return facts[:3]


def _existences(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    """Two yes and two no. Half of the no's take a colour and a shape that are both there, but not
    together.
    """
    pairs = [(t.colour, t.shape) for t in scene.things]
    if not pairs:
        return []
    yes = [pairs[int(rng.integers(len(pairs)))] for _ in range(2)]
    mixed = sorted({(c, s) for c, _ in pairs for _, s in pairs if (c, s) not in pairs})
    no: list[tuple[str, str]] = []
    while len(no) < 2:
        candidate = (str(rng.choice(list(draw.COLOURS))), str(rng.choice(draw.SHAPES)))
        if mixed and rng.random() < 0.5:
            candidate = mixed[int(rng.integers(len(mixed)))]
        if candidate not in pairs:
            no.append(candidate)
    return [Fact("existence", "yes", p) for p in yes] + [Fact("existence", "no", p) for p in no]


def _readings(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    return [Fact("reading", scene.sign.text)] if scene.sign else []


def _lists(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    # In a clip the order may change while things move, so the list is a question about stills.
    if scene.is_clip or not scene.things:
        return []
    return [Fact("list", tuple((t.colour, t.shape) for t in scene.things))]


def _motions(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    facts = []
    for thing in scene.things:
        handles = _handles(scene.things, thing)
        if thing.move and handles:
            facts.append(Fact("motion", thing.move, handles[int(rng.integers(len(handles)))]))
    return facts


def _charts(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    if scene.chart is None:
        return []
    return [Fact("chart", str(v), colour=c) for c, v in zip(scene.chart.colours, scene.chart.values, strict=True)]


def _descriptions(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    if scene.is_clip or not scene.things:
        return []
    first = scene.things[0]
    said = Description(
        len(scene.things),
        (first.colour, first.shape),
        scene.sign.text if scene.sign else None,
        len(scene.chart.values) if scene.chart else None,
    )
    return [Fact("describe", said)]


def event_second(scene: Scene, event: Event) -> int:
    """The whole second that questions about an event go by."""
    return round(event.frame * scene.step_s)


def _whens(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    facts = []
    for thing in scene.things:
        handles = _handles(scene.things, thing)
        if thing.event and handles:
            second = str(event_second(scene, thing.event))
            handle = handles[int(rng.integers(len(handles)))]
            facts.append(Fact("when", second, handle, event=thing.event.name))
    return facts


def _orders(scene: Scene, rng: np.random.Generator) -> list[Fact]:
    facts = []
    for index, thing in enumerate(scene.things):
        for other in scene.things[index + 1 :]:
            one, two = (thing.colour, thing.shape), (other.colour, other.shape)
            if not thing.event or not other.event or thing.event.name != other.event.name or one == two:
                continue
            first = one if thing.event.frame < other.event.frame else two
            if rng.random() < 0.5:
                one, two = two, one
            facts.append(Fact("order", (first,), one, two, event=thing.event.name))
    return facts


# A new category: a function here and its phrasings in words.py.
_ASKERS: dict[str, Callable[[Scene, np.random.Generator], list[Fact]]] = {
    "list": _lists,
    "reading": _readings,
    "chart": _charts,
    "count": _counts,
    "colour": _colours,
    "shape": _shapes,
    "count_colour": _colour_counts,
    "position": _positions,
    "relation": _relations,
    "existence": _existences,
    "describe": _descriptions,
    "motion": _motions,
    "when": _whens,
    "order": _orders,
}


def _answer(fact: Fact, language: Language) -> str:
    if isinstance(fact.answer, Description):
        said = fact.answer
        return language.describe(said.things, language.named(*said.leftmost), said.sign, said.bars)
    if isinstance(fact.answer, tuple):
        return language.comma.join(language.named(colour, shape) for colour, shape in fact.answer)
    if fact.category == "reading":
        return fact.answer
    if fact.category == "when":
        return language.seconds.format(fact.answer)
    return language.answer(fact.answer, fact.category)


def phrase(fact: Fact, language: Language, rng: np.random.Generator) -> Question:
    """Put a fact in words, in one of the language's phrasings."""
    number = int(rng.integers(len(language.templates[fact.category])))
    text = language.templates[fact.category][number].format(
        a=article(language.named(*fact.what)),
        what=language.named(*fact.what),
        other=language.named(*fact.other),
        colour=language.word(fact.colour or ""),
        event=language.word(fact.event or ""),
    )
    return Question(
        fact.category,
        text,
        _answer(fact, language),
        language.name,
        f"{fact.category}/{language.name}/{number}",
    )


def ask(scene: Scene, chinese_share: float = CHINESE_SHARE) -> list[Question]:
    """All questions of a scene, in the fixed order of the categories; the same list for the same scene
    always.
    """
    rng = scene_rng(scene.split, scene.seed, scene.level.name, purpose=1)
    return [
        phrase(fact, CHINESE if rng.random() < chinese_share else ENGLISH, rng)
        for asker in _ASKERS.values()
        for fact in asker(scene, rng)
    ]
