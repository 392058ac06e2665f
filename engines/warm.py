"""Which shapes have been run before: the first run of a shape is slower, and must not be the one that is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.config import CompressionConfig
from engines.prompt import Prompt
from engines.results import RunRequest

# How many kinds of shapes are remembered.
_SHAPES = 256

Key = tuple[Any, ...]


class WarmShapes:
    """Remembers keys of what an engine has run."""

    def __init__(self) -> None:
        self._known: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def add(self, *keys: Key) -> None:
        for key in keys:
            if len(self._known) >= _SHAPES:
                self.clear()
            self._known.add(key)

    def clear(self) -> None:
        self._known.clear()


def request_key(request: RunRequest, config: CompressionConfig) -> Key:
    """Of a request before its media are decoded: the same again has the same shapes."""
    return (
        config.fingerprint(),
        request.question,
        request.history,
        request.frames,
        *map(_file_state, request.media),
    )


def shape_key(prompt: Prompt, config: CompressionConfig) -> Key:
    """Of all prompts of one shape."""
    return (config.fingerprint(), *prompt.shape_signature())


def _file_state(path: Path) -> tuple[str, int, int]:
    """Changes when the file does; a file that is not there is left for the decoder to speak of."""
    try:
        state = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), state.st_mtime_ns, state.st_size
