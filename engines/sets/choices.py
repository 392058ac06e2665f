"""MMBench and Video-MME as they are distributed: multiple choice, answered by a letter."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .base import Embedded, Row, RowProblem
from .tables import cells
from .vqa import find_media

LETTER = "Answer with the option's letter from the given choices directly."
# A cell shorter than this is the index of the row that has the image.
_SHORTEST_IMAGE = 64
_VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm")


def read_mmbench(path: Path) -> Iterator[Row | RowProblem]:
    """From its TSV: question, hint, options A to D or more, answer, categories, and the image in base64."""
    needed = ("index", "question", "image")
    referred = {
        image
        for _, values in cells(path, "\t", needed)
        if isinstance(values, dict) and 0 < len(image := (values["image"] or "").strip()) < _SHORTEST_IMAGE
    }
    images: dict[str, str] = {}
    for name, values in cells(path, "\t", needed):
        if isinstance(values, RowProblem):
            yield values
            continue
        index, image = (values["index"] or "").strip(), (values["image"] or "").strip()
        if index in referred and len(image) >= _SHORTEST_IMAGE:
            images[index] = image
        image = images.get(image, image)
        options = [f"{letter}. {values[letter]}" for letter in string.ascii_uppercase if values.get(letter)]
        groups = {"category": values.get("category"), "l2-category": values.get("l2-category")}
        yield Row(
            name,
            Embedded(image) if image else None,
            _question(values["question"], options, values.get("hint")),
            values.get("answer"),
            groups,
        )


def read_video_mme(root: Path, rows: list[Any]) -> Iterator[Row | RowProblem]:
    """From its parquet file or JSON, a row a question or a row a video; clips lie in data, videos or video."""
    number = 0
    for row in rows:
        nested = row.get("questions") if isinstance(row, dict) else None
        for one in nested if isinstance(nested, list) else [row]:
            number += 1
            name = f"question {number}"
            if not isinstance(row, dict) or not isinstance(one, dict):
                yield RowProblem(name, "It is not an object.")
                continue
            values = {**row, **one}
            video = values.get("videoID") or values.get("video_id")
            if not isinstance(video, str):
                yield RowProblem(name, "It has no videoID that is a text.")
                continue
            media = find_media(root, [video + suffix for suffix in _VIDEO_SUFFIXES], ("data", "videos", "video", ""))
            given = values.get("options") or values.get("choices")
            options = [str(option) for option in given] if isinstance(given, list) else []
            groups = {kind: values.get(key) for kind, key in _VIDEO_MME_GROUPS.items()}
            yield Row(name, media, _question(values.get("question"), options, None), values.get("answer"), groups)


def read_parquet(path: Path) -> list[Any]:
    """All rows of a parquet file. ValueError, saying what to install, without pyarrow."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f"{path.name} is a parquet file, which needs pyarrow: pip install pyarrow, or save the rows as JSON."
        ) from error
    try:
        rows: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path.name} cannot be read as parquet.") from error
    return rows


_VIDEO_MME_GROUPS = {"category": "task_type", "duration": "duration", "domain": "domain"}


def _question(question: object, options: list[str], hint: object) -> object:
    """As the public evaluation harnesses put it: hint, question, options, and how to answer."""
    if not isinstance(question, str) or not question.strip():
        return question
    lines = [hint.strip()] if isinstance(hint, str) and hint.strip() else []
    lines += [question.strip(), *options]
    return "\n".join([*lines, LETTER] if options else lines)
