"""Compression settings as a file: JSON of `CompressionConfig.to_dict()` with the number of its format.

    {"schema_version": 1, "pruning": {"keep_ratio": 0.5}, "experts": {"top_k": 2}}

Settings that are left out are the full model's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.config import CompressionConfig

SCHEMA_VERSION = 1
VERSION_FIELD = "schema_version"
MOST_BYTES = 64 << 10


def to_document(config: CompressionConfig) -> dict[str, Any]:
    return {VERSION_FIELD: SCHEMA_VERSION, **config.to_dict()}


def to_text(config: CompressionConfig) -> str:
    return json.dumps(to_document(config), indent=2) + "\n"


def from_document(values: Any) -> CompressionConfig:
    """Inverse of `to_document`. ValueError, with one sentence, for another format, unknown setting or bad value."""
    if not isinstance(values, Mapping):
        raise ValueError(
            'Settings must be a JSON object, such as {"schema_version": 1, "pruning": {"keep_ratio": 0.5}}.'
        )
    if VERSION_FIELD not in values:
        raise ValueError(f"The settings have no {VERSION_FIELD}; this version writes {SCHEMA_VERSION}.")
    version = values[VERSION_FIELD]
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise ValueError(f"{VERSION_FIELD} is {version!r}; this version of the workbench reads {SCHEMA_VERSION}.")
    return CompressionConfig.from_dict({name: value for name, value in values.items() if name != VERSION_FIELD})


def assignments(config: CompressionConfig) -> tuple[str, ...]:
    """What differs from the full model, as `--set` and `with_settings` take it."""
    full = dict(flat(CompressionConfig.full().to_dict()))
    return tuple(
        f"{name}={str(value).lower() if isinstance(value, bool) else 'null' if value is None else value}"
        for name, value in flat(config.to_dict())
        if name not in full or full[name] != value
    )


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its whole name, such as `pruning.keep_ratio`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def read(path: Path, name: str = "") -> CompressionConfig:
    """The settings in a file, which the sentences call by `name`. ValueError, with one sentence, if there are none."""
    name = name or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"The settings file {name} could not be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise ValueError(f"The settings file {name} is larger than {MOST_BYTES >> 10} KiB; it holds something else.")
    try:
        values = json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The settings file {name} is not JSON: {error}.") from error
    try:
        return from_document(values)
    except ValueError as error:
        raise ValueError(f"The settings file {name} cannot be used: {error}") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")
