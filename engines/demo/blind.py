"""What can be answered without looking: the yardstick that a model which sees must beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from engines.demo.questions import Question, ask
from engines.demo.scenes import Scene


class BlindGuess:
    """The most frequent answer in given scenes, by the question's text, or by its phrasing if the text is new.

    It knows the training split by heart but sees no image.
    """

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
