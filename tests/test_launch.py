"""The command line, as a person uses it: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import gradio
import pytest

from engines.demo import benchmark
from engines.evaluation import Item
from engines.experts.calibration import CACHE_VARIABLE
from launch import main

ROOT = Path(__file__).resolve().parent.parent
MEDIA = Path(gradio.__file__).parent / "media_assets"


def launch(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize(
    "media",
    [
        [MEDIA / "images/lion.jpg"],
        [MEDIA / "images/tower.jpg"],
        [MEDIA / "videos/world.mp4"],
        [MEDIA / "videos/b.avi"],
        [MEDIA / "images/lion.jpg", MEDIA / "videos/b.avi", MEDIA / "images/tower.jpg"],
    ],
    ids=lambda media: "+".join(path.name for path in media),
)
def test_compare_on_real_files(media: list[Path]) -> None:
    """Answers, traces and reports for both sides; nothing but JSON on stdout."""
    done = launch(
        "run", *media, "--question", "What is shown?", "--compare", "--json", "--max-new-tokens", 6,
        "--set", "pruning.keep_ratio=0.25", "--set", "experts.top_k=2", "--set", "precision.experts=int8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    for side in ("full", "compressed"):
        result = outcome[side]
        assert isinstance(result["answer"], str)
        assert 1 <= len(result["tokens"]) <= 6
        assert {span["name"] for span in result["trace"]["spans"]} >= {"decode media", "vision encode", "prefill"}
        assert result["ttft_s"] > 0
        assert len({frame["item"] for frame in result["prune_report"]["frames"]}) == len(media)
    report = outcome["compressed"]["prune_report"]
    assert report["tokens_before"] == outcome["full"]["visual_tokens"]
    assert report["achieved_keep_ratio"] == pytest.approx(0.25, abs=0.03)
    experts = outcome["compressed"]["expert_report"]
    assert experts["pairs_computed"] * 2 == experts["pairs_full"]
    assert "full: prefill" in done.stderr


def test_judging_prints_both_sides_as_json() -> None:
    common = ["clips", "--every", 150, "--json", "--set", "pruning.keep_ratio=0.5"]
    done = launch("robustness", *common, timeout_s=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["questions"] == 2
    assert len(found["levels"]) == 18
    done = launch("drift", *common)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answers"]["items"] == 2
    assert found["visual_tokens"]["p95"] > 0


def test_one_run_prints_its_result_as_json() -> None:
    done = launch("run", "-q", "Hello?", "--json", "--max-new-tokens", 3)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"] == 2


def test_a_run_without_json_is_for_people() -> None:
    done = launch(
        "run", MEDIA / "images/lion.jpg", "-q", "What?", "--compare", "--repeats", 2, "--max-new-tokens", 3
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "medians of 2 pairs" in done.stdout
    assert "time to first token" in done.stdout
    assert "ratio" in done.stdout


def test_eval_prints_accuracy_by_category_with_intervals() -> None:
    done = launch("eval", "clips", "--every", 50, "--json", "--set", "pruning.keep_ratio=0.5")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["set"] == "clips"
    assert found["overall"]["asked"] == len(found["answers"]) == 6
    assert found["overall"]["low"] <= found["overall"]["accuracy"] <= found["overall"]["high"]
    assert sum(score["asked"] for score in found["category"].values()) == 6
    assert found["achieved_keep_ratio"] == pytest.approx(0.5, abs=0.03)
    assert found["config"]["pruning"]["keep_ratio"] == 0.5
    assert "6/6" in done.stderr


def test_help_teaches() -> None:
    done = launch("--help")
    assert done.returncode == 0
    for word in (
        "--model",
        "--device",
        "--host",
        "--port",
        "--share",
        "--auth",
        "--max-upload-mb",
        "--no-api",
        "--api-keys",
        "--no-open",
        "run",
        "eval",
        "calibrate",
        "check",
    ):
        assert word in done.stdout
    assert "pruning.keep_ratio=0.5" in launch("run", "--help").stdout


def test_check_says_what_works_and_why_not() -> None:
    done = launch("check")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert any(line.startswith("yes  int8") for line in lines)
    for line in lines:
        assert line.startswith("yes") or (line.startswith("no ") and line.endswith("."))


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--model", "/no/such/model"], 2, "There is no checkpoint folder /no/such/model"),
        (["--device", "cuda:77"], 2, "Device 'cuda:77' is not there"),
        (["--device", "gpu"], 2, "Device 'gpu' is not known"),
        (["--dtype", "int4"], 2, "Number format 'int4' is not known"),
        (["--port", "0"], 2, "must be from 1 to 65535"),
        (["--host", "203.0.113.7"], 2, "Cannot listen on 203.0.113.7"),
        (["--auth", "nobody"], 2, "USER:PASSWORD"),
        (["--max-upload-mb", "0"], 2, "must be at least 1"),
        (["--prefix-cache-mb", "0"], 2, "must be at least 1"),
        (["--api-keys", "/no/such/keys"], 2, "The key file /no/such/keys cannot be read"),
        (["--api-keys", str(ROOT / "pyproject.toml")], 2, "Line 1 of the key file"),
        (["--no-api", "--api-keys", "keys"], 2, "--no-api and --api-keys exclude each other"),
        (["run", "-q", "x", "--set", "pruning.keep_ratio=2"], 2, "at most 1"),
        (["run", "-q", "x", "--set", "pruning.options.power=2"], 2, "mmr has balance"),
        (["run", "-q", "x", "--set", "experts.top_k=99"], 2, "at most 4"),
        (["run", "-q", "x", "--set", "experts.method=best"], 2, "one of off, modality, alignment"),
        (["calibrate", "vision"], 2, "no calibration of vision"),
        (["calibrate", "experts", "--target", "1"], 2, "--target is 1.0"),
        (["run", "-q", "x", "--max-new-tokens", "0"], 2, "at least 1"),
        (["run", "-q", "x", "--fps", "2", "--frames", "4"], 2, "exclude each other"),
        (["run", "-q", "x", "--repeats", "3"], 2, "--repeats needs --compare"),
        (["eval", "everything"], 2, "choose one of all, stills, clips"),
        (["robustness", "everything"], 2, "choose one of all, stills, clips"),
        (["drift", "--every", "0"], 2, "--every is 0"),
        (["drift", "--clip", "/no/such/folder"], 2, "is not a folder"),
        (["eval", "--every", "0"], 2, "--every is 0"),
        (["eval", "--set", "pruning.keep_ratio=0"], 2, "above 0"),
        (["run", "-q", ""], 1, "The question is empty"),
        (["run", "/no/such/photo.jpg", "-q", "x"], 1, "photo.jpg"),
        (["run", str(ROOT / "pyproject.toml"), "-q", "x"], 1, "pyproject.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: list[str], code: int, sentence: str) -> None:
    done = launch(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("Loading")]
    assert len(said) == 1, done.stderr
    assert sentence in said[0]


def test_a_busy_port_is_said_in_one_line_before_the_model_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launch("--port", port, "--no-open")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"launch.py: Cannot listen on 127.0.0.1:{port} (Address already in use); choose another --port."
    ]


def test_a_calibration_is_printed_and_kept(
    tiny_folders: dict[str, Path],
    media_files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = [Item((media_files[name],), "What?", "") for name in ("tall", "wide", "tall", "wide")]
    monkeypatch.setattr(benchmark, "items", lambda name, folder, every, split: iter(items[::every]))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    command = ["calibrate", "experts", "--model", str(tiny_folders["qwen3_vl_moe"]), "--device", "cpu", "--every", "2"]
    assert main(command) == 0
    (kept,) = (tmp_path / "experts").iterdir()
    said = capsys.readouterr()
    assert str(kept) in said.out
    assert "modality.visual_threshold" in said.out
    assert "mean over 2 prompts" in said.out
    assert "thresholds" in said.err
    kept.write_text("{")
    assert main(command) == 0, "over one that cannot be used"
    kept.write_text("{")
    assert main(["run", "-q", "x", "--model", str(tiny_folders["qwen3_vl_moe"]), "--device", "cpu"]) == 2
    assert "delete it or run launch.py calibrate experts" in capsys.readouterr().err
