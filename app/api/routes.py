"""The addresses of the endpoint, beside the page in the same server."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Mount, Route

from app import tenants
from app.api import reply
from app.api.body import whole
from app.api.conversation import read_conversation
from app.api.errors import GONE, ApiError, bad_request, queue_full, server_error
from app.api.files import FileRoutes
from app.api.gate import Gate
from app.api.job import Job
from app.api.media import most_body_bytes, store_media
from app.api.metrics import Metrics
from app.api.reply import Reply
from app.api.schema import ChatRequest, parse
from app.api.sources import Sources
from app.api.spans import Spans
from app.observed import WorkbenchEngine
from app.turnstile import QueueFull, Turnstile
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.results import EngineError, Event, Finished, RunRequest, TokenReady

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """What every route needs."""

    engine: WorkbenchEngine
    turnstile: Turnstile
    limits: MediaLimits
    model_name: str
    gate: Gate
    metrics: Metrics
    spans: Spans | None
    sources: Sources

    def routes(self) -> list[BaseRoute]:
        """To stand before the page's own routes, which answer every other address."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_exception_handler(ApiError, _refuse)
        app.add_exception_handler(HTTPException, _no_such_address)
        app.add_api_route("/models", self.models, methods=["GET"])
        app.add_api_route("/models/{name:path}", self.model, methods=["GET"])
        app.add_api_route("/chat/completions", self.chat, methods=["POST"])
        FileRoutes(
            self.sources.files, self.turnstile, self.limits, self._tenant, strangers=self.gate.lets_strangers_in
        ).add_to(app)
        return [
            Mount("/v1", app),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.show_metrics),
        ]

    # ---- for orchestrators and monitors ----

    async def health(self, _request: Request) -> Response:
        """The process lives."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """The model is loaded, which it is before the server starts, and a request would find a place."""
        full = self.turnstile.full
        return JSONResponse({"status": "queue full" if full else "ready"}, 503 if full else 200)

    async def show_metrics(self, request: Request) -> Response:
        try:
            self._tenant(request)
        except ApiError as error:
            return await _refuse(request, error)
        text, content_type = self.metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    # ---- OpenAI's addresses ----

    async def models(self, request: Request) -> Response:
        self._tenant(request)
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request, name: str) -> Response:
        self._tenant(request)
        self._check_model(name)
        return JSONResponse(self._card())

    async def chat(self, request: Request) -> Response:
        tenant = self._tenant(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A web page can send any other type to any address without asking first.
            raise ApiError(415, "The request must be JSON, with Content-Type: application/json.")
        with ExitStack() as held:
            try:
                place = held.enter_context(self.turnstile.take(f"tenant {tenant}"))
            except QueueFull:
                raise queue_full(self.turnstile.retry_after_s) from None
            try:
                body = await whole(request, most_body_bytes(self.limits))
            except ClientDisconnect:
                return Response(status_code=GONE)
            context = self._context(request)
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="workbench-api-")))
            asked, run, config = await asyncio.to_thread(self._prepare, body, folder, tenant)
            del body
            job = Job(self.engine, place, run, config, self.metrics.waited, held.pop_all())
        job.start(context)
        gone = asyncio.create_task(_until_gone(request, job))
        response: Response | None = None
        try:
            response = await self._answer(asked, job, gone)
            return response
        finally:
            if not isinstance(response, StreamingResponse):  # which ends both itself
                gone.cancel()
                job.cancel()

    def _prepare(self, body: bytes, folder: Path, tenant: str) -> tuple[ChatRequest, RunRequest, CompressionConfig]:
        """Check everything that can be checked before the engine is free. Runs in a thread: bodies are large."""
        asked = parse(body)
        self._check_model(asked.model)
        config, sampling = asked.config(), asked.sampling()
        try:
            self.engine.check(config)
        except (EngineError, ValueError) as error:
            raise bad_request(str(error), "compression") from error
        said = read_conversation(asked.messages)
        run = RunRequest(
            question=said.question,
            media=store_media(said.media, folder, self.limits, partial(self.sources.read, tenant)),
            history=said.history,
            sampling=sampling,
            limits=self.limits,
            warm_up=False,  # an answer is wanted here, not a clean measurement
            cancel=threading.Event(),
            scope=tenants.of_caller(
                tenant,
                asked.user,
                asked.prompt_cache_key,
                asked.resource,
                this_machine_only=self.gate.this_machine_only,
            ),
        )
        return asked, run, config

    async def _answer(self, asked: ChatRequest, job: Job, gone: asyncio.Task[None]) -> Response:
        """The whole answer, or the beginning of a stream, which is held back until there is a first token.

        So whatever the engine refuses is refused by status code, in a stream too. What is whole is sent when the job
        has ended: counted, its files deleted and its place free.
        """
        answer = Reply(self.model_name, asked.include_usage, bool(asked.return_trace))
        events = job.events()
        headers = {"X-Request-Id": answer.id}
        content: bytes | None = None
        try:
            async for event in events:
                if isinstance(event, TokenReady) and asked.stream:
                    stream = _stream(answer, event, events, job, gone)
                    return StreamingResponse(
                        stream, media_type="text/event-stream", headers={**headers, "Cache-Control": "no-cache"}
                    )
                if isinstance(event, Finished):
                    content = reply.encode(answer.whole(event.result))
        except (EngineError, ValueError) as error:  # MediaError is a ValueError
            raise bad_request(str(error)) from error
        except Exception:
            log.exception("A run of the endpoint failed")
            raise server_error() from None
        if content is None or gone.done():
            return Response(status_code=GONE)
        return Response(content, media_type="application/json", headers=headers)

    def _tenant(self, request: Request) -> str:
        return self.gate.tenant(request.headers.get("authorization"), request.headers.get("host"))

    def _check_model(self, name: str) -> None:
        if name != self.model_name:
            raise ApiError(
                404, f"There is no model {name!r} here; use {self.model_name!r}.", code="model_not_found", param="model"
            )

    def _card(self) -> dict[str, Any]:
        return {"id": self.model_name, "object": "model", "created": 0, "owned_by": "workbench"}

    def _context(self, request: Request) -> contextvars.Context:
        context = contextvars.copy_context()
        if self.spans is not None:
            context.run(self.spans.attach, request.headers)
        return context


async def _stream(
    answer: Reply, first: TokenReady, events: AsyncIterator[Event], job: Job, gone: asyncio.Task[None]
) -> AsyncIterator[bytes]:
    try:
        yield reply.event(answer.piece(first.text, first=True))
        async for event in events:
            if isinstance(event, TokenReady) and event.text:
                yield reply.event(answer.piece(event.text))
            elif isinstance(event, Finished):
                for piece in answer.last(event.result):
                    yield reply.event(piece)
        yield reply.LAST_EVENT
    except (EngineError, ValueError) as error:
        yield reply.event(bad_request(str(error)).body)
    except Exception:
        log.exception("A run of the endpoint failed")
        yield reply.event(server_error().body)
    finally:
        # Reached too when the client has gone: then the engine is wanted elsewhere.
        gone.cancel()
        job.cancel()


async def _until_gone(request: Request, job: Job) -> None:
    """Cancel the job when the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancel()


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, headers=dict(error.headers or {}))


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = {
        404: "There is nothing at this address; the endpoint has /v1/models, /v1/files and /v1/chat/completions.",
        405: "This address does not take this method.",
    }.get(error.status_code, str(error.detail))
    return await _refuse(request, ApiError(error.status_code, sentence, headers=error.headers))
