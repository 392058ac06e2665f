"""How a compressed model holds up on a set of questions: robustness to poor pictures, and drift."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.common import PRESETS, UsageError, add_model_options, add_settings, load, preset_config, print_result

if TYPE_CHECKING:
    from engines.config import CompressionConfig
    from engines.evaluation import Item
    from engines.judge.ask import Problem
    from engines.judge.drift import Drift, Drifts
    from engines.judge.robustness import Robustness

SETS = "all (1,500 questions, the default), stills (1,200) or clips (300)"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    robustness = _parser(
        commands,
        "robustness",
        "accuracy on noisy and distorted pictures, full and compressed",
        "Ask every question on clean pictures, with noise at 20, 15, 10 and 5 dB, and seen from aside at four "
        "strengths, of the full and of the compressed model, and print the accuracy at each level with 95 % Wilson "
        "intervals and the difference to the clean level in points.",
    )
    robustness.set_defaults(command=robustness_command)
    drift = _parser(
        commands,
        "drift",
        "how far answers and visual tokens drift from the full model's",
        "Ask every question of the full and of the compressed model, and print how far the embeddings of their answers "
        "and of their visual tokens are apart (1 - cosine; the 95th percentile warns above 0.15 and alarms above 0.18) "
        "and whether the answers as a whole moved (Wasserstein distance beyond chance; alarm above 0.07).",
    )
    drift.add_argument(
        "--clip", type=Path, metavar="FOLDER", help="embed answers and media with this CLIP model, not the checkpoint's"
    )
    drift.set_defaults(command=drift_command)


def _parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, short: str, long: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=short, description=f"{long} The result goes to stdout, progress to stderr.")
    add_model_options(parser, default=argparse.SUPPRESS)
    parser.add_argument("set", nargs="?", default="all", metavar="SET", help=SETS)
    add_settings(parser)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="ask every Nth question only")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of what is drawn (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def compressed_config(options: argparse.Namespace) -> CompressionConfig:
    if options.preset == "auto":
        raise UsageError(f"--preset auto goes by the media of one run; for a set name one of {', '.join(PRESETS)}.")
    return preset_config(options, None).with_settings(options.assignments)


@contextmanager
def questions(options: argparse.Namespace) -> Iterator[tuple[Iterator[Item], int]]:
    """The items of the set that was named, and how many they are."""
    import tempfile

    from engines.demo import benchmark

    if options.set not in benchmark.SETS:
        raise UsageError(f"There is no set {options.set}; choose one of {', '.join(benchmark.SETS)}.")
    if options.every < 1:
        raise UsageError(f"--every is {options.every}; it must be at least 1.")
    with tempfile.TemporaryDirectory(prefix="workbench-judge-") as folder:
        yield (
            benchmark.items(options.set, Path(folder), options.every),
            benchmark.size(options.set, options.every),
        )


def last_of(steps: Iterator[Any], total: int) -> Any:
    """Go through a measurement with a progress bar on stderr; None where the set is empty."""
    from tqdm import tqdm

    found = None
    pace_s = 0.2 if sys.stderr.isatty() else 10  # a log needs no animation
    for step in tqdm(steps, total=total, unit="question", file=sys.stderr, mininterval=pace_s):
        found = step
    if found is None:
        raise UsageError("The set has no questions.")
    return found


def report(options: argparse.Namespace, engine: Any, config: CompressionConfig, found: Any, words: str) -> None:
    if not options.json:
        print_result("\n".join([words, *_problem_lines(found.problems)]))
        return
    offered = engine.capabilities()
    about = {
        "set": options.set,
        "every": options.every,
        "seed": options.seed,
        "model": offered.model,
        "digest": offered.digest,
        "device": offered.device,
        "config": config.to_dict(),
    }
    print_result({**about, **found.to_dict()})


def robustness_command(options: argparse.Namespace) -> None:
    from engines.judge import robustness
    from engines.judge.ask import Asker

    config = compressed_config(options)
    with questions(options) as (items, total):
        engine = load(options)
        engine.check(config)
        found = last_of(robustness.measure(Asker(engine), items, config, seed=options.seed), total)
    report(options, engine, config, found, _robustness_words(found))


def _robustness_words(found: Robustness) -> str:
    from engines.compare import SIDES

    lines = [f"{'':26}{'full':>10}{'points':>8}   {'95 % interval':18}{'compressed':>10}{'points':>8}   95 % interval"]
    for name in ("", *found.categories):
        lines.append(name or f"all, {found.done} questions")
        for rung in found.rungs:
            line = f"  {rung.kind + ' ' + rung.label if rung.kind != 'clean' else 'clean':24}"
            for side in SIDES:
                level = found.of(side, rung)
                score = level.categories.get(name) if name else level.overall
                points = level.category_points.get(name) if name else level.points
                if score is None or score.accuracy is None or score.low is None or score.high is None:
                    line += f"{'-':>10}{'-':>8}   {'':18}"
                    continue
                interval = f"{score.low:.1%} to {score.high:.1%}"
                line += f"{score.accuracy:>10.1%}{points or 0:>+8.1f}   {interval:18}"
            lines.append(line.rstrip())
    if found.unlabelled:
        lines.append(f"{found.unlabelled} questions without a right answer were left out.")
    return "\n".join(lines)


def drift_command(options: argparse.Namespace) -> None:
    from engines.judge import drift
    from engines.judge.ask import Asker
    from engines.judge.embeddings import ClipEmbeddings

    config = compressed_config(options)
    clip = ClipEmbeddings(options.clip) if options.clip else None
    with questions(options) as (items, total):
        engine = load(options)
        engine.check(config)
        found = last_of(drift.measure(Asker(engine), items, config, clip), total)
    report(options, engine, config, found, _drift_words(found))


def _drift_words(found: Drift) -> str:
    lines = [
        f"{found.done} questions, by {found.by}.",
        f"{'drift (1 - cosine)':20}{'mean':>8}{'median':>8}{'95th':>8}   {'95 % interval':18}verdict",
        _drift_line("answers", found.answers),
        _drift_line("visual tokens", found.visual),
    ]
    shift = found.wasserstein
    if shift is not None:
        lines.append(
            f"Wasserstein: {shift.drift:.3f} beyond the {shift.by_chance:.3f} that chance gives, "
            f"p = {shift.p_value:.3f}: {'alarm' if shift.alarm else 'quiet'}"
        )
    if found.fit is not None:
        lines.append(f"Media and answer, mean cosine: full {found.fit[0]:.3f}, compressed {found.fit[1]:.3f}")
    worst = [item for item in found.worst(5) if item.answer >= 0.005]
    lines += [f"{item.answer:.2f}  {item.question}  full: {item.full}  compressed: {item.compressed}" for item in worst]
    return "\n".join(lines)


def _drift_line(name: str, drifts: Drifts) -> str:
    if drifts.p95 is None or drifts.p95_interval is None:
        return f"{name:20}{'-':>8}{'-':>8}{'-':>8}"
    low, high = drifts.p95_interval
    interval = f"{low:.3f} to {high:.3f}"
    return f"{name:20}{drifts.mean:>8.3f}{drifts.median:>8.3f}{drifts.p95:>8.3f}   {interval:18}{drifts.verdict}"


def _problem_lines(problems: tuple[Problem, ...]) -> list[str]:
    return [f"not asked: {one.question}: {one.reason}" for one in problems]
