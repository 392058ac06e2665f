"""What the stages of a run measured: plain data, serialisable, a report a stage."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from engines.tokens.group import FrameGroup


@dataclass(frozen=True)
class FramePruning(FrameGroup):
    """Which visual tokens of one image, or of one frame group of a video, were kept."""

    scores: tuple[float, ...] | None
    """The method's own score per cell, higher is kept sooner. None where the method ran no scoring."""
    kept: tuple[bool, ...]


@dataclass(frozen=True)
class Reading:
    """What the device said before a run. Shares 0-1; None = not measured."""

    memory: float | None
    memory_source: str
    """Which memory it is."""
    cache_misses: float | None
    """Share of the encoder cache's latest queries that missed; None where it was not asked."""
    utilisation: float | None
    utilisation_source: str


@dataclass(frozen=True)
class Adaptation:
    """How the keep ratio of a run followed the device."""

    reading: Reading
    asked: float
    formula: float
    """What the readings give, whether or not it was used."""
    used: float
    triggered: bool
    sentence: str
    """All of it in words."""


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
    adaptation: Adaptation | None = None
    """None where the keep ratio does not follow the device."""

    @property
    def achieved_keep_ratio(self) -> float | None:
        return self.tokens_after / self.tokens_before if self.tokens_before else None

    @property
    def cells(self) -> list[bool]:
        """Whether each visual token of the whole prompt was kept, numbered as in `TokenRegistry`."""
        return [kept for frame in self.frames for kept in frame.kept]


@dataclass(frozen=True)
class FrameFidelity(FrameGroup):
    """How close the reduced vision tower stays to the whole one in one image or frame group, token by token.

    The grid holds every visual token, pruned afterwards or not.
    """

    similarity: tuple[float, ...]
    """Cosine between both towers' centred responses of the 3 x 3 neighbourhood, -1 to 1."""
    overlap: tuple[float, ...]
    """Share of the token's `nearest` most similar tokens that is the same with both towers, 0-1."""
    nearest: int
    """0 in an image of one token, which has no neighbours to compare."""

    @property
    def mean_similarity(self) -> float | None:
        """None in an image of one token."""
        return statistics.fmean(self.similarity) if self.nearest else None

    @property
    def mean_overlap(self) -> float | None:
        return statistics.fmean(self.overlap) if self.nearest else None


@dataclass(frozen=True)
class VisionReport:
    """What was left out of the vision tower. A unit becomes one visual token; their number does not change."""

    method: str | None
    """None: the whole tower ran."""
    asked_keep_ratio: float
    after_layer: int | None
    """The layer of the tower, counted from 1, up to which every unit was computed."""
    layers: int
    units_before: int
    units_after: int
    """Units that the later layers computed, over all images and frame groups."""
    fidelity: tuple[FrameFidelity, ...] | None = None
    """None: not measured."""

    @property
    def achieved_keep_ratio(self) -> float | None:
        return self.units_after / self.units_before if self.units_before else None


@dataclass(frozen=True)
class CacheStats:
    """Counters of one cache level. `saved_s` adds the measured cold cost of every entry that was hit.

    The encoder cache counts images and frame groups, the prefix cache tokens of unpruned prompts.
    """

    queries: int = 0
    hits: int = 0
    bytes: int = 0
    """Bytes reused (of a run) or held (in total)."""
    budget_bytes: int = 0
    """Bytes that may be held at most; of totals only."""
    entries: int = 0
    """Of totals only."""
    evictions: int = 0
    """Entries given up for others; of a run, for those that it left."""
    saved_s: float = 0.0
    tokens: int = 0
    """Tokens reused: visual ones of the encoder cache, those of a prompt of the prefix cache."""
    scopes: dict[str, CacheStats] = field(default_factory=dict)
    """The same by whom the entries were shared with (`cache.scope`): session, resource, user, tenant, global."""

    def and_then(self, later: CacheStats) -> CacheStats:
        """Of this run and a later one together."""
        mine, others = vars(self), vars(later)
        summed = {name: value + others[name] for name, value in mine.items() if name != "scopes"}
        names = dict.fromkeys((*self.scopes, *later.scopes))
        usual = CacheStats()
        scopes = {name: self.scopes.get(name, usual).and_then(later.scopes.get(name, usual)) for name in names}
        return CacheStats(**summed, scopes=scopes)

    def within(self, scope: str) -> CacheStats:
        """With all of it said to be of one scope."""
        return replace(self, scopes={scope: self})

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
class PairsKept:
    """(query, key) pairs across the modalities, over all heads, layers and steps of a run."""

    kept: int
    total: int
    """What causal attention without the mask would have had."""

    @property
    def share(self) -> float | None:
        """0-1; None where there was no such pair."""
        return self.kept / self.total if self.total else None


