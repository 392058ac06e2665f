"""Asking the questions of a set, one after the other, so that a bad one is listed and the rest goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from engines.answers import matches
from engines.compare import Runner
from engines.config import CacheConfig, CompressionConfig, SamplingConfig
from engines.evaluation import MAX_NEW_TOKENS, Item
from engines.media import Media, MediaLimits
from engines.results import EngineError, Finished, MediaReady, RunRequest, RunResult, TokenReady, Watch


class Stopped(Exception):
    """The measurement was cancelled in the middle of a question."""


@dataclass(frozen=True)
class Problem:
    """A question that could not be asked, and why."""

    question: str
    reason: str


@dataclass(frozen=True)
class Asked:
    """One answer. `pieces`: the text that each of its tokens added."""

    result: RunResult
    pieces: tuple[str, ...]
    right: bool | None
    """None where the item has no right answer."""
    media: tuple[Media, ...] = ()
    """As the model saw them."""


@dataclass(frozen=True)
class Asker:
    """Runs items greedily, with the caches off: what one question leaves behind must not help the next."""

    engine: Runner
    limits: MediaLimits = field(default_factory=MediaLimits)
    cancel: threading.Event | None = None

    def ask(
        self,
        item: Item,
        config: CompressionConfig,
        *,
        alter: Callable[[Media], Media] | None = None,
        watch: Watch | None = None,
        warm_up: bool = False,
    ) -> Asked:
        """Raises Stopped when cancelled, and what the engine raises for an item that cannot be run."""
        request = RunRequest(
            question=item.question,
            media=item.media,
            sampling=SamplingConfig(max_new_tokens=MAX_NEW_TOKENS),
            frames=item.frames,
            limits=self.limits,
            warm_up=warm_up,
            cancel=self.cancel,
            alter=alter,
            watch=watch,
        )
        pieces: list[str] = []
        media: tuple[Media, ...] = ()
        with closing(self.engine.run(request, replace(config, cache=CacheConfig()))) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, MediaReady):
                    media = event.media
                elif isinstance(event, TokenReady):
                    pieces.append(event.text)
                elif isinstance(event, Finished):
                    if event.result.finish_reason == "cancelled":
                        raise Stopped
                    right = matches(event.result.answer, item.answer) if item.answer else None
                    return Asked(event.result, tuple(pieces), right, media)
        raise EngineError(f"The run of {item.question!r} ended without a result.")


def each(
    items: Iterable[Item], cancel: threading.Event | None, work: Callable[[int, Item], Any]
) -> Iterator[tuple[Item, Any]]:
    """(item, what `work` made of it, or a Problem), until the items are through or `cancel` is set.

    Raises EngineError with the first reason if no question of the set could be asked.
    """
    first, worked = None, False
    for index, item in enumerate(items):
        if cancel is not None and cancel.is_set():
            return
        try:
            found: Any = work(index, item)
            worked = True
        except Stopped:
            return
        except (EngineError, ValueError) as error:  # MediaError is a ValueError
            found = Problem(item.question, str(error))
            first = first or str(error)
        yield item, found
    if first is not None and not worked:
        raise EngineError(f"None of the questions could be asked. The first: {first}")
