"""What a sweep of the page can ask: the bundled benchmark, or what the visitor has uploaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engines.evaluation import Item
from engines.media import FrameSampling, MediaError, MediaLimits, load_media
from engines.sets import EvalSet, RowProblem, open_set
from engines.settings import fingerprint

UPLOAD, FILES = "upload", "files"
SETS = {
    "Benchmark: stills and clips (1 500 questions)": "all",
    "Benchmark: stills (1 200)": "stills",
    "Benchmark: clips (300)": "clips",
    "Your own set: a JSONL or CSV file and its media, or media alone": FILES,
    "The media and the question on the Compare tab": UPLOAD,
}
MOST_FILES, MOST_OWN = 64, 500


@dataclass(frozen=True)
class Upload:
    """What the visitor has handed over."""

    files: tuple[Path, ...]
    """Of the Compare tab; each is asked the question that stands there."""
    question: str
    frames: FrameSampling
    own: tuple[Path, ...] = ()
    """Of the Sweep tab: an annotation file and its media, or media alone."""


def open_source(source: str, every: float | None, folder: Path, upload: Upload, limits: MediaLimits) -> EvalSet:
    """ValueError, with one sentence, for what the controls do not offer.

    folder: where drawn scenes and copies of uploaded files go; it must outlive the set.
    """
    if source not in SETS.values():
        raise ValueError("Choose a set of questions first.")
    if source == UPLOAD:
        return _uploaded(upload, limits)
    if every is None or every < 1 or every != int(every):
        raise ValueError("Every Nth question: N must be a whole number, at least 1.")
    if source == FILES:
        return _own(upload.own, int(every), folder, limits)
    return open_set(source, folder, int(every), limits)


def _own(files: Sequence[Path], every: int, folder: Path, limits: MediaLimits) -> EvalSet:
    """Laid side by side, as an annotation file names its media."""
    if not files:
        raise ValueError("No set is uploaded; add a JSONL or CSV file with its media, or media alone.")
    if len(files) > MOST_OWN:
        raise ValueError(f"{len(files)} files are uploaded, and a set of the page has at most {MOST_OWN}.")
    root = folder / "set"
    root.mkdir()
    for file in files:
        if (root / file.name).exists():
            raise ValueError(f"Two files are called {file.name}; rename one of them.")
        try:
            os.link(file, root / file.name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, root / file.name)
    return replace(open_set(root, folder / "unpacked", every, limits), name="your own set")


def _uploaded(upload: Upload, limits: MediaLimits) -> EvalSet:
    if not upload.files:
        raise ValueError("Nothing is uploaded; add images or videos in the Compare tab first.")
    if not upload.question.strip():
        raise ValueError("The question in the Compare tab is empty; each uploaded file is asked it.")
    if len(upload.files) > MOST_FILES:
        raise ValueError(f"{len(upload.files)} files are uploaded, and a sweep takes at most {MOST_FILES}.")
    items, problems = [], []
    for file in upload.files:
        try:
            load_media(file, limits=limits, sampling=FrameSampling(fps=None, num_frames=1))
            items.append(Item((file,), upload.question.strip(), "", frames=upload.frames))
        except MediaError as error:
            problems.append(RowProblem(file.name, str(error)))
    seen = [[item.media[0].name, item.media[0].stat().st_size] for item in items]
    asked = fingerprint([UPLOAD, seen, upload.question.strip(), asdict(upload.frames)])
    return EvalSet("your uploaded media", tuple(items), len(items), tuple(problems), False, asked)
