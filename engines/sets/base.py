"""What a set is, whatever it was read from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from engines.evaluation import Item

# More rows than this, after `every`, are refused: each costs a run a point.
MAX_ROWS = 20_000
# An annotation file may have so many bytes; MMBench's, which hold their images, stay below a few hundred million.
MAX_FILE_BYTES = 1 << 30
MAX_QUESTION, MAX_ANSWER, MAX_CATEGORY = 8000, 2000, 200
DEFAULT_QUESTION = "Describe this."

Progress = Callable[[int], None]
"""Called with how many rows were looked at so far."""


@dataclass(frozen=True)
class RowProblem:
    """A row that was left out. `row` counts from 1 in the file's own order, or is a file's name."""

    row: str
    reason: str


@dataclass(frozen=True)
class Embedded:
    """An image that is written in the row itself, in base64."""

    text: str


@dataclass(frozen=True)
class Row:
    """A row before it was checked: its place in the file, and its fields as they stand there. `media`: a file's
    name, an Embedded image, or a list of them.
    """

    row: str
    media: object
    question: object
    answer: object = None
    groups: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalSet:
    """Questions that a sweep or an evaluation asks, in a fixed order."""

    name: str
    items: Sequence[Item]
    """Of the bundled benchmark they are drawn as they are asked for; iterate over them only once they're needed."""
    total: int
    """len(items): rows that can be asked."""
    problems: tuple[RowProblem, ...]
    labelled: bool
    """Whether any item has a right answer."""
    fingerprint: str
    """SHA-256, in hex, of the questions, answers, and names and sizes of the media, not of the media's bytes."""
    note: str = ""
    """What to know about how answers are judged here, in one sentence; mostly empty."""


class LazyItems(Sequence[Item]):
    """A sequence of a known length over an iterator, which is drawn from as far as was asked."""

    def __init__(self, source: Iterator[Item], total: int) -> None:
        self._source, self._total = source, total
        self._drawn: list[Item] = []

    def __len__(self) -> int:
        return self._total

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._total))]
        index = index + self._total if index < 0 else index
        if not 0 <= index < self._total:
            raise IndexError(index)
        while len(self._drawn) <= index:
            self._drawn.append(next(self._source))
        return self._drawn[index]


def inside(root: Path, name: str) -> Path:
    """The file of that name below `root`, links followed. ValueError if it is elsewhere, whatever is there."""
    if "://" in name or name.startswith("data:"):
        raise ValueError(f"{_short(name)} is an address, and only files beside the set are opened.")
    if "\0" in name:
        raise ValueError("The file name has a zero byte in it.")
    try:
        found = (root / name).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise ValueError(f"{_short(name)} leads to no file.") from error
    if not found.is_relative_to(root.resolve()):
        raise ValueError(f"{_short(name)} lies outside the folder of the set.")
    return found


def check_size(path: Path) -> None:
    """Raise ValueError for an annotation file that is too large to be read."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{path.name} has {size >> 20} MiB, and at most {MAX_FILE_BYTES >> 20} MiB are read: cut it.")


def read_json(path: Path) -> Any:
    """The content of a JSON file; ValueError, with one sentence, where there is none."""
    check_size(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path.name} is not JSON in UTF-8.") from error


def _short(name: str) -> str:
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= 80 else f"{name[:60]}...{name[-16:]}"
