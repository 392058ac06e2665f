"""The bundled benchmark: always the same questions, on scenes that training never draws, in known numbers."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from engines.demo import benchmark
from engines.demo.questions import ask
from engines.demo.samples import NEW_FROM, NEW_KINDS, new_example
from engines.demo.scenes import make_scene
from engines.media import load_media


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list:
    return list(benchmark.items("all", tmp_path_factory.mktemp("benchmark")))


def test_it_has_1200_questions_on_stills_and_300_on_clips(everything: list) -> None:
    kinds = Counter("clip" if "clip" in item.groups["size"] else "still" for item in everything)
    assert kinds == {"still": benchmark.size("stills"), "clip": benchmark.size("clips")} == {"still": 1200, "clip": 300}
    assert len({(item.media, item.question) for item in everything}) == 1500
    for part in (*benchmark.STILLS, *benchmark.CLIPS):
        found = Counter(item.groups["category"] for item in everything if item.groups["size"] == part.name)
        assert found == part.quotas


def test_it_is_the_same_one_always(everything: list) -> None:
    """Figures of two versions can be compared only if the questions are the same: change it knowingly."""
    text = "\n".join(f"{item.media[0].name} {item.question} {item.answer}" for item in everything)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "553a3cb95ca3be84"


def test_a_part_of_it_is_spread_over_all_and_another_split_has_other_scenes(everything: list, tmp_path: Path) -> None:
    assert [(i.question, i.answer) for i in benchmark.items("all", tmp_path, every=7)] == [
        (item.question, item.answer) for item in everything[::7]
    ]
    assert benchmark.size("all", 7) == len(everything[::7])
    tuning = list(benchmark.items("clips", tmp_path, every=3, split="validation"))
    assert len(tuning) == benchmark.size("clips", 3)
    tests = {item.media[0].read_bytes() for item in everything if "clip" in item.groups["size"]}
    assert not tests & {item.media[0].read_bytes() for item in tuning}


def test_its_files_hold_the_scenes(everything: list) -> None:
    for item in (everything[0], everything[900], everything[-1]):
        media = load_media(item.media[0], sampling=item.frames)
        level, _, seed = item.media[0].stem.rpartition("_")
        part = next(p for p in (*benchmark.STILLS, *benchmark.CLIPS) if p.name == item.groups["size"])
        assert level.replace("_", " ") == part.level
        scene = make_scene("test", int(seed), part.level, part.sizes[int(seed) % len(part.sizes)])
        assert media.n_frames == len(scene.frames)
        for frame, drawn in zip(media.frames, scene.frames, strict=True):
            # A clip went through a video codec.
            assert abs(frame.astype(float) - drawn).mean() < (4 if scene.is_clip else 1e-9)
        assert (item.question, item.answer) in {(q.text, q.answer) for q in ask(scene)}


def test_swapped_questions_show_another_scene_of_the_same_size(everything: list) -> None:
    part = [item for item in everything if item.groups["size"] in ("224 px", "short clip")]
    for before, after in zip(part, benchmark.swapped(part), strict=True):
        assert (before.question, before.answer, before.groups) == (after.question, after.answer, after.groups)
        assert before.media != after.media
        assert before.media[0].stem.rpartition("_")[0] == after.media[0].stem.rpartition("_")[0]


@pytest.mark.parametrize("kind", sorted(NEW_KINDS))
def test_a_new_example_is_in_no_benchmark_and_its_answer_is_true(kind: str, tmp_path: Path) -> None:
    for seed in range(5):
        example = new_example(tmp_path, kind, seed)
        number = int(example.path.stem.removeprefix("scene_"))
        assert number >= NEW_FROM
        assert example.category in NEW_KINDS[kind][1]
        scenes = [make_scene("test", number, level, step_s=0.5) for level in NEW_KINDS[kind][0]]
        asked = [(q.text, q.answer) for scene in scenes for q in ask(scene, chinese_share=0.0)]
        assert (example.question, example.answer) in asked
        assert load_media(example.path).kind == kind
        assert new_example(tmp_path, kind, seed) == example
