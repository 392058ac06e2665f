"""What is sent back: a chat completion, or the pieces of one as server-sent events."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from engines.results import RunResult

LAST_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    """The fields that all pieces of one answer share."""

    model: str
    include_usage: bool = False
    return_trace: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, result: RunResult) -> dict[str, Any]:
        message = {"role": "assistant", "content": result.answer, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish_reason}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(result),
            **self._report(result),
        }

    def piece(self, text: str, *, first: bool = False) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": text} if first else {"content": text})

    def last(self, result: RunResult) -> list[dict[str, Any]]:
        """The piece that says why the answer ended, and where usage was asked for, one more with it."""
        end = self._chunk({}, result.finish_reason)
        if not self.include_usage:
            return [{**end, **self._report(result)}]
        return [
            end,
            {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(result), **self._report(result)},
        ]

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        unknown_yet = {"usage": None} if self.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **unknown_yet}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _report(self, result: RunResult) -> dict[str, Any]:
        if not self.return_trace:
            return {}
        report = result.to_dict()
        # What all tenants together did is for the metrics.
        del report["cache_stats"]["total"]
        return {"workbench": report}


def usage(result: RunResult) -> dict[str, Any]:
    """Tokens of the prompt before pruning, those of them that were not prefilled again, and of the answer with the one
    that ended it. An engine without a prefix cache says nothing of cached tokens: absent is unknown.
    """
    prompt, answer = result.prompt_tokens, len(result.tokens)
    counted: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }
    prefix = result.cache_stats.run.get("prefix")
    if prefix is not None:
        counted["prompt_tokens_details"] = {"cached_tokens": prefix.tokens}
    return counted


def encode(content: dict[str, Any]) -> bytes:
    """JSON, with null for a number that JSON has no word for."""
    return to_json(content, inf_nan_mode="null")


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"
