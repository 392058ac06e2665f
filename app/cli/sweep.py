"""Many settings on one set of questions, judged and timed beside the full model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import UsageError, add_model_options, load, print_result

if TYPE_CHECKING:
    from app.cli.sweep_table import Chosen
    from engines.engine import Engine
    from engines.sets import EvalSet
    from engines.sweep.plan import SweepPlan
    from engines.sweep.results import PointResult
    from engines.sweep.runner import SweepProgress
    from engines.sweep.space import Space
    from engines.sweep.store import SweepStore

# Named here, so that --help needs no model library; a test holds them to engines/sweep/front.py.
COSTS = ("total", "ttft", "weights", "kv_cache", "peak_memory")
QUALITIES = ("accuracy", "agreement", "kl")
Sweep = Callable[[Collection[int] | None], "Iterator[SweepProgress]"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="try many settings on a set of questions and mark the Pareto front",
        description="Ask every question of a set at every point of a grid of settings, and of the full model, and "
        "print quality, latency and memory of each point, the Pareto front marked. Results are kept as they are "
        "measured: a sweep that was stopped or killed goes on with --resume. The result goes to stdout, progress to "
        "stderr.",
    )
    add_model_options(sweep, default=argparse.SUPPRESS)
    sweep.add_argument(
        "set",
        nargs="?",
        metavar="SET",
        help="all (1,500 questions, the default), stills (1,200), clips (300), a folder of media, a JSONL or CSV file "
        "with media, question, and optionally answer and category, or VQAv2, TextVQA, MMBench or Video-MME on disk",
    )
    sweep.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="GROUP.NAME=A,B,C",
        dest="axes",
        help="a setting and the values to try, such as pruning.keep_ratio=1,0.5,0.25; may be repeated",
    )
    sweep.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.NAME=VALUE",
        dest="assignments",
        help="a setting that all points but the full model share; may be repeated",
    )
    sweep.add_argument("--points", type=int, metavar="N", help="N combinations drawn at random, instead of all")
    sweep.add_argument("--seed", type=int, default=0, metavar="S", help="seed of what is drawn (default: %(default)s)")
    sweep.add_argument("--every", type=int, default=1, metavar="N", help="ask every Nth question only")
    sweep.add_argument(
        "--timed-items",
        type=int,
        default=10,
        metavar="N",
        help="measure latency on N of the questions, spread evenly over the set; the others are asked for quality "
        "alone, and reuse what the vision tower made of their media (default: %(default)s)",
    )
    sweep.add_argument(
        "--repeats", type=int, default=3, metavar="R", help="timed runs of a point a question (default: %(default)s)"
    )
    sweep.add_argument("--kl", action="store_true", help="measure the divergence along the full model's answers too")
    sweep.add_argument("--store", type=Path, metavar="FILE", help="keep results here (default: in the user's cache)")
    sweep.add_argument(
        "--resume",
        action="store_true",
        help="go on with a stopped sweep; without --axis the newest in --store",
    )
    sweep.add_argument("--find", metavar="SETTING", help="find the fastest value of this axis that keeps the --floor")
    sweep.add_argument("--floor", type=float, metavar="SHARE", help="with --find: least share of the full quality")
    sweep.add_argument("--cost", choices=COSTS, default="total", help="cost of the front (default: %(default)s)")
    sweep.add_argument("--quality", choices=QUALITIES, help="quality of the front (default: accuracy, else agreement)")
    sweep.add_argument(
        "--ray", metavar="ADDRESS", help="share the questions out over a Ray cluster: its address, auto, or local"
    )
    sweep.add_argument("--workers", type=int, metavar="N", help="with --ray: so many workers (default: one a GPU)")
    sweep.add_argument("--json", action="store_true", help="print everything as JSON")
    sweep.set_defaults(command=command)


def command(options: argparse.Namespace) -> int | None:
    import tempfile

    from app.cli.sweep_table import as_json, describe
    from engines.sets import open_set
    from engines.sweep.store import SweepStore

    _check_usage(options)
    resumed = _newest_plan(options.store) if options.resume and not options.axes else None
    source = resumed.set_source if resumed else _source(options.set or "all")
    with tempfile.TemporaryDirectory(prefix="workbench-sweep-") as folder:
        found = open_set(source, Path(folder), resumed.every if resumed else options.every)
        for problem in found.problems:
            print(f"left out, {problem.row}: {problem.reason}", file=sys.stderr)
        engine = load(options)
        plan = resumed or _plan(options, engine, found, source)
        path = options.store or _default_store(plan)
        with SweepStore(path) as store:
            _check_resuming(options, plan, store)
            print(
                f"{len(plan.points)} points, {plan.items} questions, {plan.runs} runs; kept in {path}", file=sys.stderr
            )
            try:
                points, chosen = _run(options, _sweep(options, engine, plan, found, store), plan, found)
            except KeyboardInterrupt:
                print(
                    f"launch.py: stopped; {store.count(plan)} of {plan.runs} runs are kept. To go on: the same command "
                    f"with --resume, or launch.py sweep --resume --store {path}",
                    file=sys.stderr,
                )
                return 130
    cost, quality = options.cost, options.quality or _quality(found)
    show = as_json if options.json else describe
    print_result(show(plan, found, points, cost, quality, chosen))
    return None


def _run(
    options: argparse.Namespace, sweep: Sweep, plan: SweepPlan, found: EvalSet
) -> tuple[tuple[PointResult, ...], Chosen | None]:
    """All points, or with --find those that it takes to choose one."""
    from app.cli.sweep_table import Chosen
    from engines.sweep.find import find_fastest, share_of_full
    from engines.sweep.front import QUALITIES as FIGURES
    from engines.sweep.space import grid

    if options.find is None:
        return _follow(sweep(None)), None
    figure = FIGURES[options.quality or _quality(found)]
    axis = plan.places(grid(_space(options)))
    points: tuple[PointResult, ...] = ()

    def share(place: int) -> float:
        nonlocal points
        points = _follow(sweep({axis[place]}))
        return share_of_full(points, plan.points[axis[place]], figure)

    result = find_fastest(len(axis), share, options.floor)
    settings = None if result.place is None else plan.points[axis[result.place]]
    tried = [(" ".join(plan.points[axis[place]]) or "full", value) for place, value in result.tried.items()]
    return points, Chosen(settings, options.floor, tuple(tried), result.monotone, result.note)


def _sweep(options: argparse.Namespace, engine: Engine, plan: SweepPlan, found: EvalSet, store: SweepStore) -> Sweep:
    from engines.sweep.runner import run_sweep

    if options.ray is None:
        return lambda only: run_sweep(engine, plan, found, store, only=only)
    from engines.sweep.on_ray import Workers, run_on_ray

    workers = Workers(options.ray, options.model, options.device, options.dtype, options.workers)
    return lambda only: run_on_ray(workers, plan, found, store, only=only)


def _follow(steps: Iterator[SweepProgress]) -> tuple[PointResult, ...]:
    """Go through a sweep with a bar on stderr; what is known at its end."""
    from tqdm import tqdm

    points: tuple[PointResult, ...] = ()
    pace_s = 0.2 if sys.stderr.isatty() else 10  # a log needs no animation
    with closing(steps):  # type: ignore[type-var]
        first = next(steps)
        # Runs of an earlier process are no part of the pace.
        with tqdm(total=first.total, initial=first.done, unit="run", file=sys.stderr, mininterval=pace_s) as bar:
            for step in steps:
                bar.update(step.done - bar.n)
                points = step.points or points
    return points


def _plan(options: argparse.Namespace, engine: Engine, found: EvalSet, source: str) -> SweepPlan:
    from engines.sweep.plan import make_plan
    from engines.sweep.space import check_points, grid, sample

    space = _space(options)
    points = grid(space) if options.points is None else sample(space, options.points, options.seed)
    check_points(engine, points)
    return make_plan(
        points,
        found,
        engine.capabilities(),
        source,
        every=options.every,
        repeats=options.repeats,
        timed_items=options.timed_items,
        seed=options.seed,
        measure_kl=options.kl or options.quality == "kl",
    )


def _space(options: argparse.Namespace) -> Space:
    from engines.sweep.space import Axis, Space

    return Space(tuple(map(Axis.parse, options.axes)), tuple(options.assignments))


def _check_usage(options: argparse.Namespace) -> None:
    if not options.axes and not options.resume:
        raise UsageError("sweep needs at least one --axis, such as --axis pruning.keep_ratio=1,0.5,0.25.")
    if options.resume and not options.axes:
        if options.store is None:
            raise UsageError("--resume without --axis needs the --store that the sweep was kept in.")
        if options.set is not None or options.assignments or options.points is not None or options.kl:
            raise UsageError("--resume without --axis takes the sweep as it was begun; leave SET and its options out.")
    if options.every < 1:
        raise UsageError(f"--every is {options.every}; it must be at least 1.")
    if options.workers is not None and (options.ray is None or options.workers < 1):
        raise UsageError("--workers needs --ray, and must be at least 1.")
    if (options.find is None) != (options.floor is None):
        raise UsageError("--find and --floor need each other, such as --find pruning.keep_ratio --floor 0.97.")
    if options.find is not None:
        axes = [axis.setting for axis in _space(options).axes] if options.axes else []
        if axes != [options.find] or options.points is not None:
            raise UsageError(
                f"--find {options.find} needs that axis alone, its values from the best quality to the fastest, and no "
                "--points; fix the other settings with --set."
            )
        if options.quality == "kl":
            raise UsageError("--find keeps a share of the full model's accuracy or agreement; a divergence has none.")


def _check_resuming(options: argparse.Namespace, plan: SweepPlan, store: SweepStore) -> None:
    done = store.count(plan)
    if done and not options.resume:
        raise UsageError(
            f"{store.path} holds {done} of the {plan.runs} runs of this sweep already; add --resume to go on with it, "
            "or name another --store."
        )
    if options.resume and not done:
        raise UsageError(f"{store.path} holds nothing of this sweep; leave --resume out to begin it.")


def _newest_plan(path: Path) -> SweepPlan:
    from engines.sweep.store import SweepStore

    if not path.is_file():
        raise UsageError(f"There is no file {path} to resume from.")
    with SweepStore(path) as store:
        plans = store.plans()
    if not plans:
        raise UsageError(f"{path} holds no sweep.")
    return plans[-1]


def _source(named: str) -> str:
    """As it is kept in the plan: a path that is right from any folder."""
    from engines.sets import BUNDLED

    return named if named in BUNDLED else str(Path(named).absolute())


def _default_store(plan: SweepPlan) -> Path:
    from engines.experts.calibration import cache_folder

    return cache_folder() / "sweeps" / f"{plan.fingerprint[:16]}.sqlite"


def _quality(found: EvalSet) -> str:
    return "accuracy" if found.labelled else "agreement"
