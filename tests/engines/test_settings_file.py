"""Settings as a file: what was saved is what is loaded, and everything else gets a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines import settings_file
from engines.config import CompressionConfig

CONFIG = CompressionConfig.full().with_settings(
    ["pruning.keep_ratio=0.3", "pruning.options.balance=0.4", "experts.top_k=2", "precision.all=int8", "kv.bits=4"]
)


def test_saved_settings_load_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(settings_file.to_text(CONFIG))
    assert settings_file.read(file) == CONFIG
    assert json.loads(file.read_text())["schema_version"] == 1


def test_what_is_left_out_is_the_full_models() -> None:
    found = settings_file.from_document({"schema_version": 1, "pruning": {"keep_ratio": 0.5}})
    assert found == CompressionConfig.full().with_settings(["pruning.keep_ratio=0.5"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "no schema_version"),
        ('{"schema_version": 2}', "schema_version is 2"),
        ('{"schema_version": true}', "schema_version is True"),
        ('{"schema_version": 1, "prunning": {}}', "Unknown group of settings 'prunning'"),
        ('{"schema_version": 1, "pruning": {"kep_ratio": 1}}', "Unknown setting pruning.kep_ratio"),
        ('{"schema_version": 1, "pruning": {"keep_ratio": 7}}', "pruning.keep_ratio is 7"),
        ('{"schema_version": 1, "pruning": {"keep_ratio": NaN}}', "NaN is no number"),
        ('{"schema_version": 1, "pruning": 3}', "pruning must hold settings"),
        ("[" * 50_000, "is not JSON"),
        ("\xff\xfe", "is not JSON"),
        (" " * 70_000, "larger than 64 KiB"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence_with_the_files_name(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"settings file mine\.json") as refused:
        settings_file.read(file, "mine.json")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="could not be read"):
        settings_file.read(tmp_path / "missing.json")


def test_settings_as_options_give_the_same_settings() -> None:
    others = ["modality.video=false", "pruning.method=random", "pruning.options.seed=3"]
    for config in (CONFIG, CompressionConfig.full().with_settings(others)):
        assert CompressionConfig.full().with_settings(settings_file.assignments(config)) == config
    assert settings_file.assignments(CompressionConfig.full()) == ()
