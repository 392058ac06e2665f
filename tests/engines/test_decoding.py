"""Streaming text: whole characters only, and nothing lost."""

from __future__ import annotations

import pytest

from engines.decoding import Detokeniser
from engines.engine import Engine

TEXTS = [
    "a red circle",
    "红色的圆形，三个",
    "👩‍👩‍👧 and 🎉!",
    "naïve — café ½",
    "tab\tnew\nline  two",
    "混合 mixed 🙂 text",
]


@pytest.mark.parametrize("text", TEXTS)
def test_characters_come_out_whole(moe: Engine, text: str) -> None:
    tokenizer = moe.checkpoint.tokenizer
    stream = Detokeniser(tokenizer)
    pieces = [stream.add(token) for token in tokenizer(text)["input_ids"]]
    assert not any("�" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


def test_an_unfinished_character_shows_at_the_end(moe: Engine) -> None:
    tokenizer = moe.checkpoint.tokenizer
    tokens = tokenizer("🎉")["input_ids"]
    assert len(tokens) > 1
    stream = Detokeniser(tokenizer)
    assert "".join(stream.add(token) for token in tokens[:-1]) == ""
    assert stream.finish() == stream.text() != ""


def test_control_tokens_are_not_shown(moe: Engine) -> None:
    tokenizer = moe.checkpoint.tokenizer
    stream = Detokeniser(tokenizer)
    for token in tokenizer("yes<|im_end|>")["input_ids"]:
        stream.add(token)
    assert stream.text() == "yes"
