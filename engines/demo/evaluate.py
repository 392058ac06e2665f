"""Held-out accuracy by category, next to what a blind guess would reach.

    python -m engines.demo.evaluate assets/demo --scenes 100

Answers come from the plain model: the processor's prompt for one question, one forward pass, then greedy
decoding. The blind guess knows the training split by heart but sees no image: for each question it gives the
answer that is most frequent there for this very text, or for its phrasing if the text never occurred.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin

from engines.demo.batches import encode_prompt
from engines.demo.questions import Question, ask
from engines.demo.scenes import LEVEL_NAMES, Scene, make_scene

MAX_NEW_TOKENS = 48


def normalise(answer: str) -> str:
    """Case, width, spacing and a final full stop do not matter; everything else does."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(text.split()).rstrip(".。").strip()


def matches(answer: str, expected: str) -> bool:
    """The one rule by which an answer counts as right."""
    return normalise(answer) == normalise(expected)


@dataclass
class Score:
    """Counts of one category; the rates are shares of `asked`."""

    asked: int = 0
    right: int = 0
    blind_right: int = 0

    @property
    def accuracy(self) -> float:
        return self.right / self.asked if self.asked else float("nan")

    @property
    def blind(self) -> float:
        return self.blind_right / self.asked if self.asked else float("nan")


class BlindGuess:
    """The most frequent training answer, by the question's text, then by its phrasing."""

    def __init__(self, scenes: Iterable[Scene]):
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for scene in scenes:
            for question in ask(scene):
                for key in (question.text, question.template):
                    counts[key][question.answer] += 1
        # Sorted before the maximum, so that a tie does not depend on the order of scenes.
        self.best = {key: max(sorted(c), key=c.__getitem__) for key, c in counts.items()}

    def __call__(self, question: Question) -> str:
        return self.best.get(question.text) or self.best.get(question.template, "")


@torch.inference_mode()
def answer(model: PreTrainedModel, processor: ProcessorMixin, scene: Scene, text: str) -> str:
    """Greedy answer of the plain model to one question about a scene."""
    inputs = encode_prompt(processor, scene, text)
    prompt = inputs["input_ids"].shape[1]
    tokens = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    return processor.tokenizer.decode(tokens[0, prompt:], skip_special_tokens=True)


def evaluate(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    level: str,
    scenes: int,
    split: str = "test",
    questions_per_scene: int | None = None,
    blind_scenes: int = 2000,
) -> dict[str, Score]:
    """Ask all questions (or the first few of a fixed shuffle) of the first `scenes` scenes of a level."""
    blind = BlindGuess(make_scene("train", seed, level) for seed in range(blind_scenes))
    scores: dict[str, Score] = defaultdict(Score)
    for seed in range(scenes):
        scene = make_scene(split, seed, level)
        questions = ask(scene)
        if questions_per_scene is not None:
            order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(seed)).tolist()
            questions = [questions[i] for i in order[:questions_per_scene]]
        for question in questions:
            right = matches(answer(model, processor, scene, question.text), question.answer)
            guessed = matches(blind(question), question.answer)
            for key in ("all", question.category, f"language {question.language}"):
                scores[key].asked += 1
                scores[key].right += right
                scores[key].blind_right += guessed
    return dict(scores)


def table(scores: dict[str, Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| category | questions | accuracy | blind guess |", "|---|---:|---:|---:|"]
    for name in sorted(scores, key=lambda key: (key == "all", key.startswith("language"), key)):
        score = scores[name]
        lines.append(f"| {name} | {score.asked} | {score.accuracy:.1%} | {score.blind:.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--scenes", type=int, default=100, help="test scenes a level")
    parser.add_argument("--levels", nargs="+", choices=LEVEL_NAMES, default=["small"])
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    processor = AutoProcessor.from_pretrained(arguments.checkpoint)
    model = AutoModelForImageTextToText.from_pretrained(arguments.checkpoint, dtype=getattr(torch, arguments.dtype))
    model.eval()
    results = {}
    for level in arguments.levels:
        began = time.monotonic()
        scores = evaluate(model, processor, level, arguments.scenes, arguments.split)
        results[level] = {
            name: {"questions": s.asked, "accuracy": s.accuracy, "blind": s.blind} for name, s in scores.items()
        }
        if not arguments.json:
            print(
                f"\nlevel {level}, {arguments.scenes} {arguments.split} scenes, "
                f"{time.monotonic() - began:.0f} s\n\n{table(scores)}"
            )
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
