"""Accuracy on the labelled benchmark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import PRESETS, UsageError, add_model_options, add_settings, load, preset_config, print_result

if TYPE_CHECKING:
    from engines.evaluation import Report


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluation = commands.add_parser(
        "eval",
        help="measure accuracy on the labelled benchmark",
        description="Ask every question of a labelled set and print the accuracy by category, with 95 % Wilson "
        "intervals. The result goes to stdout, progress to stderr.",
    )
    add_model_options(evaluation, default=argparse.SUPPRESS)
    evaluation.add_argument(
        "set",
        nargs="?",
        default="all",
        metavar="SET",
        help="all (1,500 questions, the default), stills (1,200) or clips (300)",
    )
    add_settings(evaluation)
    evaluation.add_argument(
        "--every", type=int, default=1, metavar="N", help="ask every Nth question only, for a quick look"
    )
    evaluation.add_argument("--json", action="store_true", help="print scores and all answers as JSON")
    evaluation.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
    import tempfile
    import time

    from tqdm import tqdm

    from engines import evaluation
    from engines.demo import benchmark

    if options.set not in benchmark.SETS:
        raise UsageError(f"There is no set {options.set}; choose one of {', '.join(benchmark.SETS)}.")
    if options.every < 1:
        raise UsageError(f"--every is {options.every}; it must be at least 1.")
    if options.preset == "auto":
        raise UsageError(f"--preset auto goes by the media of one run; for eval name one of {', '.join(PRESETS)}.")
    config = preset_config(options, None).with_settings(options.assignments)
    engine = load(options)
    engine.check(config)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="workbench-eval-") as folder:
        items = benchmark.items(options.set, Path(folder), options.every)
        total = benchmark.size(options.set, options.every)
        pace_s = 0.2 if sys.stderr.isatty() else 10  # a log needs no animation
        asked = evaluation.evaluate(engine, items, config)
        bar = tqdm(asked, total=total, unit="question", file=sys.stderr, mininterval=pace_s)
        judged, right = [], 0
        for one in bar:
            judged.append(one)
            right += one.right
            bar.set_postfix_str(f"{right / len(judged):.1%} right", refresh=False)
    report = evaluation.report(judged)
    if not options.json:
        print(_describe_report(report))
        return
    offered = engine.capabilities()
    answers = [
        {**one.item.groups, "question": one.item.question, "expected": one.item.answer, "answer": one.answer,
         "right": one.right}
        for one in judged
    ]  # fmt: skip
    about = {
        "set": options.set,
        "every": options.every,
        "model": offered.model,
        "digest": offered.digest,
        "device": offered.device,
        "config": config.to_dict(),
        "seconds": time.monotonic() - began_s,
    }
    print_result({**about, **report.to_dict(), "answers": answers})


def _describe_report(report: Report) -> str:
    lines = [f"{'':16}{'questions':>10}{'right':>8}{'accuracy':>10}   95 % interval"]
    for kind, scores in [*report.groups.items(), ("", {"all": report.overall})]:
        lines.append(kind)
        for name, score in scores.items():
            if score.accuracy is not None and score.low is not None and score.high is not None:
                interval = f"{score.low:.1%} to {score.high:.1%}"
                lines.append(f"  {name:14}{score.asked:>10}{score.right:>8}{score.accuracy:>10.1%}   {interval}")
    if report.keep_ratio is not None and report.keep_ratio < 1:
        lines.append(f"Visual tokens kept: {report.keep_ratio:.1%}.")
    return "\n".join(lines)
