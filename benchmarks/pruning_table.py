"""The table method x keep ratio x category, from what `benchmarks.demo_claims --only pruning` printed into files.

python -m benchmarks.pruning_table FILE...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.demo_claims import KEEP_RATIOS
from engines.pruning import METHODS


def read(files: list[Path]) -> dict[str, Any]:
    """The last lines of the files, put together. Raises ValueError where they measured different things."""
    found: dict[str, Any] = {}
    for file in files:
        for name, value in json.loads(file.read_text(encoding="utf-8").splitlines()[-1]).items():
            if found.setdefault(name, value) != value and name in ("model", "every", "full"):
                raise ValueError(f"{file} has another {name!r} than the files before it: {value!r}.")
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown: a row a method and ratio, best first within a ratio; in bold what is over random's interval."""
    full = found["full"]
    categories = list(full["category"])
    lines = [
        f"| method | kept | all (95 % interval) | of full | {' | '.join(categories)} |",
        f"|---|---:|---|---:|{'---:|' * len(categories)}",
        f"| full | 100 % | {_interval(full)} | 100 % | {_row(full, categories)} |",
    ]
    for keep in KEEP_RATIOS:
        scores = {method: found[f"{method} {keep:.0%}"] for method in METHODS if f"{method} {keep:.0%}" in found}
        random = scores.get("random")
        for method, score in sorted(scores.items(), key=lambda item: -item[1]["accuracy"]):
            name = f"**{method}**" if random and score["low"] > random["high"] else method
            name += " (below random)" if random and score["high"] < random["low"] else ""
            share = score["accuracy"] / full["accuracy"]
            lines.append(
                f"| {name} | {keep:.0%} | {_interval(score)} | {share:.1%} | {_row(score, categories)} |".replace(
                    "%", " %"
                )
            )
    return "\n".join(lines)


def _interval(score: dict[str, Any]) -> str:
    return f"{score['accuracy'] * 100:.1f} ({score['low'] * 100:.1f} to {score['high'] * 100:.1f})"


def _row(score: dict[str, Any], categories: list[str]) -> str:
    return " | ".join(f"{score['category'][name] * 100:.0f}" for name in categories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    print(table(read(parser.parse_args().files)))


if __name__ == "__main__":
    main()
