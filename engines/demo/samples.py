"""Example media for the page: `python -m engines.demo.samples assets/samples` writes those that are shipped.

Their scenes are from the test split, as are those that `new_example` draws while the page is open.

Writes the scenes and samples.json. Photographs that lie in the folder already are listed too, with no answer:
the demo model has never seen one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from engines.answers import matches
from engines.demo.questions import Question, ask
from engines.demo.scenes import Scene, make_scene

# Seeds from here on are in no benchmark.
NEW_FROM = 1_000_000
# What a new example may be: levels, and for each kind the questions that are worth a picture of their own.
NEW_KINDS = {
    "image": (("medium", "large"), ("list", "reading", "chart", "count", "colour", "position", "relation", "describe")),
    "video": (("clip", "long clip"), ("motion", "when", "order")),
}
VIDEO_FPS = 8  # every scene frame is shown for several video frames, so that players seek well
FILMED = {
    "photo_chelsea.jpg": "What is in this picture?",
    "photo_coffee.jpg": "What is in this picture?",
    "clip_city.mp4": "What is in this video?",
}


@dataclass(frozen=True)
class Wanted:
    """A sample to find: the first test scene of the level and size (height, width) that offers the category."""

    name: str
    level: str
    size: tuple[int, int]
    category: str
    things: int = 3
    frames: int | None = None


WANTED = (
    Wanted("scene_sign", "medium", (320, 320), "reading"),
    Wanted("scene_chart", "medium", (320, 320), "chart"),
    Wanted("scene_colour", "medium", (320, 384), "colour"),
    Wanted("scene_list", "medium", (320, 320), "list"),
    Wanted("scene_crowd", "large", (448, 448), "count", things=5),
    Wanted("clip_motion", "clip", (192, 192), "motion", things=2, frames=6),
    Wanted("clip_events", "clip", (160, 192), "when", things=2, frames=8),
)
Answerer = Callable[[Path, str], str]


def find(wanted: Wanted, answer: Answerer) -> tuple[Scene, Question]:
    """The first scene with an English question of the category that is answered right."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(200):
            scene = make_scene("test", seed, wanted.level, wanted.size, wanted.frames, step_s=0.5)
            if len(scene.things) < wanted.things:
                continue
            for question in ask(scene, chinese_share=0.0):
                if question.category == wanted.category:
                    path = write_media(scene, Path(folder), "candidate")
                    if matches(answer(path, question.text), question.answer):
                        return scene, question
    raise LookupError(f"no test scene for {wanted.name} is answered right")


def write_clip(scene: Scene, path: Path) -> None:
    """H.264 in MP4, each scene frame repeated for as long as it lasts."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(VIDEO_FPS), options={"crf": "12"})
        stream.height, stream.width = scene.image.shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in np.repeat(scene.frames, round(VIDEO_FPS * scene.step_s), axis=0):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def write_media(scene: Scene, folder: Path, name: str) -> Path:
    """Write a scene as a PNG or, if it is a clip, as an MP4; returns the file."""
    path = folder / f"{name}.{'mp4' if scene.is_clip else 'png'}"
    if scene.is_clip:
        write_clip(scene, path)
    else:
        Image.fromarray(scene.image).save(path)
    return path


@dataclass(frozen=True)
class NewExample:
    """A scene that nobody has seen before, and a question with its right answer."""

    path: Path
    question: str
    answer: str
    category: str


def new_example(folder: Path, kind: str, seed: int) -> NewExample:
    """Draw a scene of a kind ("image" or "video") into the folder and choose a question about it, in English."""
    levels, categories = NEW_KINDS[kind]
    rng = np.random.default_rng([NEW_FROM, seed])
    while True:
        number = NEW_FROM + int(rng.integers(1 << 31))
        # At two frames a second, the rate at which the page samples clips.
        scene = make_scene("test", number, str(rng.choice(levels)), step_s=0.5)
        asked = [q for q in ask(scene, chinese_share=0.0) if q.category in categories]
        wanted = str(rng.choice(categories))
        fitting = [question for question in asked if question.category == wanted]
        if fitting:
            question = fitting[int(rng.integers(len(fitting)))]
            path = write_media(scene, folder, f"scene_{number}")
            return NewExample(path, question.text, question.answer, question.category)


def write_samples(folder: Path, answer: Answerer) -> list[dict]:
    """Write all media and samples.json; returns its entries. Photographs and films lie in the folder already."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict] = []
    for wanted in WANTED:
        scene, question = find(wanted, answer)
        path = write_media(scene, folder, wanted.name)
        entries.append(
            {
                "file": path.name,
                "question": question.text,
                "answer": question.answer,
                "category": question.category,
                "seed": scene.seed,
            }
        )
    for file, text in FILMED.items():
        if (folder / file).exists():
            entries.append({"file": file, "question": text, "answer": None, "category": None, "seed": None})
    (folder / "samples.json").write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    # Here, because the page uses this module too and must not wait for a second model.
    from engines.config import CompressionConfig
    from engines.engine import load_engine
    from engines.results import RunRequest

    engine = load_engine()

    def answer(path: Path, question: str) -> str:
        return engine.answer(RunRequest(question, (path,), warm_up=False), CompressionConfig.full()).answer

    for entry in write_samples(folder, answer):
        print(entry)


if __name__ == "__main__":
    main()
