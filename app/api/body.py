"""What a client sends, no more and no slower than is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fastapi import Request

from app.api.errors import ApiError, too_large
from engines.media import MIB

# A client that sends its request slowly keeps a place in the line no longer than this.
BODY_S = 120


async def pieces(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body as it comes, up to `most` bytes; ApiError if it is larger or comes too slowly.

    Of a larger one as much again is read and thrown away: a client that still sends when the line is closed sees a
    broken line instead of the reason.
    """
    sentence = f"The request is larger than {most / MIB:.0f} MiB; send fewer or smaller images and videos."
    header = request.headers.get("content-length", "")
    length = int(header) if header.isdecimal() else 0
    if length > 2 * most:
        raise too_large(sentence)
    total = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                total += len(piece)
                if total > 2 * most:
                    raise too_large(sentence)
                if max(total, length) <= most:
                    yield piece
    except TimeoutError:
        raise ApiError(408, f"The request did not arrive within {BODY_S} s.") from None
    if max(total, length) > most:
        raise too_large(sentence)


async def whole(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in pieces(request, most):
        body += piece
    return bytes(body)
