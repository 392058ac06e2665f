"""The install script of assets/jetson, on a machine that plays a Jetson: what it refuses, and what it would run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "assets" / "jetson" / "install.sh"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("torch-2.12.0", "torchvision-0.27.0", "onnxruntime_gpu-1.31.1"):
        (folder / f"{name}-cp312-cp312-linux_aarch64.whl").touch()
    return folder


def install(tmp_path: Path, release: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Dry, with a Python 3.12 on the path that is never called."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "python3.12").write_text("#!/bin/sh\nexit 1\n")
    (binaries / "python3.12").chmod(0o755)
    told = tmp_path / "nv_tegra_release"
    if release:
        told.write_text(f"# {release} (release), REVISION: 2.0, GCID: 1, BOARD: generic\n")
    environment = {**os.environ, "JETSON_RELEASE_FILE": str(told), "PATH": f"{binaries}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", str(SCRIPT), "--dry-run", *options], capture_output=True, text=True, env=environment, timeout=30
    )


def test_on_jetpack_7_torch_comes_first_and_the_gpu_is_tried(tmp_path: Path, wheels: Path) -> None:
    done = install(tmp_path, "R39", "--wheels", str(wheels))
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("would run: ")]
    assert "--system-site-packages" in steps[0]  # or TensorRT of the system is not seen
    assert all(name in steps[1] for name in ("torch-2.12.0", "torchvision-0.27.0", "onnxruntime_gpu-1.31.1"))
    assert steps[2].endswith("[jetson]")
    assert 'device="cuda"' in steps[3]
    assert "check --device cuda --dtype fp16" in steps[4]


@pytest.mark.parametrize(
    ("release", "sentence"),
    [
        ("R36", "JetPack 6"),
        ("R35", "JetPack 5"),
        ("R99", "unknown here"),
        ("", "not a Jetson"),
    ],
)
def test_another_system_is_refused_in_one_line(tmp_path: Path, wheels: Path, release: str, sentence: str) -> None:
    done = install(tmp_path, release, "--wheels", str(wheels))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--wheels FOLDER or --index URL"),
        (("--wheels", "/no/such/folder"), "needs a folder"),
        (("--index", "http://example.com"), "https URL"),
        (("--fast",), "unknown option --fast"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    done = install(tmp_path, "R39", *options)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_torch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = install(tmp_path, "R39", "--wheels", str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "holds no wheels of torch" in done.stderr
