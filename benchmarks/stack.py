"""The shape-true stack and a picture of noise to ask it about: what the benchmarks of whole runs share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.shape_true import save_checkpoint
from engines.config import SamplingConfig
from engines.engine import Engine, load_engine
from engines.results import RunRequest


def stack_parser(description: str, pairs: int = 7) -> argparse.ArgumentParser:
    """With the options that `open_stack` reads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "shape-true-4")
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--side", type=int, default=1024, help="height and width of the image in pixels")
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    return parser


@contextmanager
def open_stack(options: argparse.Namespace, new_tokens: int = 1) -> Iterator[tuple[Engine, RunRequest]]:
    """The engine and a question about an image. The checkpoint is written to --folder if it is not there yet."""
    if not (options.folder / "config.json").is_file():
        save_checkpoint(options.folder, options.text_layers, vision_layers=2)
    engine = load_engine(str(options.folder), options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 255, (options.side, options.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        sampling = SamplingConfig(max_new_tokens=new_tokens)
        yield engine, RunRequest("What is in this image?", (path,), sampling=sampling)
