"""The generator: disjoint splits, repeatable scenes, and labels that are true of the pixels."""

from __future__ import annotations

import numpy as np
import pytest

from engines.demo import draw
from engines.demo.questions import ask, place_name
from engines.demo.scenes import LEVEL_NAMES, PATCH_PX, SPLITS, make_scene, scene_rng

COUNT_WORDS = {"count", "count_colour"}


def nearest_colour(pixel: np.ndarray) -> str:
    return min(draw.COLOURS, key=lambda name: np.abs(np.array(draw.COLOURS[name]) - pixel).sum())


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_the_splits_never_share_a_random_stream_or_a_scene(level: str) -> None:
    streams, pictures = set(), set()
    for split in SPLITS:
        for seed in range(40):
            streams.add(scene_rng(split, seed, level).integers(2**62))
            pictures.add(make_scene(split, seed, level).frames.tobytes())
    assert len(streams) == len(pictures) == 40 * len(SPLITS)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_the_same_seed_gives_the_same_scene_bit_for_bit(level: str) -> None:
    first, second = make_scene("train", 11, level), make_scene("train", 11, level)
    assert np.array_equal(first.frames, second.frames)
    assert first.things == second.things
    assert first.sign == second.sign
    assert np.array_equal(first.labels.character, second.labels.character)
    assert ask(first) == ask(second)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_every_thing_has_its_colour_at_its_centre_in_every_frame(level: str) -> None:
    for seed in range(30):
        scene = make_scene("validation", seed, level)
        assert scene.frames.dtype == np.uint8
        assert all(side % 32 == 0 for side in scene.image.shape[:2])
        assert len(scene.timestamps_s) == len(scene.frames)
        for number, frame in enumerate(scene.frames):
            for thing in scene.things:
                left, top = thing.corner(number)
                pixel = frame[top + thing.side_px // 2, left + thing.side_px // 2].astype(int)
                assert nearest_colour(pixel) == thing.colour


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_labels_lie_under_the_things_and_characters(level: str) -> None:
    for seed in range(20):
        scene = make_scene("validation", seed, level)
        for thing in scene.things:
            row, column = thing.y // PATCH_PX, thing.x // PATCH_PX
            around = scene.labels.colour[0, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
            assert 1 + list(draw.COLOURS).index(thing.colour) in around
        if scene.sign:
            found = set(scene.labels.character[0].ravel()) - {0}
            assert found == {1 + draw.SIGN_CHARACTERS.index(c) for c in scene.sign.text}


def test_answers_follow_from_the_scene() -> None:
    seen = set()
    for level in LEVEL_NAMES:
        for seed in range(40):
            scene = make_scene("test", seed, level)
            colours = [thing.colour for thing in scene.things]
            for question in ask(scene, chinese_share=0.0):
                seen.add(question.category)
                text, answer = question.text, question.answer
                if question.category == "count":
                    assert int(answer) == len(scene.things)
                elif question.category == "count_colour":
                    asked = [c for c in draw.COLOURS if f"{c} objects" in text]
                    assert int(answer) == colours.count(asked[0])
                elif question.category == "reading":
                    assert answer == scene.sign.text
                elif question.category == "list":
                    assert answer == ", ".join(f"{t.colour} {t.shape}" for t in scene.things)
                    assert [t.x for t in scene.things] == sorted(t.x for t in scene.things)
                elif question.category == "existence":
                    there = any(f" {t.colour} {t.shape}?" in text for t in scene.things)
                    assert answer == ("yes" if there else "no")
                elif question.category == "colour":
                    fitting = [t for t in scene.things if f"{t.shape} " in text or f"{t.shape}?" in text]
                    assert answer in {t.colour for t in fitting or scene.things}
                elif question.category == "position":
                    assert answer in {place_name(scene, t) for t in scene.things}
    assert seen == {
        "colour",
        "shape",
        "count",
        "count_colour",
        "position",
        "relation",
        "existence",
        "reading",
        "list",
        "motion",
    }


def test_a_scene_with_all_colours_can_be_asked_about() -> None:
    scene = make_scene("train", 576, "large")
    assert {thing.colour for thing in scene.things} == set(draw.COLOURS)
    assert any(question.category == "count_colour" for question in ask(scene))


def test_motion_is_what_the_frames_show() -> None:
    for seed in range(20):
        scene = make_scene("test", seed, "clip")
        for thing in scene.things:
            first, last = thing.corner(0), thing.corner(len(scene.frames) - 1)
            moved = (np.sign(last[0] - first[0]), np.sign(last[1] - first[1]))
            assert moved == {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), None: (0, 0)}[thing.move]


def test_yes_and_no_are_asked_alike_often() -> None:
    answers = [
        q.answer
        for seed in range(100)
        for q in ask(make_scene("train", seed, "small"), 0.0)
        if q.category == "existence"
    ]
    assert answers.count("yes") == answers.count("no") > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "exam", "seed": 0}, "unknown split"),
        ({"split": "test", "seed": -1}, "negative"),
        ({"split": "test", "seed": 0, "level": "huge"}, "unknown level"),
        ({"split": "test", "seed": 0, "size": (128, 100)}, "multiples of 32"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_scene(**arguments)
