"""Rows of a JSONL or CSV file: media, question, and optionally answer and category."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .base import Row, RowProblem

MAX_LINE_BYTES = 1 << 20
# The csv module's own limit is for the whole process and below what an image in base64 takes.
MAX_CELL = 512 << 20


def read_jsonl(path: Path) -> Iterator[Row | RowProblem]:
    """One object a line; empty lines are skipped. Rows are named by their line."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            name = f"line {number}"
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                yield RowProblem(name, f"It is longer than {MAX_LINE_BYTES >> 20} MiB.")
                continue
            if line.isspace():
                continue
            try:
                values = json.loads(line.decode("utf-8-sig"))
            except (UnicodeDecodeError, RecursionError, ValueError):
                yield RowProblem(name, "It is not JSON in UTF-8.")
                continue
            if isinstance(values, dict):
                yield row_of(name, values)
            else:
                yield RowProblem(name, 'It is not an object, such as {"media": "a.jpg", "question": "What is this?"}.')


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Row | RowProblem]:
    """The first line names the columns. Several media stand in a cell as a JSON list. ValueError without columns."""
    for name, values in cells(path, delimiter, ("media", "question")):
        if isinstance(values, RowProblem):
            yield values
            continue
        media = values["media"]
        if media and media.lstrip().startswith("["):
            try:
                values = {**values, "media": json.loads(media)}
            except (RecursionError, ValueError):
                yield RowProblem(name, "Its media begin like a JSON list and are none.")
                continue
        yield row_of(name, values)


def cells(
    path: Path, delimiter: str, needed: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]] | tuple[str, RowProblem]]:
    """Each row's name and its cells by column. ValueError where a needed column is missing."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
    # Bytes that are no UTF-8 become lone surrogates, and their row a problem of its own.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        try:
            columns = reader.fieldnames or ()
        except csv.Error as error:
            raise ValueError(f"{path.name} is no table: {error}.") from error
        if missing := [name for name in needed if name not in columns]:
            raise ValueError(f"{path.name} has no column {missing[0]}; its first line must name {', '.join(needed)}.")
        number = 0
        while True:
            number += 1
            name = f"row {number}"
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield name, RowProblem(name, f"It cannot be read: {error}.")
                continue
            if None in values:
                yield name, RowProblem(name, "It has more cells than the first line has columns.")
            else:
                yield name, values


def row_of(name: str, values: Mapping[str, Any]) -> Row:
    groups = {"category": values["category"]} if values.get("category") is not None else {}
    return Row(name, values.get("media"), values.get("question"), values.get("answer"), groups)
