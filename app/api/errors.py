"""Refusals in the form that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a client that has gone would be told: nginx's "client closed request".
GONE = 499
SURPRISE = "Something went wrong while running the model; the server log has the details."


class ApiError(Exception):
    """A request that is not carried out. The sentence is for whoever sent it."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers
        self.body: dict[str, Any] = {
            "error": {"message": sentence, "type": kind, "param": param, "code": code},
        }


def bad_request(sentence: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, sentence, param=param, code=code)


def too_large(sentence: str) -> ApiError:
    return ApiError(413, sentence, code="request_too_large")


def queue_full(retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        f"Too many requests are waiting for the engine; try again in {retry_after_s} s.",
        code="queue_full",
        kind="rate_limit_error",
        headers={"Retry-After": str(retry_after_s)},
    )


def server_error() -> ApiError:
    """Nothing of the failure itself: it may name paths of the server."""
    return ApiError(500, SURPRISE, kind="server_error", code="engine_error")
