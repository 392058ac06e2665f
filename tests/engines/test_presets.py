"""Presets: which scene is seen in which media, how much is pruned, and that nothing else is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.config import CompressionConfig
from engines.media import FrameSampling, load_media
from engines.media.record import media_of
from engines.presets import SCENES, Facts, paper_share, pick, preset, suggest
from engines.pruning import create

PHOTO = Facts("image", 1200, 800, 1, None, 0.1)
PAGE = Facts("image", 1240, 1754, 1, None, 0.9)
CLIP = Facts("video", 640, 360, 300, 30.0, 0.1)


def clip(frames: int, fps: float | None = 30.0) -> Facts:
    return replace(CLIP, frames=frames, fps=fps)


@pytest.mark.parametrize(
    ("facts", "scene"),
    [
        ([], None),
        ([PHOTO], "photo"),
        ([PAGE], "document"),
        ([PAGE, PAGE], "document"),
        ([PAGE, PHOTO], "photo"),
        ([CLIP], "video"),
        ([PAGE, CLIP], "video"),
        ([replace(PAGE, width=1754, height=1240)], "document"),  # scanned lying on its side
        ([replace(PAGE, paper=0.4)], "photo"),  # a phone's photograph has the shape of a page too
        ([replace(PAGE, width=1240, height=1240)], "photo"),
        ([replace(PAGE, width=248, height=351)], "photo"),
    ],
)
def test_the_scene_is_picked_by_kind_shape_size_and_paper(facts: list[Facts], scene: str | None) -> None:
    assert pick(facts) == scene
    found = suggest(facts)
    assert (found.scene if found else None) == scene


@pytest.mark.parametrize(
    ("frames", "keep"),
    [(1, 0.8), (128, 0.8), (129, 0.7), (512, 0.7), (513, 0.65), (768, 0.6), (1024, 0.55), (20000, 0.55)],
)
def test_long_videos_bear_35_to_45_percent(frames: int, keep: float) -> None:
    found = preset("video", [CLIP, clip(frames)] if frames > 300 else [clip(frames)])
    assert found.keep_ratio == keep
    assert f"{frames:,} frames" in found.reason
    assert ("bear 35 to 45 %" in found.reason) == (frames > 512)


@pytest.mark.parametrize(
    ("pages", "keep"), [(1, 0.9), (2, 0.9), (3, 0.85), (8, 0.85), (9, 0.8), (13, 0.75), (17, 0.7), (40, 0.7)]
)
def test_thick_documents_bear_20_to_30_percent(pages: int, keep: float) -> None:
    found = preset("document", [PAGE] * pages)
    assert found.keep_ratio == keep
    assert ("bear 20 to 30 %" in found.reason) == (pages > 8)


def test_small_photos_keep_more() -> None:
    assert preset("photo", [PHOTO]).keep_ratio == 0.5
    assert preset("photo", [replace(PHOTO, width=320, height=240)]).keep_ratio == 0.75


def test_slow_clips_are_not_chosen_by_what_repeats() -> None:
    assert preset("video", [clip(300, 30.0)]).method == "temporal"
    assert preset("video", [clip(300, None)]).method == "temporal"
    assert preset("video", [clip(300, 1.0)]).method == "mmr"


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("facts", [[], [PHOTO], [PAGE] * 10, [clip(2000)]])
def test_a_preset_changes_pruning_and_nothing_else(scene: str, facts: list[Facts]) -> None:
    """Named by hand it need not fit the media; it must still be settings that can be run."""
    found = preset(scene, facts)  # type: ignore[arg-type]
    before = CompressionConfig.full().with_settings(
        ["pruning.method=relevance", "pruning.options.theta=0.3", "experts.top_k=2", "cache.encoder=true"]
    )
    after = found.apply(before)
    assert (after.pruning.method, after.pruning.keep_ratio) == (found.method, found.keep_ratio)
    assert replace(after, pruning=before.pruning) == before
    create(after.pruning.method, after.pruning.options)
    assert found.label
    assert found.reason.endswith(".")


def test_options_of_the_same_method_stay() -> None:
    before = CompressionConfig.full().with_settings(["pruning.method=mmr", "pruning.options.balance=0.3"])
    assert preset("photo").apply(before).pruning.options == {"balance": 0.3}


def test_paper_is_light_and_without_colour() -> None:
    page = np.full((300, 200, 3), 240, dtype=np.uint8)
    assert paper_share(page) == 1.0
    page[:150] = (240, 120, 120)
    assert paper_share(page) == pytest.approx(0.5, abs=0.02)
    assert paper_share(np.zeros((1, 1, 3), dtype=np.uint8)) == 0.0


def test_facts_are_those_of_the_whole_clip(media_files: dict[str, Path]) -> None:
    """Whatever is sampled of it: the file has 16 frames at 8 a second."""
    for frames in (1, 4):
        facts = Facts.of(load_media(media_files["clip"], sampling=FrameSampling(fps=None, num_frames=frames)))
        assert (facts.kind, facts.width, facts.height, facts.frames) == ("video", 160, 128, 16)
        assert facts.fps == pytest.approx(8.0)
    still = Facts.of(load_media(media_files["wide"]))
    assert (still.kind, still.width, still.height, still.frames, still.fps) == ("image", 256, 160, 1, None)
    unknown = media_of("video", "clip", np.zeros((5, 64, 64, 3), dtype=np.uint8), (0.0, 1.0, 2.0, 3.0, 4.0))
    assert Facts.of(unknown).frames == 5
