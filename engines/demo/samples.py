"""Example media for the page: `python -m engines.demo.samples assets/samples` writes those that are shipped.

Their scenes are from the test split, as are those that `new_example` draws while the page is open.

Writes the scenes and samples.json. Photographs that lie in the folder already are listed too, with no answer:
the demo model has never seen one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

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
PHOTOGRAPHS = {
    "photo_chelsea.jpg": "What is in this picture?",
    "photo_coffee.jpg": "What is in this picture?",
}
# File, level, size (height, width), category of its question. The seed is the first test scene that offers
# one.
STILLS = (
    ("scene_sign.png", "medium", (320, 320), "reading"),
    ("scene_colour.png", "medium", (320, 384), "colour"),
    ("scene_list.png", "medium", (320, 320), "list"),
    ("scene_crowd.png", "large", (448, 448), "count"),
)
CLIPS = (("clip_motion.mp4", (192, 192), 6, "motion"),)


def find(
    level: str, size: tuple[int, int], category: str, skip: set[int], frames: int | None = None
) -> tuple[Scene, Question]:
    """The first test scene of a level that offers an English question of the category, and that question."""
    for seed in range(1000):
        scene = make_scene("test", seed, level, size, frames)
        rich = len(scene.things) >= (1 if scene.is_clip else 3)
        for question in ask(scene):
            if rich and seed not in skip and question.category == category and question.language == "en":
                return scene, question
    raise LookupError(f"no test scene of level {level} offers a question on {category}")


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


def _entry(file: str, question: Question, seed: int) -> dict:
    return {
        "file": file,
        "question": question.text,
        "answer": question.answer,
        "category": question.category,
        "seed": seed,
    }


def write_samples(folder: Path) -> list[dict]:
    """Write all media and samples.json; returns its entries."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict] = []
    used: set[int] = set()
    for file, level, size, category in STILLS:
        scene, question = find(level, size, category, used)
        used.add(scene.seed)
        Image.fromarray(scene.image).save(folder / file, optimize=True)
        entries.append(_entry(file, question, scene.seed))
    for file, size, frames, category in CLIPS:
        scene, question = find("clip", size, category, set(), frames)
        write_clip(scene, folder / file)
        entries.append(_entry(file, question, scene.seed))
    for file, text in PHOTOGRAPHS.items():
        if (folder / file).exists():
            entries.append({"file": file, "question": text, "answer": None, "category": None, "seed": None})
    (folder / "samples.json").write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for entry in write_samples(parser.parse_args().folder):
        print(entry)


if __name__ == "__main__":
    main()
