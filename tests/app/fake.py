"""A test double of the engine: the same events and real dataclasses, without a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from engines.agreement import Agreement
from engines.compare import SideEvent
from engines.config import CompressionConfig
from engines.device.report import DeviceReading, PlacedPart, Placement
from engines.divergence_report import Candidate, DivergenceReport, TokenDivergence, VisualAttention
from engines.media import Media
from engines.pruning import create
from engines.reports import (
    CacheReport,
    CacheStats,
    CollapseLayer,
    CollapseReport,
    ExpertReport,
    FramePruning,
    MemoryReport,
    PairCounts,
    PartWeights,
    PruneReport,
)
from engines.results import (
    Capabilities,
    Capability,
    Event,
    Finished,
    MediaReady,
    RunRequest,
    RunResult,
    StageEnded,
    StageStarted,
    TokenReady,
)
from engines.tokens.group import FrameGroup
from engines.tokens.registry import TokenRegistry
from engines.trace import STAGES, Span, Trace

PER_TOKEN, LAST = ("decode", "detokenise"), "prefix-cache store"
ONCE = tuple(name for name in STAGES if name not in (*PER_TOKEN, LAST))
WORDS = {True: ("A", " red", " circle"), False: ("A", " blue", " circle", " <b>&")}


def capabilities(**changes: object) -> Capabilities:
    values: dict = {
        "device": "CPU",
        "model": "Fake, 1 M parameters",
        "family": "qwen3_vl_moe",
        "is_demo": True,
        "digest": "0" * 64,
        "own_top_k": 4,
        "experts": 16,
        "precisions": tuple(Capability(name, True) for name in ("fp32", "bf16", "fp16", "int8", "int4")),
        "pruning": (),
        "tower_layers": 3,
    }
    return Capabilities(**{**values, **changes})


def media_of(name: str = "photo.png", frames: int = 1) -> Media:
    pixels = np.arange(frames * 64 * 96 * 3, dtype=np.uint64).astype(np.uint8).reshape(frames, 64, 96, 3)
    times = tuple(index * 0.5 for index in range(frames)) if frames > 1 else ()
    return Media("video" if frames > 1 else "image", name, pixels, times, None, None, "0" * 64)


def frame_pruning(kept: int = 3, scored: bool = True, frames: tuple[int, ...] = (0,), item: int = 0) -> FramePruning:
    """A grid of 2 rows and 3 columns whose first cells are kept."""
    return FramePruning(
        item=item,
        name="photo.png",
        kind="video" if frames != (0,) else "image",
        frames=frames,
        timestamp_s=frames[0] * 0.5 if frames != (0,) else None,
        rows=2,
        columns=3,
        scores=tuple(1 - index / 6 for index in range(6)) if scored else None,
        kept=tuple(index < kept for index in range(6)),
    )


def expert_report(method: str = "off") -> ExpertReport:
    """Two layers of three experts, two a token, for four visual and two text tokens. A method skips every second
    expert of the visual tokens, and in the second layer one of a text token too."""
    skips = method != "off"
    visual = PairCounts((4, 4) if skips else (8, 8), (4, 4) if skips else (0, 0))
    text = PairCounts((4, 3) if skips else (4, 4), (0, 1) if skips else (0, 0))
    return ExpertReport(
        top_k=2,
        own_top_k=2,
        experts=3,
        pairs_computed=visual.total_computed + text.total_computed,
        pairs_full=24,
        layers=((5, 3, 0), (4, 3, 0)) if skips else ((8, 4, 0), (6, 6, 0)),
        method=method,
        calibrated=False if method == "modality" else None,
        text=text,
        visual=visual,
    )


def trace(steps: int = 3) -> Trace:
    """Every stage once, 0.1 s each with a gap of 0.01 s after it, but decode and detokenise once a token."""
    spans, at_s = [], 0.0
    for name in ONCE:
        spans.append(Span(name, at_s, at_s + 0.1, None, {"tokens": 6}))
        at_s += 0.11
    for token in range(1, steps + 1):
        for name in ("detokenise", "decode"):
            spans.append(Span(name, at_s, at_s + 0.02, None, {"token": token}))
            at_s += 0.02
    spans.append(Span(LAST, at_s, at_s + 0.01, None, {}))
    at_s += 0.01
    return Trace(tuple(spans), at_s + 0.01)


def result(
    config: CompressionConfig | None = None,
    answer: str = "A red circle",
    finish_reason: str = "stop",
    frames: tuple[FramePruning, ...] = (frame_pruning(),),
) -> RunResult:
    config = config or CompressionConfig.full()
    after = sum(sum(frame.kept) for frame in frames)
    return RunResult(
        answer=answer,
        tokens=tuple(range(len(answer.split(" ")))),
        finish_reason=finish_reason,
        prompt_tokens=20,
        visual_tokens=after,
        ttft_s=0.5,
        tpot_s=0.02,
        trace=trace(),
        prune_report=PruneReport(
            config.pruning.method if config.pruning.active else None,
            config.pruning.keep_ratio,
            6 * len(frames),
            after,
            frames,
        ),
        cache_stats=CacheReport({"encoder": CacheStats(1, 1, 1024, saved_s=0.25)}, {"encoder": CacheStats()}),
        expert_report=expert_report(config.experts.method),
        memory=MemoryReport(
            None, "No reader on this platform", (PartWeights("all", "native", {"fp32": 4096}, "k"),), 64
        ),
        warnings=("photo.png: <i>turned</i>",),
        config=config,
        model="Fake",
        device="CPU",
        prepare_s=0.2,
    )


def divergence_report(config: CompressionConfig | None = None, cut_short: bool = False) -> DivergenceReport:
    """Three tokens of which the second differs; of six cells the compressed run dropped the last three, and the full
    model looked before token n at cell n + 2."""
    ours = Candidate(1, " red", 0.9), Candidate(2, " blue", 0.1)
    theirs = Candidate(2, " blue", 0.7), Candidate(1, " <b>red", 0.3)
    tokens = tuple(
        TokenDivergence(index, 1, text, kl, index != 1, 0.9, 0.9 if index != 1 else 0.3, ours, theirs)
        for index, (text, kl) in enumerate((("A", 0.0), (" <b>red", 1.5), (" circle", 0.25)))
    )
    shares = np.zeros((3, 6), dtype=np.float32)
    shares[[0, 1, 2], [2, 3, 4]] = 1
    registry = TokenRegistry.of(
        np.array([9, 7, 7, 7, 7, 7, 7, 9]), np.zeros((3, 8), dtype=np.int64), [7],
        [FrameGroup(0, "photo.png", "image", (0,), None, 2, 3)],
    )  # fmt: skip
    gone = np.arange(6) >= 3
    return DivergenceReport(
        tokens,
        Agreement(3, 1.75 / 3, 0.25, None, 1.5, 2 / 3),
        VisualAttention(shares, (0.5, 0.4, 0.3), registry, gone, gone),
        config or CompressionConfig.full(),
        cut_short,
    )


class FakeEngine:
    """Answers like a model would. `fail` is raised in the compressed run; `seen` records what was asked."""

    def __init__(self, fail: Exception | None = None, fail_full: Exception | None = None, is_demo: bool = True) -> None:
        self.fail, self.fail_full, self.is_demo = fail, fail_full, is_demo
        self.seen: list[tuple[RunRequest, CompressionConfig]] = []
        self.open_runs = 0
        self.cleared: list[tuple[str | None, ...]] = []
        self.pause = threading.Event()
        self.pause.set()

    def capabilities(self) -> Capabilities:
        return capabilities(is_demo=self.is_demo)

    def check(self, config: CompressionConfig) -> None:
        create(config.pruning.method, config.pruning.options)

    def cache_totals(self) -> dict[str, CacheStats]:
        return {
            "encoder": CacheStats(4, 1, 2048, 8192, entries=3, evictions=2, saved_s=0.5).within("tenant"),
            "prefix": CacheStats(80, 60, 4096, 16384, entries=2, evictions=1, saved_s=0.75, tokens=60).within("user"),
        }

    def read_device(self) -> DeviceReading:
        return DeviceReading.of(
            "CPU through a double",
            {"utilisation": 0.5, "memory_bytes": float(3 << 30)},
            {"power_w": "The double reads no power."},
            memory_total_bytes=8 << 30,
        )

    def placement(self) -> Placement:
        parts = (PlacedPart("vision", "machine memory", 1000), PlacedPart("experts", "machine memory", 2000))
        return Placement(parts, split=False)

    def clear_caches(self, level: str | None = None, tenant: str | None = None, scope: str | None = None) -> None:
        self.cleared.append((level, tenant, scope))

    def check_fp16(self, request: RunRequest) -> CollapseReport:
        if self.fail is not None:
            raise self.fail
        layers = (
            CollapseLayer("visual.blocks.0", "vision", 1000, 10, 20, 0, 12.5),
            CollapseLayer("layers.<0>", "language", 500, 0, 0, 5, 70_000.0),
        )
        return CollapseReport(layers, "float32", 20, 3)

    def divergence(
        self, request: RunRequest, config: CompressionConfig, answer: tuple[int, ...] = ()
    ) -> Iterator[SideEvent | DivergenceReport]:
        if self.fail is not None:
            raise self.fail
        for side in ("full", "compressed"):
            for index in range(3):
                self.pause.wait(10)
                if request.cancel is not None and request.cancel.is_set():
                    return
                yield SideEvent(side, TokenReady(index, index, "a", 0.1))  # type: ignore[arg-type]
        yield divergence_report(config)

    def run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        self.seen.append((request, config))
        self.open_runs += 1
        try:
            yield from self._run(request, config)
        finally:
            self.open_runs -= 1

    def _run(self, request: RunRequest, config: CompressionConfig) -> Iterator[Event]:
        full = config == CompressionConfig.full()
        error = self.fail_full if full else self.fail
        yield StageStarted("warming up")
        for name in ONCE:
            yield StageStarted(name)
            yield StageEnded(Span(name, 0.0, 0.1))
            if name == "decode media":
                if error is not None:
                    raise error
                yield MediaReady((media_of(),) if request.media else ())
        said = ""
        for index, word in enumerate(WORDS[full]):
            self.pause.wait(10)
            yield TokenReady(index, index, word, 0.1 * index)
            said += word
            if request.cancel is not None and request.cancel.is_set():
                yield Finished(result(config, said, "cancelled"))
                return
        yield Finished(result(config, said))