@dataclass(frozen=True)
class AttentionReport:
    """What the cross-modal mask kept. 0 for a top-k is all."""

    text_top_k: int
    visual_top_k: int
    text: PairsKept
    """Text queries and visual keys."""
    visual: PairsKept
    """Visual queries and text keys."""


@dataclass(frozen=True)
class PartWeights:
    """Where the bytes of one part of the model are: measured from the tensors in use, by number format."""

    part: str
    precision: str
    bytes_by_dtype: dict[str, int]
    kernel: str
    """Which matrix kernel multiplies these weights."""
    ran: dict[str, int] = field(default_factory=dict)
    """How many products each kernel computed in the run, counted as they were made; empty for float formats."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_dtype.values())


@dataclass(frozen=True)
class KVLayer:
    """What one layer of full attention holds at the end of a run. `layer` counts from 1."""

    layer: int
    tokens_seen: int
    """Of the prompt, as far as they reached this layer, and of the answer."""
    tokens_held: int
    """Those that a new token still attends to."""
    visual_seen: int
    visual_held: int
    blocks: int
    blocks_released: int
    plain_bytes: int
    """What a plain cache of every token seen would hold, in the model's own number format."""
    bytes: int
    """Measured from the tensors: codes, scales, zero points, full-precision rows and bookkeeping."""

    @property
    def tokens_dropped(self) -> int:
        return self.tokens_seen - self.tokens_held


@dataclass(frozen=True)
class KVReport:
    """The compressed KV cache at the end of a run. States of linear attention are left alone and not in it."""

    bits: int
    """0: the model's own number format."""
    block_tokens: int
    layers: tuple[KVLayer, ...]
    zero_share: float | None
    """Share of the values in whole blocks that are exactly 0; None where there is no block or no threshold."""

    @property
    def plain_bytes(self) -> int:
        return sum(layer.plain_bytes for layer in self.layers)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    @property
    def share(self) -> float | None:
        """Bytes held over those of a plain cache; None before any token."""
        return self.bytes / self.plain_bytes if self.plain_bytes else None


@dataclass(frozen=True)
class LayerError:
    """How far a quantised layer's output is from its own, as a share of it: 0.1 is a tenth.

    The square root of noise power over signal power, from the weights and the mean squares of what enters each input
    channel: those of a calibration, or else all alike. The fused experts of one layer count as one.
    """

    path: str
    part: str
    precision: str
    before: float
    """Of the quantised weights alone."""
    after: float
    """With the low-rank compensation; the same as `before` where there is none."""
    rank: int
    parameters: int
    """Of the weights."""
    added_parameters: int
    """Of the compensation."""


@dataclass(frozen=True)
class PrecisionReport:
    """What quantising cost, layer by layer, and what the pool of weights holds. Estimated from weights, not a run."""

    layers: tuple[LayerError, ...]
    calibrated: bool | None
    """Whether errors and scales go by a calibration of this checkpoint; None where nothing is quantised."""
    held_bytes: int
    """Weights of products in memory at all precisions, those not in use included."""
    bound_bytes: int
    """What may be held before weights that are not in use are given up."""

    @property
    def added_share(self) -> float | None:
        """Parameters of the compensation over those of the quantised weights, 0-1."""
        weights = sum(layer.parameters for layer in self.layers)
        return sum(layer.added_parameters for layer in self.layers) / weights if weights else None


@dataclass(frozen=True)
class CollapseLayer:
    """What fp16 would do to the values that one layer put out in a run."""

    path: str
    part: str
    values: int
    flushed: int
    """Not 0 in the run, and 0 in fp16."""
    subnormal: int
    """Below fp16's normal range, where digits are lost."""
    overflowed: int
    """Infinite in fp16."""
    largest: float
    """The largest magnitude; infinity and not-a-number of the run itself left out."""


@dataclass(frozen=True)
class CollapseReport:
    """Which layers would lose values in fp16, from one real run at the checkpoint's own precision."""

    layers: tuple[CollapseLayer, ...]
    native: str
    """Number format of the run."""
    prompt_tokens: int
    answer_tokens: int

    @property
    def overflowing(self) -> tuple[CollapseLayer, ...]:
        return tuple(layer for layer in self.layers if layer.overflowed)


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
