"""The comparison: both sides the same but for the settings, and their differences marked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engines.compare import Comparison, SideEvent, compare, mark_differences
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import MediaReady, RunRequest, TokenReady

FULL = CompressionConfig.full()


def last(engine: Engine, request: RunRequest, config: CompressionConfig) -> Comparison:
    *_, outcome = compare(engine, request, FULL, config)
    assert isinstance(outcome, Comparison)
    return outcome


def test_full_runs_first_and_both_see_the_same(moe: Engine, media_files: dict[str, Path]) -> None:
    request = RunRequest("What?", (media_files["clip"],), sampling=SamplingConfig(max_new_tokens=4))
    items = list(compare(moe, request, FULL, FULL.with_settings(["pruning.keep_ratio=0.5"])))
    sides = [item.side for item in items if isinstance(item, SideEvent)]
    assert sides == sorted(sides, reverse=True), "full, then compressed"
    media = [i.event.media for i in items if isinstance(i, SideEvent) and isinstance(i.event, MediaReady)]
    assert [item.digest for item in media[0]] == [item.digest for item in media[1]]


def test_ratios_are_compressed_over_full(moe: Engine, media_files: dict[str, Path]) -> None:
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=4))
    outcome = last(moe, request, FULL.with_settings(["pruning.keep_ratio=0.25", "precision.all=int8"]))
    ratios = outcome.ratios()
    assert ratios["visual_tokens"] == 0.25
    assert ratios["weights"] == pytest.approx(outcome.compressed.memory.weight_bytes / outcome.full.memory.weight_bytes)
    assert ratios["ttft"] == pytest.approx((outcome.compressed.ttft_s or 0) / (outcome.full.ttft_s or 1))


def test_repeats_alternate_and_give_medians(moe: Engine, media_files: dict[str, Path]) -> None:
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=3))
    items = list(compare(moe, request, FULL, FULL.with_settings(["pruning.keep_ratio=0.5"]), repeats=3))
    order = [(item.repeat, item.side) for item in items if isinstance(item, SideEvent)]
    assert list(dict.fromkeys(order)) == [
        (0, "full"), (0, "compressed"), (1, "compressed"), (1, "full"), (2, "full"), (2, "compressed"),
    ]  # fmt: skip
    outcome = items[-1]
    assert isinstance(outcome, Comparison)
    assert len(outcome.pairs) == 3
    ttft = sorted((compressed.ttft_s or 0) / (full.ttft_s or 1) for full, compressed in outcome.pairs)
    assert outcome.ratios()["ttft"] == pytest.approx(ttft[1])
    assert outcome.ranges()["ttft"] == pytest.approx((ttft[0], ttft[2]))
    assert outcome.medians("full")["ttft"] == sorted(full.ttft_s or 0 for full, _ in outcome.pairs)[1]
    assert outcome.ratios()["visual_tokens"] == 0.5


def test_stopping_in_a_repeat_keeps_the_complete_pairs(moe: Engine, media_files: dict[str, Path]) -> None:
    cancel = threading.Event()
    request = RunRequest(
        "What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=3), cancel=cancel
    )  # fmt: skip
    items = []
    for item in compare(moe, request, FULL, FULL, repeats=5):
        items.append(item)
        if isinstance(item, SideEvent) and item.repeat == 2:
            cancel.set()
    assert isinstance(items[-1], Comparison)
    assert len(items[-1].pairs) == 2


def test_no_visual_tokens_no_ratio(moe: Engine) -> None:
    outcome = last(moe, RunRequest("Hi?", sampling=SamplingConfig(max_new_tokens=2)), FULL)
    assert outcome.ratios()["visual_tokens"] is None
    assert outcome.first_difference is None


def test_leaving_frees_the_engine(moe: Engine, media_files: dict[str, Path]) -> None:
    request = RunRequest("What?", (media_files["wide"],), sampling=SamplingConfig(max_new_tokens=40))
    items = compare(moe, request, FULL, FULL)
    for item in items:
        if isinstance(item, SideEvent) and isinstance(item.event, TokenReady):
            break
    items.close()  # type: ignore[attr-defined]
    assert moe.answer(request, FULL).tokens


@pytest.mark.parametrize(
    ("full", "compressed", "ours", "theirs"),
    [
        ("a red circle", "a red circle", [("a red circle", True)], [("a red circle", True)]),
        (
            "a red circle",
            "a blue circle",
            [("a ", True), ("red", False), (" circle", True)],
            [("a ", True), ("blue", False), (" circle", True)],
        ),
        ("", "two", [], [("two", False)]),
        ("红色圆形", "蓝色圆形", [("红", False), ("色圆形", True)], [("蓝", False), ("色圆形", True)]),
        ("one, two", "one two", [("one", True), (",", False), (" two", True)], [("one", True), (" two", True)]),
    ],
)
def test_differences_are_marked_word_by_word(
    full: str, compressed: str, ours: list[tuple[str, bool]], theirs: list[tuple[str, bool]]
) -> None:
    left, right = mark_differences(full, compressed)
    assert [(segment.text, segment.same) for segment in left] == ours
    assert [(segment.text, segment.same) for segment in right] == theirs
