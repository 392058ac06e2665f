"""The README is true: its paths exist, its commands parse, its table of settings is the real one."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from engines import experts
from engines.config import CompressionConfig
from engines.pruning import METHODS
from launch import build_parser

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("launch.py")[2]
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if "launch.py" in line
]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_linked_files_exist(target: str) -> None:
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z]+/[\w./-]*)`", README))))
def test_named_paths_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    words = [word for word in shlex.split(command) if word != "--help"]
    options = build_parser().parse_args(words)
    CompressionConfig.full().with_settings(getattr(options, "assignments", []))


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (benchmarks\.\w+)", README))))
def test_benchmark_modules_exist(module: str) -> None:
    assert (ROOT / Path(*module.split("."))).with_suffix(".py").is_file()


def test_every_setting_is_in_the_table() -> None:
    for section in dataclasses.fields(CompressionConfig):
        for item in dataclasses.fields(section.default_factory):  # type: ignore[arg-type]
            if section.name == "precision":
                assert f".{item.name}`" in README
            elif "label" in item.metadata:
                assert f"`{section.name}.{item.name}" in README
    assert all(f"`{name}`" in README for name in METHODS)


def test_every_expert_method_and_option_is_in_the_table() -> None:
    for method in experts.describe_methods():
        assert f"`{method.name}`" in README
        for name, *_ in method.parameters:
            assert re.search(rf"`experts\.options\.{name}`|, `\.{name}`", README), name
