"""The generator: disjoint splits, repeatable scenes, and labels that are true of the pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engines.demo import draw
from engines.demo.labels import FIRST_BAR, KINDS, PATCH_PX, TARGET
from engines.demo.questions import ask, place_name
from engines.demo.scenes import LEVEL_NAMES, MAX_PIXELS, SPLITS, make_scene, scene_rng
from engines.demo.words import CATEGORIES


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
    assert (first.sign, first.chart) == (second.sign, second.chart)
    assert all(np.array_equal(first.labels[kind], second.labels[kind]) for kind in KINDS)
    assert ask(first) == ask(second)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_every_thing_has_its_colour_at_its_centre_in_every_frame_that_shows_it(level: str) -> None:
    for seed in range(30):
        scene = make_scene("validation", seed, level)
        assert scene.frames.dtype == np.uint8
        assert all(side % 32 == 0 for side in scene.image.shape[:2])
        assert len(scene.timestamps_s) == len(scene.frames)
        assert scene.image.shape[0] * scene.image.shape[1] <= MAX_PIXELS
        for number, frame in enumerate(scene.frames):
            for thing in scene.things:
                left, top = thing.corner(number)
                middle = top + thing.side_px // 2, left + thing.side_px // 2
                if thing.visible(number):
                    assert nearest_colour(frame[middle].astype(int)) == thing.colour
                else:
                    shown = scene.frames[thing.event.frame if thing.event.name == "appear" else 0][middle]
                    assert np.abs(shown.astype(int) - frame[middle]).max() > 20


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_labels_lie_under_the_things_and_characters_and_bars(level: str) -> None:
    for seed in range(20):
        scene = make_scene("validation", seed, level)
        labels = scene.labels
        for frame in range(len(scene.frames)):
            shown = [thing for thing in scene.things if thing.visible(frame)]
            assert labels["centre"][frame].sum() == len(shown)
            for thing in shown:
                left, top = thing.corner(frame)
                row, column = (top + thing.side_px // 2) // PATCH_PX, (left + thing.side_px // 2) // PATCH_PX
                around = np.s_[frame, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
                assert 1 + KINDS["colour"].index(thing.colour) in labels["colour"][around]
                assert 1 + KINDS["shape"].index(thing.shape) in labels["shape"][around]
                if thing.move:
                    assert 1 + KINDS["motion"].index(thing.move) in labels["motion"][around]
        if scene.sign:
            found = set(labels["character"][0].ravel()) - {0}
            assert found == {1 + KINDS["character"].index(c) for c in scene.sign.text}
            assert set(labels["index"][0].ravel()) - {0} == set(range(1, len(scene.sign.text) + 1))
        if scene.chart:
            values = {1 + KINDS["value"].index(str(value)) for value in scene.chart.values}
            assert set(labels["value"][0].ravel()) - {0} == values


def test_signs_and_charts_hold_what_their_pixels_show() -> None:
    faces = set()
    for seed in range(120):
        scene = make_scene("test", seed, "medium")
        if scene.sign:
            faces.add(scene.sign.box[3] - scene.sign.box[1])
            assert 1 <= len(scene.sign.text) <= draw.SIGN_LENGTH
        chart = scene.chart
        if chart:
            assert len({(box[3] - box[1]) / value for value, box in zip(chart.values, chart.boxes, strict=True)}) == 1
            for colour, (left, top, right, bottom) in zip(chart.colours, chart.boxes, strict=True):
                bar = scene.image[top:bottom, left:right]
                assert nearest_colour(np.median(bar, (0, 1)).astype(int)) == colour
    assert len(faces) > 3


def test_of_several_signs_none_is_asked_about() -> None:
    scenes = [make_scene("train", seed, "signs", (160, 160)) for seed in range(5)]
    assert all((scene.labels["index"] == 1).sum() > 1 for scene in scenes)
    assert not any(
        question.category in ("reading", "describe") and "sign" in question.answer
        for scene in scenes
        for question in ask(scene)
    )


def test_every_face_has_its_own_shape_of_every_character() -> None:
    for face in draw.FACES:
        plates = {draw.sign_plate(c, face, 32, False, False)[0].tobytes() for c in draw.SIGN_CHARACTERS}
        assert len(plates) == len(draw.SIGN_CHARACTERS), face


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
                elif question.category == "chart":
                    asked = [c for c in scene.chart.colours if f"{c} bar" in text]
                    assert answer == str(scene.chart.values[scene.chart.colours.index(asked[0])])
                elif question.category == "describe":
                    first = scene.things[0]
                    assert f"{len(colours)} object" in answer
                    assert f"{first.colour} {first.shape}" in answer
                    assert ("says" in answer) == (scene.sign is not None)
                    assert scene.sign is None or scene.sign.text in answer
                elif question.category == "when":
                    events = {f"{round(t.event.frame * scene.step_s)} s" for t in scene.things if t.event}
                    assert answer in events
                elif question.category == "order":
                    event = "appear" if "appear" in text and "disappear" not in text else "disappear"
                    at = {f"{t.colour} {t.shape}": t.event.frame for t in scene.things if t.event}
                    asked = [name for name in at if name in text]
                    assert len(asked) == 2
                    assert answer == min(asked, key=at.__getitem__)
                    assert event in {t.event.name for t in scene.things if t.event}
    assert seen == set(CATEGORIES)


def test_events_fall_on_whole_seconds_that_the_prompt_names() -> None:
    """The prompt's timestamp of a frame pair, rounded down, is the answer to "when"."""
    for level in ("clip", "long clip"):
        for seed in range(60):
            scene = make_scene("test", seed, level)
            frames = [thing.event.frame for thing in scene.things if thing.event]
            assert len(frames) == len(set(frames))
            for frame in frames:
                pair = (scene.timestamps_s[frame] + scene.timestamps_s[frame + 1]) / 2
                assert frame % 2 == 0
                assert int(pair) == frame * scene.step_s


def test_stills_have_up_to_400_visual_tokens_and_several_aspect_ratios() -> None:
    shapes = {make_scene("test", seed, level).image.shape[:2] for level in ("medium", "huge") for seed in range(60)}
    tokens = {height * width // 32**2 for height, width in shapes}
    assert min(tokens) == 49
    assert 350 < max(tokens) <= 400
    assert len({height / width for height, width in shapes}) > 5
    assert max(max(shape) for shape in shapes) == 672


def test_a_scene_with_all_colours_can_be_asked_about() -> None:
    scene = make_scene("train", 0, "large")
    scene = replace(scene, things=tuple(replace(scene.things[0], colour=colour) for colour in draw.COLOURS))
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
        ({"split": "test", "seed": 0, "level": "vast"}, "unknown level"),
        ({"split": "test", "seed": 0, "size": (128, 100)}, "multiples of 32"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_scene(**arguments)


@pytest.mark.parametrize("level", ["medium", "clip"])
def test_every_thing_and_bar_has_its_own_patches(level: str) -> None:
    for seed in range(40):
        scene = make_scene("train", seed, level)
        for number, thing in enumerate(scene.things, start=1):
            where = scene.labels[TARGET] == number
            assert where.any(axis=(1, 2)).tolist() == [thing.visible(frame) for frame in range(len(scene.frames))]
            assert set(scene.labels["colour"][where]) == {1 + KINDS["colour"].index(thing.colour)}
        for bar, colour in enumerate(scene.chart.colours if scene.chart else ()):
            where = scene.labels[TARGET] == FIRST_BAR + bar
            assert set(scene.labels["colour"][where]) == {1 + KINDS["colour"].index(colour)}
