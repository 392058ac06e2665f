"""From rows to items: whatever cannot be asked is listed with the reason, and the rest goes on."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.evaluation import Item
from engines.media import FrameSampling, MediaError, MediaLimits, load_media
from engines.settings import fingerprint

from .base import MAX_ANSWER, MAX_CATEGORY, MAX_QUESTION, MAX_ROWS, Embedded, Progress, Row, RowProblem, inside

# Enough to see whether a clip can be read: its first frame.
_ONE_FRAME = FrameSampling(fps=None, num_frames=1)


@dataclass
class Checker:
    """Collects the items and the problems of one set."""

    root: Path
    """Media are only read below it."""
    folder: Path
    """Where images that are written inside a row are unpacked."""
    every: int
    limits: MediaLimits
    items: list[Item] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    _seen: dict[Path, str | None] = field(default_factory=dict)

    def check(
        self, rows: Iterable[Row | RowProblem], total: int | None = None, progress: Progress | None = None
    ) -> None:
        """Take every so-manieth row. ValueError if there are more than MAX_ROWS of them."""
        for place, row in enumerate(rows):
            if progress is not None:
                progress(place + 1)
            if place % self.every:
                continue
            if len(self.items) + len(self.problems) >= MAX_ROWS:
                raise ValueError(f"The set has more than {MAX_ROWS:,} rows; take every 10th, or cut it.")
            if isinstance(row, RowProblem):
                self.problems.append(row)
                continue
            try:
                self.items.append(self._item(row))
            except (MediaError, ValueError) as error:
                self.problems.append(RowProblem(row.row, str(error)))

    def fingerprint(self) -> str:
        """SHA-256 of what is asked, by the names and sizes of the media and not by their place on this machine."""
        return fingerprint(
            [
                [[(path.name, path.stat().st_size) for path in item.media], item.question, item.answer, item.groups]
                for item in self.items
            ]
        )

    def _item(self, row: Row) -> Item:
        question = _text("question", row.question, MAX_QUESTION)
        if not question:
            raise ValueError("It has no question.")
        groups = {kind: _text(kind, name, MAX_CATEGORY) for kind, name in row.groups.items()}
        return Item(
            media=self._media(row.media),
            question=question,
            answer=_text("answer", row.answer, MAX_ANSWER),
            groups={kind: name for kind, name in groups.items() if name},
        )

    def _media(self, named: object) -> tuple[Path, ...]:
        if named is None or named == "":
            raise ValueError("It names no media; write [] for a question without any.")
        given = named if isinstance(named, list | tuple) else [named]
        if len(given) > self.limits.max_items:
            raise ValueError(f"It names {len(given)} media, and at most {self.limits.max_items} are allowed.")
        return tuple(map(self._file, given))

    def _file(self, named: object) -> Path:
        if isinstance(named, Embedded):
            path = self._unpack(named)
        elif isinstance(named, str):
            path = inside(self.root, named)
        else:
            raise ValueError(f"Its media are {_kind(named)}, and must be file names.")
        if path not in self._seen:
            # Once a file, however many questions are asked about it.
            try:
                load_media(path, limits=self.limits, sampling=_ONE_FRAME)
                self._seen[path] = None
            except MediaError as error:
                self._seen[path] = str(error)
        if (reason := self._seen[path]) is not None:
            raise MediaError(reason)
        return path

    def _unpack(self, image: Embedded) -> Path:
        size, most = len(image.text) * 3 // 4, self.limits.max_bytes
        if size > most:
            raise ValueError(f"Its image has {size >> 20} MiB, and at most {most >> 20} MiB are allowed.")
        try:
            content = base64.b64decode(image.text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("Its image is not valid base64.") from error
        path = (self.folder / f"image-{hashlib.sha256(content).hexdigest()[:32]}").resolve()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path


def _text(name: str, value: object, most: int) -> str:
    """A field as text: a number counts as what is written, nothing as empty."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"Its {name} is {_kind(value)}, and must be a text.")
    text = str(value).strip()
    if len(text) > most:
        raise ValueError(f"Its {name} has {len(text):,} characters, and at most {most:,} are allowed.")
    # What was no UTF-8 was read as lone surrogates.
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"Its {name} is not UTF-8 text.")
    return text


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"
