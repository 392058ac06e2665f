"""A sweep that is killed twice, really, ends with the same table as one that was left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engines.sweep.store import SweepStore
from launch import main
from tests.test_launch import ROOT


def command(checkpoint: Path, questions: Path, store: Path, *more: str) -> list[str]:
    return [
        "sweep", str(questions), "--model", str(checkpoint), "--device", "cpu",
        "--axis", "pruning.keep_ratio=0.75,0.5,0.25", "--axis", "experts.top_k=3,1", "--timed-items", "3",
        "--repeats", "2", "--json", "--store", str(store), *more,
    ]  # fmt: skip


def runs_in(store: Path) -> int:
    if not store.exists():
        return 0
    with SweepStore(store) as opened:
        return sum(map(opened.count, opened.plans()))


def quality(found: dict[str, Any]) -> list[dict[str, Any]]:
    clock = ("ttft_s", "total_s", "ttft_ratio", "total_ratio", "peak_bytes")
    return [{name: value for name, value in point.items() if name not in clock} for point in found["points"]]


def swept(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_sweep_killed_twice_ends_with_the_table_of_an_undisturbed_one(
    tiny_folders: dict[str, Path], media_files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    for name, path in media_files.items():
        (tmp_path / f"{name}{path.suffix}").write_bytes(path.read_bytes())
    rows = [
        {
            "media": f"{name}{media_files[name].suffix}",
            "question": f"What is {number}?",
            "answer": "x",
            "category": name,
        }
        for number in range(4)
        for name in media_files
    ]
    questions.write_text("\n".join(map(json.dumps, rows)))
    checkpoint = tiny_folders["qwen3_vl_moe"]
    store, whole = tmp_path / "killed.sqlite", tmp_path / "whole.sqlite"
    killed_at = []
    for killed in range(2):
        more = ["--resume"] if killed else []
        with subprocess.Popen(
            [sys.executable, str(ROOT / "launch.py"), *command(checkpoint, questions, store, *more)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            until = time.monotonic() + 60
            before = runs_in(store)
            while runs_in(store) < before + 15 and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        killed_at.append(runs_in(store))
    assert 15 <= killed_at[0] < killed_at[1]
    found, expected = (
        swept(command(checkpoint, questions, *where), capsys) for where in ((store, "--resume"), (whole,))
    )
    assert killed_at[1] < runs_in(store) == runs_in(whole) == 7 * (12 + 3)
    assert quality(found) == quality(expected)
    assert len(expected["points"]) == 7
    # Latency of the resumed sweep is measured on as many items.
    assert all(point["total_s"]["n"] == 3 for point in found["points"])
