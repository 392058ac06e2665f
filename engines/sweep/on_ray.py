"""The same sweep over several machines or GPUs: each worker has an engine of its own and takes one item at a time."""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.media import MediaLimits
from engines.results import EngineError
from engines.sets import EvalSet, open_set
from engines.sweep.measure import Measurer
from engines.sweep.plan import SweepPlan
from engines.sweep.rows import Key, Row
from engines.sweep.runner import Missing, SweepProgress, check_plan, follow
from engines.sweep.store import SweepStore

ROOT = Path(__file__).resolve().parents[2]
# How long is waited before it is looked at whether the sweep was cancelled.
LOOK_S = 1.0


@dataclass(frozen=True)
class Workers:
    """Where to run, and how each worker loads its engine.

    Every machine of the cluster has this program, the checkpoint and the set at the same paths.
    """

    address: str
    """Of a running cluster; `auto` finds this machine's, `local` starts one for the time of the sweep."""
    model: str = "demo"
    device: str = "auto"
    dtype: str = "auto"
    count: int | None = None
    """None: one a GPU, or one a machine where there is no GPU."""


def run_on_ray(
    workers: Workers,
    plan: SweepPlan,
    eval_set: EvalSet,
    store: SweepStore,
    cancel: threading.Event | None = None,
    only: Collection[int] | None = None,
    limits: MediaLimits | None = None,
) -> Iterator[SweepProgress]:
    """As `run_sweep`, with the items shared out; a killed process loses at most the items that were being run.

    Raises EngineError, with one sentence, without Ray, without the cluster, or where a worker cannot do the plan.
    """
    ray = _ray()

    def results(missing: Missing) -> Iterator[Row]:
        with _cluster(ray, workers.address):
            yield from _share_out(ray, workers, plan, missing, cancel, limits or MediaLimits())

    yield from follow(plan, eval_set, store, only, results)


class _Worker:
    """Lives in a process of the cluster."""

    def __init__(self, workers: Workers, plan: SweepPlan, limits: MediaLimits) -> None:
        from engines.checkpoint import quieten_library
        from engines.engine import load_engine

        quieten_library(progress=False)
        engine = load_engine(workers.model, workers.device, workers.dtype)
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-sweep-")
        self._set = open_set(plan.set_source, Path(self._folder.name), plan.every, limits)
        check_plan(plan, self._set, engine)
        self._measurer = Measurer(engine, plan, limits)

    def rows(self, index: int, keys: list[Key]) -> list[Row]:
        try:
            return list(self._measurer.measure(self._set.items[index], keys))
        finally:
            self._measurer.forget()


def _share_out(
    ray: Any, workers: Workers, plan: SweepPlan, missing: Missing, cancel: threading.Event | None, limits: MediaLimits
) -> Iterator[Row]:
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if workers.device != "cpu" else 0
    count = workers.count or gpus or len(ray.nodes())
    cpus = max(1, int(resources.get("CPU", 1)) // count)
    # Ray gives a worker as many threads as it reserves CPUs.
    remote = ray.remote(num_cpus=cpus, num_gpus=1 if gpus else 0)(_Worker)
    idle = [remote.remote(workers, plan, limits) for _ in range(min(count, len(missing)))]
    started = list(idle)
    running: dict[Any, Any] = {}
    items = iter(missing.items())
    try:
        while True:
            while idle and (item := next(items, None)) is not None:
                worker = idle.pop()
                running[worker.rows.remote(*item)] = worker
            if not running or (cancel is not None and cancel.is_set()):
                return
            ready, _ = ray.wait(list(running), timeout=LOOK_S)
            for done in ready:
                idle.append(running.pop(done))
                yield from ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        raise EngineError(f"A worker of the sweep failed: {cause or str(error).strip().splitlines()[-1]}") from error
    finally:
        for worker in started:
            ray.kill(worker)


class _cluster:
    """Connected while open."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self._address = ray, address

    def __enter__(self) -> None:
        # Workers import this program from the place where it lies here.
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            self._ray.init(
                self._address,
                runtime_env={"env_vars": {"PYTHONPATH": paths}},
                log_to_driver=False,
                include_dashboard=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"There is no Ray cluster at {self._address}: start one with ray start --head, or give --ray local."
            ) from error

    def __exit__(self, *_error: object) -> None:
        self._ray.shutdown()


def _ray() -> Any:
    # Its reports of use would go to an address outside.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise EngineError("Sweeps over several machines need Ray: pip install -e '.[ray]'.") from error
