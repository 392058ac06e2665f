"""Drift: nothing moved is exactly 0, a planted shift trips its alarm, and chance alone keeps quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.config import CompressionConfig
from engines.engine import Engine
from engines.evaluation import Item
from engines.judge import drift
from engines.judge.ask import Asker, Problem
from engines.judge.drift import Drifts
from engines.judge.embeddings import ClipEmbeddings, cosine, unit
from engines.judge.wasserstein import sliced_wasserstein, wasserstein_drift

SIZE = 64


def cloud(random: np.random.Generator, pairs: int) -> np.ndarray:
    rows = random.standard_normal((pairs, SIZE))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_sliced_distance_is_that_of_a_slow_sort_and_of_a_moved_cloud() -> None:
    random = np.random.default_rng(0)
    one, other = cloud(random, 30), cloud(random, 30)
    directions = cloud(random, 50).T
    slow = [
        sum(abs(a - b) for a, b in zip(sorted(one @ way), sorted(other @ way), strict=True)) / 30
        for way in directions.T
    ]
    mean_projection = np.abs(cloud(random, 200_000)[:, 0]).mean()
    assert sliced_wasserstein(one, other, directions) == pytest.approx(np.mean(slow) / mean_projection, rel=0.01)
    many = cloud(random, 5000).T
    assert sliced_wasserstein(one, one + 0.3 * unit(np.ones(SIZE), SIZE), many) == pytest.approx(0.3, rel=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_shift_alarms_and_chance_keeps_quiet(seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other = cloud(random, 60), cloud(random, 60)
    assert not wasserstein_drift(one, other, seed).alarm
    assert wasserstein_drift(one, one.copy(), seed).drift == 0
    moved = other + 0.6 * unit(np.ones(SIZE), SIZE)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    assert wasserstein_drift(one, moved, seed).alarm


def test_too_few_pairs_never_alarm() -> None:
    one = np.tile(unit(np.ones(SIZE), SIZE), (4, 1))
    found = wasserstein_drift(one, -one)
    assert found.drift > 0.07
    assert not found.alarm


@pytest.mark.parametrize(("value", "verdict"), [(0.0, "quiet"), (0.15, "quiet"), (0.16, "warning"), (0.19, "alarm")])
def test_the_verdict_goes_by_the_95th_percentile(value: float, verdict: str) -> None:
    found = Drifts((value,) * 20)
    assert found.verdict == verdict
    assert found.p95_interval == pytest.approx((value, value))
    assert Drifts((*[0.0] * 95, *[1.0] * 5)).p95 == pytest.approx(np.quantile([0.0] * 95 + [1.0] * 5, 0.95))
    assert Drifts(()).verdict is None


def test_cosine_knows_nothing_and_zero() -> None:
    zero, one = np.zeros(3), np.array([1.0, 2.0, 2.0])
    assert cosine(None, None) == 1
    assert cosine(one, None) == 0
    assert cosine(zero, zero) == 1
    assert cosine(zero, one) == 0
    assert cosine(one, one * 1) == 1
    assert cosine(one, -one) == pytest.approx(-1)


def items(media_files: dict[str, Path]) -> list[Item]:
    return [
        Item((media_files["wide"],), "What is here?", "", {"category": "look"}),
        Item((Path("/no/such/file.png"),), "Gone?", ""),
        Item((), "Anything?", ""),
    ]


def last(engine: Engine, media_files: dict[str, Path], *settings: str) -> drift.Drift:
    config = CompressionConfig.full().with_settings(list(settings))
    *_, found = drift.measure(Asker(engine), items(media_files), config)
    return found


def test_the_full_model_has_not_drifted_from_itself(moe: Engine, media_files: dict[str, Path]) -> None:
    found = last(moe, media_files)
    assert (found.answers.values, found.visual.values) == ((0.0, 0.0), (0.0,))
    assert [problem.question for problem in found.problems] == ["Gone?"]
    assert isinstance(found.problems[0], Problem)
    assert found.to_dict()["answers"]["verdict"] == "quiet"
    assert found.items[0].category == "look"


def test_what_was_pruned_moves_the_visual_tokens(moe: Engine, media_files: dict[str, Path]) -> None:
    found = last(moe, media_files, "pruning.method=uniform", "pruning.keep_ratio=0.2")
    assert found.visual.p95 is not None
    assert found.visual.p95 > 0
    assert len(found.visual.values) == 1


def test_a_folder_without_a_clip_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        ClipEmbeddings(tmp_path / "gone")
    with pytest.raises(ValueError, match="cannot be read as a CLIP model"):
        ClipEmbeddings(tmp_path)
