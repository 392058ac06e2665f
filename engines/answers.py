"""The one rule by which an answer counts as right, wherever answers are judged."""

from __future__ import annotations

import unicodedata


def normalise(answer: str) -> str:
    """Case, width, spacing and a final full stop do not matter; everything else does."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(text.split()).rstrip(".。").strip()


def matches(answer: str, expected: str) -> bool:
    """Whether an answer is the expected one, up to what `normalise` evens out."""
    return normalise(answer) == normalise(expected)
