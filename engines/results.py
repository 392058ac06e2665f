"""What a run hands back: plain data without tensors, serialisable. None means "not measured", never 0."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.config import CompressionConfig, SamplingConfig
from engines.experts.calibration import Calibration
from engines.media import FrameSampling, Media, MediaLimits
from engines.trace import Span, Trace

if TYPE_CHECKING:
    from threading import Event as ThreadEvent

SCHEMA_VERSION = 2


class EngineError(RuntimeError):
    """A run that cannot be done, said in one sentence for the person who asked for it."""


@dataclass(frozen=True)
class Turn:
    """One earlier exchange of a conversation."""

    question: str
    answer: str


@dataclass(frozen=True)
class RunRequest:
    """One question about any number of images and videos. Media belong to the first turn of the conversation."""

    question: str
    media: tuple[Path, ...] = ()
    history: tuple[Turn, ...] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    frames: FrameSampling = field(default_factory=FrameSampling)
    limits: MediaLimits = field(default_factory=MediaLimits)
    warm_up: bool = True
    """Run new shapes once untimed first, so that no first-use cost is charged to the run."""
    cancel: ThreadEvent | None = field(default=None, compare=False)
    """Set from another thread, it ends the run at the next layer, with what was answered until then."""


@dataclass(frozen=True)
class FramePruning:
    """Which visual tokens of one image, or of one frame group of a video, were kept.

    The grid is row by row: cell (row, column) is at `row * columns + column`.
    """

    item: int
    """Index of the image or video among the media that the run used, as `MediaReady` lists them."""
    name: str
    kind: str
    frames: tuple[int, ...]
    """Indices of the sampled frames that the group holds; (0,) for an image."""
    timestamp_s: float | None
    rows: int
    columns: int
    scores: tuple[float, ...] | None
    """The method's own score per cell, higher is kept sooner. None where the method ran no scoring."""
    kept: tuple[bool, ...]


@dataclass(frozen=True)
class PruneReport:
    """What pruning did to the whole prompt. Ratios are 0-1."""

    method: str | None
    asked_keep_ratio: float
    tokens_before: int
    tokens_after: int
    frames: tuple[FramePruning, ...] = ()
    layer: int | None = None
    """The layer of the language model, counted from 1, after which tokens were dropped; None: before the first."""
    notes: tuple[str, ...] = ()
    """What was done otherwise than asked, a sentence each; among the result's warnings too."""

    @property
    def achieved_keep_ratio(self) -> float | None:
        return self.tokens_after / self.tokens_before if self.tokens_before else None


@dataclass(frozen=True)
class CacheStats:
    """Counters of one cache level. `saved_s` adds the measured cold cost of every entry that was hit."""

    queries: int = 0
    hits: int = 0
    bytes: int = 0
    """Bytes reused (of a run) or held (in total)."""
    entries: int = 0
    evictions: int = 0
    saved_s: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        return self.hits / self.queries if self.queries else None


@dataclass(frozen=True)
class CacheReport:
    """Per level: what this run asked of it, and its state since the engine started."""

    run: dict[str, CacheStats]
    total: dict[str, CacheStats]


@dataclass(frozen=True)
class PairCounts:
    """The (token, expert) pairs of one kind of token, by MoE layer.

    Skipped are those that the checkpoint's own top-k would have computed for the same tokens.
    """

    computed: tuple[int, ...]
    skipped: tuple[int, ...]

    @property
    def total_computed(self) -> int:
        return sum(self.computed)

    @property
    def total(self) -> int:
        return self.total_computed + sum(self.skipped)

    @property
    def skipped_share(self) -> float | None:
        """0-1; None where the run had no token of this kind."""
        return sum(self.skipped) / self.total if self.total else None


@dataclass(frozen=True)
class ExpertReport:
    """Expert use of one run. A pair is one (token, expert) product; `layers` holds loads as pair counts.

    `pairs_full` is what the checkpoint's own top-k would have computed for the same tokens.
    """

    top_k: int
    own_top_k: int
    experts: int
    pairs_computed: int
    pairs_full: int
    layers: tuple[tuple[int, ...], ...]
    method: str
    """Which method skipped pairs among the `top_k`; `off` where none did."""
    calibrated: bool | None
    """Whether the method used what was measured of this checkpoint; None where it has no use for that."""
    text: PairCounts
    visual: PairCounts

    @property
    def skipped_share(self) -> float | None:
        """Of all pairs, 0-1; None where nothing ran."""
        return 1.0 - self.pairs_computed / self.pairs_full if self.pairs_full else None


