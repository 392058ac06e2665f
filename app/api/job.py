"""One request of the endpoint on its way: it waits for its turn and runs in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing, suppress

from app.turnstile import Place
from engines.compare import Runner
from engines.config import CompressionConfig
from engines.results import Event, RunRequest

END = None


class Job:
    """Owns the request's place and its folder until the engine has let go of both, whatever the client does."""

    def __init__(
        self,
        engine: Runner,
        place: Place,
        request: RunRequest,
        config: CompressionConfig,
        waited: Callable[[float], None],
        held: ExitStack,
    ) -> None:
        """`request.cancel` ends the job; `waited` is told the seconds in the line; `held` is closed at the end."""
        self._engine, self._place, self._request, self._config = engine, place, request, config
        self._waited, self._held = waited, held
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    def start(self, context: contextvars.Context) -> None:
        """`context` carries what the thread should know of the request that it works for: its trace."""
        threading.Thread(target=context.run, args=(self._work,), name="api-run", daemon=True).start()

    def cancel(self) -> None:
        """Leave the line, or end the run at the engine's next layer or token."""
        assert self._request.cancel is not None
        self._request.cancel.set()

    async def events(self) -> AsyncIterator[Event]:
        """What the engine says, as it says it; raises what it raises. Ends without Finished if cancelled."""
        while (item := await self._events.get()) is not END:
            if isinstance(item, Exception):
                raise item
            yield item

    def _work(self) -> None:
        try:
            with self._held:
                if self._place.wait(self._request.cancel):
                    self._waited(self._place.waited_s or 0.0)
                    with closing(self._engine.run(self._request, self._config)) as events:  # type: ignore[type-var]
                        for event in events:
                            self._say(event)
        except Exception as error:
            self._say(error)
        finally:
            self._say(END)

    def _say(self, item: Event | Exception | None) -> None:
        # The loop is closed when the server is shutting down: nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, item)
