"""VQAv2 and TextVQA as they are distributed: JSON beside folders of images, ten people's answers a question."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .base import Row, RowProblem, read_json

# As the public evaluation harnesses ask, so that a model answers in a word and not in a sentence.
SHORT = "\nAnswer the question using a single word or phrase."
NOTE = (
    "Right means the most common of the people's answers, word for word; that is stricter than the published VQA "
    "accuracy, which gives parts of a point."
)


def read_vqav2(root: Path, questions: Path, values: dict[str, Any]) -> Iterator[Row | RowProblem]:
    """From `..._questions.json`, with the answers of `..._annotations.json` beside it where there is one.

    Images lie in a folder called as the split, such as val2014, or in images, or beside the file.
    """
    split = str(values.get("data_subtype") or "")
    answers = _annotations(questions, split)
    for number, one in enumerate(values["questions"], start=1):
        name = f"question {number}"
        if not isinstance(one, dict) or not isinstance(one.get("image_id"), int):
            yield RowProblem(name, "It has no image_id that is a whole number.")
            continue
        label = answers.get(one.get("question_id"), {})
        numbered = f"{one['image_id']:012d}.jpg"
        names = [f"COCO_{split}_{numbered}", numbered] if split else [numbered]
        media = find_media(root, names, (split, "images", ""))
        groups = {"category": label["answer_type"]} if "answer_type" in label else {}
        yield Row(name, media, _short(one.get("question")), label.get("multiple_choice_answer"), groups)


def read_textvqa(root: Path, values: dict[str, Any]) -> Iterator[Row | RowProblem]:
    """From `TextVQA_0.5.1_val.json`; images lie in train_images, test_images or images."""
    for number, one in enumerate(values["data"], start=1):
        name = f"question {number}"
        if not isinstance(one, dict) or not isinstance(one.get("image_id"), str):
            yield RowProblem(name, "It has no image_id that is a text.")
            continue
        media = find_media(root, [f"{one['image_id']}.jpg"], ("train_images", "test_images", "images", ""))
        answers = one.get("answers")
        said = [answer for answer in answers if isinstance(answer, str)] if isinstance(answers, list) else []
        yield Row(name, media, _short(one.get("question")), Counter(said).most_common(1)[0][0] if said else None)


def find_media(root: Path, names: list[str], folders: tuple[str, ...]) -> str:
    """The first of the names that is there, below the root; the first of all where none is."""
    # Unlike Path.is_file this is False, and no error, for what cannot be a file's name.
    candidates = [str(Path(folder) / name) for name in names for folder in folders]
    return next((name for name in candidates if os.path.isfile(root / name)), candidates[0])  # noqa: PTH113


def _annotations(questions: Path, split: str) -> dict[Any, dict[str, Any]]:
    """By question id, from the annotation file of the same split."""
    beside = sorted(questions.parent.glob("*annotations*.json"))
    found = [path for path in beside if split in path.name] or beside
    if not found:
        return {}
    if len(found) > 1:
        raise ValueError(f"Several files may hold the answers to {questions.name}: keep one of them beside it.")
    values = read_json(found[0])
    listed = values.get("annotations") if isinstance(values, dict) else None
    if not isinstance(listed, list):
        raise ValueError(f"{found[0].name} holds no list of annotations.")
    return {one["question_id"]: one for one in listed if isinstance(one, dict) and "question_id" in one}


def _short(question: object) -> object:
    return question.strip() + SHORT if isinstance(question, str) and question.strip() else question
