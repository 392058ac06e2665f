"""A list of messages as the engine takes it: earlier turns, a question, and the media of the first turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.api.errors import bad_request
from app.api.schema import MediaPart, Message, TextPart
from engines.results import Turn


@dataclass(frozen=True)
class Conversation:
    question: str
    history: tuple[Turn, ...]
    media: tuple[MediaPart, ...]
    """In the order given. The prompt has them before the text of the first message, wherever they stood in it."""


def read_conversation(messages: Sequence[Message]) -> Conversation:
    """ApiError with a sentence for what the engine's prompt has no place for."""
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if message.role in ("system", "developer"):
            raise bad_request(
                "This endpoint takes no system message; put its text at the beginning of the first user message.",
                f"{where}.role",
            )
        if message.role not in ("user", "assistant"):
            raise bad_request(f"The role {message.role!r} is not supported; use user and assistant.", f"{where}.role")
        if message.role != ("user", "assistant")[index % 2]:
            raise bad_request("Messages must alternate, user and assistant, beginning with user.", f"{where}.role")
        if index and any(not isinstance(part, TextPart) for part in message.content):
            raise bad_request(
                "Images and videos are taken in the first user message only; put them there.", f"{where}.content"
            )
    if messages[-1].role != "user":
        raise bad_request("The last message must be the user's.", f"messages.{len(messages) - 1}.role")
    texts = [_text(message) for message in messages]
    for index, text in enumerate(texts):
        if not text.strip():
            raise bad_request("The message has no text; write what you want to know.", f"messages.{index}.content")
    return Conversation(
        question=texts[-1],
        history=tuple(Turn(question, answer) for question, answer in zip(texts[:-1:2], texts[1::2], strict=True)),
        media=tuple(part for part in messages[0].content if not isinstance(part, TextPart)),
    )


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))
