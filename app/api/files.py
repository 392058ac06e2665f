"""The addresses of uploaded files, as OpenAI's clients use them: /v1/files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from app.api.body import pieces
from app.api.errors import GONE, ApiError, bad_request, queue_full
from app.api.filestore import FileStore, StoredFile
from app.api.media import MOST_TEXT_BYTES, check_kind, most_media_bytes
from app.turnstile import QueueFull, Turnstile
from engines.media import MediaLimits

PURPOSES = ("vision", "user_data")
LONGEST_NAME = 200


@dataclass(frozen=True)
class FileRoutes:
    store: FileStore
    turnstile: Turnstile
    limits: MediaLimits
    tenant: Callable[[Request], str]
    strangers: bool
    """All callers are one tenant, and not one person: nobody may see what is there."""

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/files", self.upload, methods=["POST"])
        app.add_api_route("/files", self.show_all, methods=["GET"])
        app.add_api_route("/files/{name}", self.show, methods=["GET"])
        app.add_api_route("/files/{name}", self.delete, methods=["DELETE"])

    async def upload(self, request: Request) -> Response:
        tenant = self.tenant(request)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            # Forms are what a web page can send to any address without asking first.
            raise ApiError(403, "Files are not taken from web pages of another origin.", code="origin_not_allowed")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
            raise ApiError(415, "A file must be sent as multipart/form-data, with the fields file and purpose.")
        # A place in the line bounds how many are received at once; it is given back without a turn.
        try:
            place = self.turnstile.take(f"tenant {tenant}")
        except QueueFull:
            raise queue_full(self.turnstile.retry_after_s) from None
        with place:
            most = most_media_bytes(self.limits)
            try:
                body = pieces(request, most + MOST_TEXT_BYTES)
                form = await MultiPartParser(request.headers, body, max_files=1, max_fields=8).parse()
            except (MultiPartException, KeyError) as error:
                raise bad_request("The form cannot be read; send the fields file and purpose.") from error
            except ClientDisconnect:
                return Response(status_code=GONE)
            try:
                file, purpose = form.get("file"), form.get("purpose")
                if not isinstance(file, UploadFile):
                    raise bad_request("The field file is missing; it must hold an image or a video.", "file")
                if purpose not in PURPOSES:
                    raise bad_request(f"purpose must be one of {', '.join(PURPOSES)}.", "purpose")
                name = (file.filename or "file")[:LONGEST_NAME]
                data = await file.read()
            finally:
                await form.close()
            check_kind("The file", data, "file")
            stored = await asyncio.to_thread(self.store.add, tenant, name, str(purpose), data)
        return JSONResponse(_described(stored))

    async def show_all(self, request: Request) -> Response:
        tenant = self.tenant(request)
        if self.strangers:
            raise ApiError(403, "Files are listed for holders of a key only.", code="not_listed")
        return JSONResponse(
            {"object": "list", "data": [_described(file) for file in self.store.of(tenant)], "has_more": False}
        )

    async def show(self, request: Request, name: str) -> Response:
        return JSONResponse(_described(self.store.get(self.tenant(request), name)))

    async def delete(self, request: Request, name: str) -> Response:
        self.store.delete(self.tenant(request), name)
        return JSONResponse({"id": name, "object": "file", "deleted": True})


def _described(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id, "object": "file", "bytes": file.bytes, "created_at": file.created_s,
        "expires_at": file.expires_s, "filename": file.name, "purpose": file.purpose, "status": "processed",
    }  # fmt: skip
