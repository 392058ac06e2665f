"""Robustness: the noise that was asked for is the noise that is there, and each level is counted for each side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.compare import SIDES
from engines.config import CompressionConfig
from engines.evaluation import Item
from engines.judge import robustness
from engines.judge.ask import Asker
from engines.judge.ladder import CLEAN, LADDER, Rung
from engines.judge.noise import add_noise, snr_db
from engines.judge.perspective import corners, warp
from engines.results import EngineError, Event, Finished, MediaReady, RunRequest
from tests.app.fake import FakeEngine, media_of, result


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(30, 220, (64, 96, 3), dtype=np.uint8)


@pytest.mark.parametrize("target_db", [20.0, 15.0, 10.0, 5.0])
@pytest.mark.parametrize("name", ["random", "dark", "white"])
def test_the_ratio_is_reached(name: str, target_db: float) -> None:
    frame = picture() if name == "random" else np.full((64, 96, 3), 8 if name == "dark" else 255, np.uint8)
    noisy = add_noise(frame, target_db, np.random.default_rng(1))
    slow = 10 * np.log10((frame.astype(float) ** 2).mean() / ((noisy - frame.astype(float)) ** 2).mean())
    assert snr_db(frame, noisy) == pytest.approx(slow, abs=0.01)
    assert slow == pytest.approx(target_db, abs=0.1 if name == "random" else 0.3)


def test_a_black_picture_and_an_unchanged_one() -> None:
    black = np.zeros((4, 4, 3), np.uint8)
    assert (add_noise(black, 5, np.random.default_rng(0)) == black).all()
    assert snr_db(black + 1, black + 1) == float("inf")


def test_the_view_from_aside_keeps_all_of_the_picture_and_strength_0_is_none() -> None:
    random = np.random.default_rng(0)
    frame = picture()[None]
    assert (warp(frame, corners(0.0, random)) == frame).all()
    moved = corners(0.6, random)
    assert ((moved > 0) & (moved < 1)).all()
    assert (warp(frame, moved) != frame).any()


def test_the_same_content_and_seed_give_the_same_pixels() -> None:
    clip = media_of("clip.mp4", frames=3)
    for rung in LADDER[1:]:
        one, again, other = (rung.apply(clip, seed) for seed in (0, 0, 1))
        assert (one.frames == again.frames).all()
        assert (one.frames != other.frames).any()
        assert one.frames.shape == clip.frames.shape
        assert one.timestamps_s == clip.timestamps_s
        assert one.digest != clip.digest
    assert CLEAN.apply(clip) is clip


class Seeing(FakeEngine):
    """Right as long as it sees what it was shown; the compressed one sees less. Refuses "bad" questions."""

    def _run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        clean = media_of()
        media = clean if request.alter is None else request.alter(clean)
        if request.question == "bad":
            raise EngineError("It is bad.")
        yield MediaReady((media,))
        least = 12 if config == CompressionConfig.full() else 18
        right = snr_db(clean.frames, media.frames) > least
        yield Finished(replace(result(config, "red" if right else "blue")))


def ask(*questions: Item, rungs: tuple[Rung, ...] = LADDER[:5]) -> robustness.Robustness:
    config = CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5"])
    *_, found = robustness.measure(Asker(Seeing()), questions, config, rungs)
    return found


def test_each_level_is_counted_for_each_side() -> None:
    found = ask(
        Item((Path("a"),), "one", "red", {"category": "colour"}),
        Item((Path("a"),), "two", "blue", {"category": "shape"}),
        Item((Path("a"),), "three", ""),
        Item((Path("a"),), "bad", "red"),
    )
    assert (found.done, found.unlabelled, [one.reason for one in found.problems]) == (2, 1, ["It is bad."])
    right = {side: [found.of(side, rung).categories["colour"].right for rung in found.rungs] for side in SIDES}
    assert right == {"full": [1, 1, 1, 0, 0], "compressed": [1, 1, 0, 0, 0]}
    wrong = {side: [found.of(side, rung).categories["shape"].right for rung in found.rungs] for side in SIDES}
    assert wrong == {"full": [0, 0, 0, 1, 1], "compressed": [0, 0, 1, 1, 1]}
    assert found.of("compressed", LADDER[2]).category_points == {"colour": -100, "shape": 100}
    assert found.of("full", CLEAN).points == 0
    assert len(found.to_dict()["levels"]) == 10


def test_the_clean_level_is_always_there_and_a_stop_keeps_whole_questions() -> None:
    assert ask(Item((), "one", "red"), rungs=(LADDER[1],)).rungs == (CLEAN, LADDER[1])
    cancel = threading.Event()
    steps = robustness.measure(
        Asker(Seeing(), cancel=cancel), [Item((), "one", "red")] * 5, CompressionConfig.full(), LADDER[:2]
    )
    assert next(steps).done == 1
    cancel.set()
    assert not list(steps)


def test_a_set_of_which_nothing_can_be_asked_says_why() -> None:
    with pytest.raises(EngineError, match=r"None of the questions could be asked.*It is bad\."):
        ask(Item((), "bad", "red"), Item((), "bad", "red"))
