"""Sets of questions: the bundled benchmark, a folder of media, a JSONL or CSV file, or a public VQA set on disk.

found = open_set("questions.jsonl", Path("scratch"))
found.items             # engines.evaluation.Item, whose answer is empty where the row has none
found.problems          # the rows that were left out, each with the reason
"""

from __future__ import annotations

from .base import MAX_ROWS, EvalSet, RowProblem
from .opening import BUNDLED, open_set

__all__ = ["BUNDLED", "MAX_ROWS", "EvalSet", "RowProblem", "open_set"]
