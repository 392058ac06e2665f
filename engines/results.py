"""What a run hands back: plain data without tensors, serialisable. None means "not measured", never 0."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engines.cache.scope import Scope
from engines.config import CompressionConfig, SamplingConfig
from engines.device.report import DeviceReport
from engines.experts.calibration import Calibration
from engines.media import FrameSampling, Media, MediaLimits
from engines.reports import (
    AttentionReport,
    CacheReport,
    ExpertReport,
    KVReport,
    MemoryReport,
    PrecisionReport,
    PruneReport,
    VisionReport,
)
from engines.tokens.registry import TokenRegistry
from engines.trace import Span, Trace

if TYPE_CHECKING:
    from threading import Event as ThreadEvent

    from torch import Tensor

    from engines.structure import Structure

SCHEMA_VERSION = 2


class Watch(Protocol):
    """Looks on while the language model runs one request; nothing that it sees may be changed."""

    def applied(self, structure: Structure) -> AbstractContextManager[None]:
        """While open, the request's own run is looked at, and no other."""

    def begin(self, visual: Tensor) -> None:
        """`visual` (length,) bool: which tokens of the prompt that is run next are visual."""

    def narrow(self, keep: Tensor) -> None:
        """Inside the prefill: only the rows where `keep` (tokens,) is true go on to the layers that follow."""


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
    scope: Scope = field(default_factory=Scope)
    """Whose run it is, as far as the caches are concerned."""
    alter: Callable[[Media], Media] | None = field(default=None, compare=False)
    """Done to each decoded image or clip before the model sees it, such as adding noise."""
    watch: Watch | None = field(default=None, compare=False)
    """Looks on inside the language model. Its time counts in the run, so such runs are not for timing."""


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
    vision_report: VisionReport | None = None
    """None where no image or video was encoded."""
    attention_report: AttentionReport | None = None
    """None where the cross-modal mask was off."""
    kv_report: KVReport | None = None
    """None where the KV cache was left plain."""
    precision_report: PrecisionReport | None = None
    """None from an engine that does not say."""
    device_report: DeviceReport | None = None
    """None from an engine that does not say."""
    registry: TokenRegistry | None = field(default=None, compare=False)
    """Where every token of the prompt is; None where the run ended before there was a prompt."""
    schema_version: int = SCHEMA_VERSION

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: tokens after the first, per second."""
        return 1.0 / self.tpot_s if self.tpot_s else None

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["prune_report"]["achieved_keep_ratio"] = self.prune_report.achieved_keep_ratio
        values["tokens_per_s"] = self.tokens_per_s
        values["registry"] = self.registry.to_dict() if self.registry is not None else None
        for scope in ("run", "total"):
            for level, stats in getattr(self.cache_stats, scope).items():
                values["cache_stats"][scope][level]["hit_rate"] = stats.hit_rate
        if self.vision_report is not None:
            values["vision_report"]["achieved_keep_ratio"] = self.vision_report.achieved_keep_ratio
            for written, frame in zip(
                values["vision_report"]["fidelity"] or (), self.vision_report.fidelity or (), strict=True
            ):
                written |= {"mean_similarity": frame.mean_similarity, "mean_overlap": frame.mean_overlap}
        if self.precision_report is not None:
            values["precision_report"]["added_share"] = self.precision_report.added_share
        if self.kv_report is not None:
            kv = self.kv_report
            values["kv_report"] |= {"plain_bytes": kv.plain_bytes, "bytes": kv.bytes, "share": kv.share}
        if self.attention_report is not None:
            for kind in ("text", "visual"):
                values["attention_report"][kind]["share"] = getattr(self.attention_report, kind).share
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
    tower_layers: int = 0
    """The last layer of the vision tower, counted from 1, after which it can be reduced; 0: it cannot be."""

    def all(self) -> tuple[Capability, ...]:
        return self.precisions + self.pruning + self.skipping + self.others