@dataclass(frozen=True)
class PartWeights:
    """Where the bytes of one part of the model are: measured from the tensors in use, by number format."""

    part: str
    precision: str
    bytes_by_dtype: dict[str, int]
    kernel: str
    """Which matrix kernel multiplies these weights."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_dtype.values())


@dataclass(frozen=True)
class MemoryReport:
    """Bytes. `peak_bytes` is None where this platform cannot measure it; `peak_source` says how or why not."""

    peak_bytes: int | None
    peak_source: str
    weights: tuple[PartWeights, ...]
    kv_cache_bytes: int

    @property
    def weight_bytes(self) -> int:
        return sum(part.total_bytes for part in self.weights)


@dataclass(frozen=True)
class RunResult:
    """One answer and everything measured on the way to it. Times in seconds, engine time only."""

    answer: str
    tokens: tuple[int, ...]
    finish_reason: str
    """`stop` (the model ended), `length` (the token limit) or `cancelled`."""
    prompt_tokens: int
    """Tokens in the unpruned prompt."""
    visual_tokens: int
    """Visual tokens that the language model saw; where they were dropped inside it, those that went on."""
    ttft_s: float | None
    """Time to first token: from the start of the run, decoding the media included."""
    tpot_s: float | None
    """Time per output token after the first: mean over the decode steps. None with fewer than two tokens."""
    trace: Trace
    prune_report: PruneReport
    cache_stats: CacheReport
    expert_report: ExpertReport | None
    memory: MemoryReport
    warnings: tuple[str, ...]
    config: CompressionConfig
    model: str
    device: str
    prepare_s: float
    """Seconds spent before the clock: converting weights and warming up."""
    schema_version: int = SCHEMA_VERSION

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: tokens after the first, per second."""
        return 1.0 / self.tpot_s if self.tpot_s else None

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["prune_report"]["achieved_keep_ratio"] = self.prune_report.achieved_keep_ratio
        values["tokens_per_s"] = self.tokens_per_s
        if self.expert_report is not None:
            values["expert_report"]["skipped_share"] = self.expert_report.skipped_share
            for kind in ("text", "visual"):
                values["expert_report"][kind]["skipped_share"] = getattr(self.expert_report, kind).skipped_share
        return values

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)


# ---- events: what Engine.run yields, in this order of appearance ----


@dataclass(frozen=True)
class StageStarted:
    """A stage began. `preparing weights` and `warming up` come before the clock starts."""

    name: str


@dataclass(frozen=True)
class StageEnded:
    span: Span


@dataclass(frozen=True)
class MediaReady:
    """The decoded media, so that whoever watches can show what the model sees."""

    media: tuple[Media, ...]


@dataclass(frozen=True)
class TokenReady:
    """One more token. `text` is what it adds to the answer: whole characters only, often empty for Chinese."""

    index: int
    token: int
    text: str
    at_s: float


@dataclass(frozen=True)
class Finished:
    result: RunResult


Event = StageStarted | StageEnded | MediaReady | TokenReady | Finished


@dataclass(frozen=True)
class Capability:
    """One thing this device can or cannot do. `reason` is empty when it can."""

    name: str
    available: bool
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What the engine offers on this device; the page enables its switches from this."""

    device: str
    model: str
    family: str
    is_demo: bool
    digest: str
    own_top_k: int | None
    experts: int | None
    precisions: tuple[Capability, ...]
    pruning: tuple[Capability, ...]
    skipping: tuple[Capability, ...] = ()
    """Methods of expert skipping."""
    calibration: Calibration | None = None
    """What was measured of this checkpoint's experts, if anything."""
    others: tuple[Capability, ...] = ()

    def all(self) -> tuple[Capability, ...]:
        return self.precisions + self.pruning + self.skipping + self.others
