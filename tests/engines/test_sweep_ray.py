"""The same sweep over two workers of a local Ray cluster gives the local run's results."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines.engine import Engine
from engines.results import EngineError
from engines.sets import EvalSet, open_set
from engines.sweep.on_ray import Workers, run_on_ray
from engines.sweep.plan import SweepPlan, make_plan
from engines.sweep.results import PointResult
from engines.sweep.runner import SweepProgress, run_sweep
from engines.sweep.store import SweepStore


@pytest.fixture
def questions(media_files: dict[str, Path], tmp_path: Path) -> EvalSet:
    rows = []
    for name, path in media_files.items():
        (tmp_path / f"{name}{path.suffix}").write_bytes(path.read_bytes())
        rows += [{"media": f"{name}{path.suffix}", "question": f"{word}?", "answer": "x"} for word in ("What", "Who")]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return open_set(tmp_path / "questions.jsonl", tmp_path / "out")


def plan_of(engine: Engine, questions: EvalSet, tmp_path: Path) -> SweepPlan:
    points = [("pruning.keep_ratio=0.25",), ("pruning.keep_ratio=0.5", "experts.top_k=1")]
    return make_plan(
        points, questions, engine.capabilities(), str(tmp_path / "questions.jsonl"),
        repeats=2, timed_items=2, max_new_tokens=4, measure_kl=True,
    )  # fmt: skip


def quality(steps: list[SweepProgress]) -> list[PointResult]:
    assert steps[-1].points is not None
    assert steps[-1].done == steps[-1].total
    # Another process may sum a product in another order.
    return [
        replace(point, ttft_s=None, total_s=None, ttft_ratio=None, total_ratio=None, peak_bytes=None,
                kl=pytest.approx(point.kl, abs=1e-6))
        for point in steps[-1].points
    ]  # fmt: skip


def test_two_workers_give_the_results_of_one(
    moe: Engine, tiny_folders: dict[str, Path], questions: EvalSet, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    plan = plan_of(moe, questions, tmp_path)
    with SweepStore(tmp_path / "local.sqlite") as store:
        local = list(run_sweep(moe, plan, questions, store))
    workers = Workers("local", str(tiny_folders["qwen3_vl_moe"]), "cpu", "fp32", count=2)
    with SweepStore(tmp_path / "ray.sqlite") as store:
        shared = list(run_on_ray(workers, plan, questions, store))
        rows = store.rows(plan)
        assert len(rows) == plan.runs
        assert all(row.total_s and row.ttft_s for row in rows if row.timed)
        # What is there already needs no cluster.
        assert [step.done for step in run_on_ray(replace(workers, address="none"), plan, questions, store)] == [
            plan.runs
        ] * 2
        with pytest.raises(EngineError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
            list(run_on_ray(replace(workers, address="127.0.0.1:1"), replace(plan, seed=1), questions, store))
    assert quality(shared) == quality(local)


def test_without_ray_a_sentence_says_what_to_install(
    moe: Engine, questions: EvalSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        SweepStore(tmp_path / "ray.sqlite") as store,
        pytest.raises(EngineError, match=r"pip install -e '\.\[ray\]'"),
    ):
        list(run_on_ray(Workers("auto"), plan_of(moe, questions, tmp_path), questions, store))
