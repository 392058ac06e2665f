"""The curve of prefill speed against share skipped: what is run, in which order, and what is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.experts import METHODS
from engines.experts.curve import measure_curve
from engines.results import EngineError, Event, RunRequest

FULL = CompressionConfig.full()


class Spy:
    """Passes runs on and remembers what was asked."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seen = engine, []  # type: ignore[var-annotated]

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        self.seen.append((request, config))
        return self.engine.run(request, config)


def ask(media_files: dict[str, Path], cancel: threading.Event | None = None) -> RunRequest:
    return RunRequest(
        "What colour is the block?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=40), cancel=cancel
    )


def test_every_strength_runs_beside_one_that_skips_nothing_in_turn(moe: Engine, media_files: dict[str, Path]) -> None:
    spy = Spy(moe)
    config = FULL.with_settings(["experts.top_k=2", "pruning.keep_ratio=0.5"])
    curves = list(measure_curve(spy, ask(media_files), config, pairs=2))
    assert [curve.done for curve in curves] == list(range(1, 9))
    assert {curve.total for curve in curves} == {8}
    methods = [config.experts.method for _, config in spy.seen]
    assert methods == ["off", "random", "random", "off"] * 4
    assert all(config.pruning.keep_ratio == 0.5 for _, config in spy.seen), "the other settings apply to both"
    assert all(config.experts.top_k is None for _, config in spy.seen if config.experts.method == "off")
    assert all(request.sampling.max_new_tokens == 1 for request, _ in spy.seen)
    asked = [config.experts.options["skip"] for _, config in spy.seen if config.experts.method == "random"]
    assert asked == [0.25, 0.5, 0.75, 0.88] * 2
    last = curves[-1]
    assert all(len(point.ratios) == len(point.tokens_per_s) == 2 for point in last.points)
    shares = [point.skipped for point in last.points]
    assert shares == sorted(shares)
    assert 0.5 < shares[0] < 1.0, "half of the experts are gone by the lower top-k"
    assert json.dumps(last.to_dict())


@pytest.mark.parametrize("method", [name for name in METHODS if name != "off"])
def test_every_method_has_strengths_that_skip_more_and_more(
    moe: Engine, media_files: dict[str, Path], method: str
) -> None:
    options = ["experts.options.keep_best=false"] if method == "modality" else []
    config = FULL.with_settings([f"experts.method={method}", *options])
    spy = Spy(moe)
    (*_, curve) = measure_curve(spy, ask(media_files), config, pairs=1)
    shares = [point.skipped for point in curve.points]
    assert len(shares) == len(METHODS[method].strengths) >= 4
    assert shares == sorted(shares)
    assert shares[-1] > 0.3
    if options:
        assert all(c.experts.options["keep_best"] is False for _, c in spy.seen if c.experts.skipping)


def test_random_skips_the_share_that_it_is_told(moe: Engine, media_files: dict[str, Path]) -> None:
    (*_, curve) = measure_curve(moe, ask(media_files), FULL, pairs=1)
    assert [point.skipped for point in curve.points[:3]] == pytest.approx([0.25, 0.5, 0.75], abs=0.01)
    assert all(speed > 0 for point in curve.points for speed in (*point.tokens_per_s, *point.full_tokens_per_s))


def test_cancelled_it_keeps_the_pairs_that_were_complete(moe: Engine, media_files: dict[str, Path]) -> None:
    cancel = threading.Event()
    seen = []
    for curve in measure_curve(moe, ask(media_files, cancel), FULL):
        seen.append(curve.done)
        if curve.done == 2:
            cancel.set()
    assert seen == [1, 2]


def test_a_dense_model_says_so(engines: dict[str, Engine], media_files: dict[str, Path]) -> None:
    with pytest.raises(EngineError, match="dense"):
        next(measure_curve(engines["qwen3_vl"], replace(ask(media_files), warm_up=False), FULL))
