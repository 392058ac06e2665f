"""What a sweep of the page can ask: the bundled benchmark, or what the visitor has uploaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from engines.evaluation import Item
from engines.media import FrameSampling, MediaError, MediaLimits, load_media
from engines.sets import EvalSet, RowProblem, open_set
from engines.settings import fingerprint

UPLOAD = "upload"
SETS = {
    "Benchmark: stills and clips": "all",
    "Benchmark: stills": "stills",
    "Benchmark: clips": "clips",
    "Your uploaded media": UPLOAD,
}
MOST_FILES = 64


@dataclass(frozen=True)
class Upload:
    """The files of the Compare tab; each is asked the question that stands there."""

    files: tuple[Path, ...]
    question: str
    frames: FrameSampling


def open_source(
    source: str, every: float | None, folder: Path, upload: Upload, limits: MediaLimits, *, check: bool = True
) -> EvalSet:
    """ValueError, with one sentence, for what the controls do not offer. `check`: look into uploaded files.

    folder: where drawn scenes go; it must outlive the set.
    """
    if source not in SETS.values():
        raise ValueError("Choose a set of questions first.")
    if source == UPLOAD:
        return _uploaded(upload, limits, check)
    if every is None or every < 1 or every != int(every):
        raise ValueError("Every Nth question: N must be a whole number, at least 1.")
    return open_set(source, folder, int(every), limits)


def _uploaded(upload: Upload, limits: MediaLimits, check: bool) -> EvalSet:
    if not upload.files:
        raise ValueError("Nothing is uploaded; add images or videos in the Compare tab first.")
    if not upload.question.strip():
        raise ValueError("The question in the Compare tab is empty; each uploaded file is asked it.")
    if len(upload.files) > MOST_FILES:
        raise ValueError(f"{len(upload.files)} files are uploaded, and a sweep takes at most {MOST_FILES}.")
    items, problems = [], []
    for file in upload.files:
        try:
            if check:
                load_media(file, limits=limits, sampling=FrameSampling(fps=None, num_frames=1))
            items.append(Item((file,), upload.question.strip(), "", frames=upload.frames))
        except MediaError as error:
            problems.append(RowProblem(file.name, str(error)))
    seen = [[item.media[0].name, item.media[0].stat().st_size] for item in items]
    asked = fingerprint([UPLOAD, seen, upload.question.strip(), asdict(upload.frames)])
    return EvalSet("your uploaded media", tuple(items), len(items), tuple(problems), False, asked)
