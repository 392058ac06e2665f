"""Fixtures that more than one test file needs: tiny checkpoints, engines around them, and real media files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from engines.engine import Engine, load_engine
from engines.experts.calibration import CACHE_VARIABLE
from tests.checkpoints import FAMILIES, write_tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test, and no process that one starts, reads or writes what the user has calibrated."""
    os.environ[CACHE_VARIABLE] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint folder for every family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {family: write_tiny_checkpoint(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def engines(tiny_folders: dict[str, Path]) -> dict[str, Engine]:
    return {family: load_engine(str(folder), "cpu", "fp32") for family, folder in tiny_folders.items()}


@pytest.fixture
def moe(engines: dict[str, Engine]) -> Iterator[Engine]:
    """The tiny Qwen3-VL-MoE engine with empty caches."""
    engines["qwen3_vl_moe"].clear_caches()
    return engines["qwen3_vl_moe"]


@pytest.fixture(scope="session")
def media_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real files: two images of different shapes and a two-second clip at 8 frames a second."""
    root = tmp_path_factory.mktemp("media")
    random = np.random.default_rng(0)
    files = {"wide": root / "wide.png", "tall": root / "tall.png", "clip": root / "clip.mp4"}
    Image.fromarray(_smooth(random, 160, 256)).save(files["wide"])
    Image.fromarray(_smooth(random, 256, 192)).save(files["tall"])
    with av.open(str(files["clip"]), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv420p"
        for index in range(16):
            picture = _smooth(random, 128, 160)
            picture[:, index * 8 : index * 8 + 24] = (250, 30, 30)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        container.mux(stream.encode())
    return files


def _smooth(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A picture with structure, so that tokens differ: coarse colour blocks, enlarged."""
    blocks = random.integers(0, 255, (height // 32, width // 32, 3), dtype=np.uint8)
    return np.ascontiguousarray(np.kron(blocks, np.ones((32, 32, 1), dtype=np.uint8)))
