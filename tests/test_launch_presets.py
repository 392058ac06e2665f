"""--preset on the command line: which settings it starts from, what it says, and that --set has the last word."""

from __future__ import annotations

from pathlib import Path

import pytest

import launch
from app.cli.common import PRESETS, preset_config
from engines.config import CompressionConfig
from engines.presets import SCENES, preset
from engines.results import RunRequest


def config_of(arguments: list[str], media: tuple[Path, ...] = ()) -> CompressionConfig:
    options = launch.build_parser().parse_args(["run", "-q", "What?", *arguments])
    return preset_config(options, RunRequest("What?", media)).with_settings(options.assignments)


def test_scenes_are_those_of_the_engine() -> None:
    assert PRESETS == SCENES


def test_auto_goes_by_the_media_and_says_why(media_files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(["--preset", "auto"], (media_files["clip"],))
    assert (config.pruning.method, config.pruning.keep_ratio) == ("temporal", 0.8)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("preset: Video question answering, keep ratio 0.8. 16 frames at 8 frames a second")


def test_set_has_the_last_word(media_files: dict[str, Path]) -> None:
    config = config_of(["--set", "pruning.keep_ratio=0.25", "--preset", "photo"], (media_files["wide"],))
    assert (config.pruning.method, config.pruning.keep_ratio) == ("mmr", 0.25)


@pytest.mark.parametrize("scene", SCENES)
def test_named_presets_need_no_media(scene: str) -> None:
    assert config_of(["--preset", scene]) == preset(scene).apply(CompressionConfig.full())  # type: ignore[arg-type]


def test_without_media_auto_is_the_full_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert config_of(["--preset", "auto"]) == CompressionConfig.full()
    assert "no image or video" in capsys.readouterr().err
    assert config_of([]) == CompressionConfig.full()
    assert capsys.readouterr().err == ""


def test_eval_has_no_media_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["eval", "clips", "--preset", "auto"]) == 2
    assert "--preset auto goes by the media of one run" in capsys.readouterr().err
