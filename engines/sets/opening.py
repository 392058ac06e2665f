"""From what a person names to a set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engines.demo import benchmark
from engines.media import SUFFIXES, MediaLimits
from engines.settings import fingerprint

from . import choices, tables, vqa
from .base import DEFAULT_QUESTION, EvalSet, LazyItems, Progress, Row, RowProblem, check_size, read_json
from .checking import Checker

BUNDLED = tuple(benchmark.SETS)
KINDS = (
    f"{', '.join(BUNDLED)}, a folder of media, a JSONL or CSV file, or a file or folder of VQAv2, TextVQA, MMBench or "
    "Video-MME"
)
_TABLES = (".jsonl", ".csv", ".tsv", ".json", ".parquet")
Rows = Iterator[Row | RowProblem]


def open_set(
    source: str | Path,
    folder: Path,
    every: int = 1,
    limits: MediaLimits | None = None,
    progress: Progress | None = None,
) -> EvalSet:
    """The set that `source` names; every so-manieth row of it.

    source: `all`, `stills` or `clips` of the bundled benchmark; a folder of media; a JSONL or CSV file with media,
    question, and optionally answer and category; or a file or folder of VQAv2, TextVQA, MMBench (TSV) or Video-MME.
    Media of a file are named relative to it, and lie in its folder or below.
    folder: where drawn scenes and unpacked images are written; it must outlive the set.
    progress: called while the rows' media are checked, each of which is opened once.
    Rows that cannot be asked are in `problems`. ValueError, with one sentence, where there is no set at all.
    """
    if every < 1:
        raise ValueError(f"Every {every}th row cannot be taken; the number must be at least 1.")
    if isinstance(source, str) and source in BUNDLED:
        # Lazy: drawing all scenes takes a minute or two.
        items = LazyItems(benchmark.items(source, folder, every), benchmark.size(source, every))
        return EvalSet(source, items, len(items), (), True, fingerprint(["bundled", source, every]))
    path = Path(source).absolute()
    if path.is_dir():
        root, path = path, _file_of(path)
    elif path.is_file():
        root = path.parent
    else:
        raise ValueError(f"There is no set {source}; name one of these: {KINDS}.")
    rows, note = (_media_of(root), "") if path == root else _rows_of(root, path)
    checker = Checker(root, folder, every, limits or MediaLimits())
    checker.check(rows, progress=progress)
    if not checker.items and not checker.problems:
        raise ValueError(f"{path.name} holds no rows and no media: {KINDS} can be read.")
    return EvalSet(
        name=path.name,
        items=tuple(checker.items),
        total=len(checker.items),
        problems=tuple(checker.problems),
        labelled=any(item.answer for item in checker.items),
        fingerprint=checker.fingerprint(),
        note=note,
    )


def _file_of(folder: Path) -> Path:
    """The file that describes the set in a folder, up to one level down; the folder itself if it holds just media."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in _TABLES and path.is_file())
    if not found:
        below = [child for child in sorted(folder.iterdir()) if child.is_dir()]
        found = sorted(
            path for child in below for path in child.iterdir() if path.suffix.lower() in _TABLES and path.is_file()
        )
    # Those that only hold the answers are found by the file with the questions.
    found = [path for path in found if "annotations" not in path.name]
    if len(found) > 1:
        raise ValueError(
            f"{folder.name} holds {len(found)} files that may be the set, such as {found[0].name} and "
            f"{found[1].name}; name one of them."
        )
    return found[0] if found else folder


def _media_of(folder: Path) -> Rows:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.suffix.lower() in SUFFIXES:
            yield Row(path.name, os.fspath(path.name), DEFAULT_QUESTION)


def _rows_of(root: Path, path: Path) -> tuple[Rows, str]:
    """The rows of a file, told apart by its suffix and its keys, with what to know of how they are judged."""
    check_size(path)
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return tables.read_jsonl(path), ""
    if suffix == ".csv":
        return tables.read_csv(path), ""
    if suffix == ".tsv":
        return choices.read_mmbench(path), ""
    if suffix == ".parquet":
        return choices.read_video_mme(root, choices.read_parquet(path)), ""
    values = read_json(path) if suffix == ".json" else None
    if isinstance(values, dict) and isinstance(values.get("questions"), list):
        return vqa.read_vqav2(root, path, values), vqa.NOTE
    if isinstance(values, dict) and isinstance(values.get("data"), list):
        return vqa.read_textvqa(root, values), vqa.NOTE
    if isinstance(values, list):
        return choices.read_video_mme(root, values), ""
    raise ValueError(f"{path.name} is no set that is known here; these are: {KINDS}.")
