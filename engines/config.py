"""What a run is asked to do: frozen dataclasses, validated, JSON in and out.

Each setting is described once, by `setting()`, with its help line and allowed values. The command line, the page
and the error sentences are all made from that description.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from engines.settings import Section, fingerprint, setting

NATIVE = "native"
PRECISIONS = (NATIVE, "fp32", "bf16", "fp16", "int8", "int4")
INTEGER = ("int8", "int4")
"""Those that quantise, and so have a calibration and a compensation."""
PARTS = ("vision", "projector", "language", "experts")
OFF = "off"


@dataclass(frozen=True)
class PruningConfig(Section):
    """Which share of the merged visual tokens reaches the language model, and who chooses them."""

    where = "pruning"
    method: str = setting("mmr", label="Method", help="How the visual tokens to keep are chosen.")
    keep_ratio: float = setting(
        1.0,
        label="Keep ratio",
        help="Share of the visual tokens that the language model sees. 1 switches pruning off.",
        above=0.0,
        high=1.0,
        step=0.05,
    )
    scope: str = setting(
        "frame",
        label="Budget for each",
        help="What shares one budget: frame - every image and every frame group of a video keeps its share; "
        "item - an image or a whole video; prompt - all media together.",
        choices=("frame", "item", "prompt"),
    )
    min_tokens: int = setting(
        1,
        label="Minimum per image or frame",
        help="At least this many tokens of every image, and of every frame group of a video, are kept in every scope.",
        low=1,
        high=64,
        step=1,
    )
    merge: bool = setting(
        False,
        label="Merge dropped tokens",
        help="Averages each dropped token into the most similar one that stays of its image or frame group.",
    )
    adaptive: bool = setting(
        False,
        label="Adapt to this device",
        help="When memory and the encoder cache are short, or the load swings, the keep ratio becomes at most "
        "1 - 0.6 x memory in use - 0.2 x cache misses, and never below 0.3; the result says the readings and why.",
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters by name; its dataclass validates them."""

    @property
    def active(self) -> bool:
        return self.keep_ratio < 1.0

    @property
    def may_prune(self) -> bool:
        """Whether a run can drop tokens; with `adaptive` its readings decide."""
        return self.active or self.adaptive


@dataclass(frozen=True)
class VisionConfig(Section):
    """Which share of the vision tower's work is done: from some layer on only some merge units are computed.

    A merge unit is the square of patches of which a merger makes one visual token. The number of visual tokens, their
    positions and the deepstack features stay as they are.
    """

    where = "vision"
    method: str = setting(
        "merging", label="Method of the tower", help="How the units that the later layers compute are chosen."
    )
    keep_ratio: float = setting(
        1.0,
        label="Tower keep ratio",
        help="Share of each image's or frame group's units that the later layers of the vision tower compute. "
        "1 switches this off. The number of visual tokens stays the same.",
        above=0.0,
        high=1.0,
        step=0.05,
    )
    after_layer: int = setting(
        1,
        label="After tower layer",
        help="Up to this layer of the vision tower every unit is computed. Lower saves more time, higher changes less.",
        low=1,
        high=128,
        step=1,
    )
    measure_fidelity: bool = setting(
        False,
        label="Measure neighbourhood fidelity",
        help="After the run, and outside its times, encodes once more with the whole tower and says how much of each "
        "3 x 3 neighbourhood stayed the same.",
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters by name; its dataclass validates them."""

    @property
    def active(self) -> bool:
        return self.keep_ratio < 1.0

    def features_key(self) -> str:
        """Equal for settings that make the same features of the same pixels."""
        if not self.active:
            return "whole"
        return fingerprint([self.method, self.keep_ratio, self.after_layer, dict(self.options)])


@dataclass(frozen=True)
class AttentionConfig(Section):
    """What the tokens of one modality may look at in the other, inside the language model."""

    where = "attention"
    cross_modal: bool = setting(
        False,
        label="Cross-modal top-k mask",
        help="Per head, a text token attends only to its best visual tokens and a visual token only to its best text "
        "tokens. It costs time instead of saving any, on every device: all scores are computed to find the best, and "
        "a mask rules out the fastest kernels. It shows what the answer loses.",
    )
    text_top_k: int = setting(
        12,
        label="Visual tokens per text token",
        help="How many visual tokens each head of a text token attends to. 0 is all.",
        low=0,
        high=256,
        step=1,
    )
    visual_top_k: int = setting(
        24,
        label="Text tokens per visual token",
        help="How many text tokens each head of a visual token attends to. It sees only those before it: the "
        "question follows the media, so these are template and timestamps. 0 is all.",
        low=0,
        high=256,
        step=1,
    )

    @property
    def active(self) -> bool:
        return self.cross_modal and (self.text_top_k > 0 or self.visual_top_k > 0)


@dataclass(frozen=True)
class ExpertConfig(Section):
    """How many routed experts each token uses, and which (token, expert) pairs among those are skipped."""

    where = "experts"
    top_k: int | None = setting(
        None,
        label="Experts per token",
        help="Each token uses only its k best-scoring experts; the others are not computed. "
        "The checkpoint's own number switches this off.",
        low=1,
        high=256,
        step=1,
    )
    method: str = setting(
        OFF,
        label="Expert skipping",
        help="How the (token, expert) pairs to skip are chosen, among the experts that each token may use.",
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters by name; its dataclass validates them."""
    renormalise: bool = setting(
        True,
        label="Renormalise weights",
        help="A token's remaining experts share the weight of those that it skips. "
        "Off: what a skipped expert would have added is left out.",
    )

    @property
    def skipping(self) -> bool:
        return self.method != OFF


@dataclass(frozen=True)
class PrecisionConfig(Section):
    """Number format of the weights and their products, part by part. `native` is as the checkpoint was loaded."""

    where = "precision"
    vision: str = setting(NATIVE, label="Vision tower", help="Vision blocks and patch embedding.", choices=PRECISIONS)
    projector: str = setting(
        NATIVE, label="Projector", help="The mergers between vision tower and language model.", choices=PRECISIONS
    )
    language: str = setting(
        NATIVE, label="Language model", help="Attention, dense layers and output head.", choices=PRECISIONS
    )
    experts: str = setting(NATIVE, label="Experts", help="The fused expert weights.", choices=PRECISIONS)
    group_size: int = setting(
        64,
        label="int4 group size",
        help="So many int4 weights of a row share a scale. Smaller is closer to the full model and takes more memory.",
        choices=(32, 64, 128),
    )
    tied_head: bool = setting(
        False,
        label="Quantise a tied output head",
        help="An output head that is the table of input embeddings keeps its format at int8 and int4. On: it is "
        "quantised for the output; the table stays as it is for the input.",
    )
    use_calibration: bool = setting(
        True,
        label="Use the calibration",
        help="int8 and int4 choose their scales, and the compensation its directions, by the activations that "
        "launch.py calibrate precision measured, if it did. Off: by the weights alone.",
    )
    compensation_rank: int = setting(
        0,
        label="Compensation rank",
        help="Adds a low-rank correction of each int8 or int4 layer's error; typical: 8. 0 is off.",
        low=0,
        high=64,
        step=1,
    )
    compensation_share: float = setting(
        0.01,
        label="Compensation share",
        help="The correction has at most this share of a part's parameters; the terms that gain most for their size "
        "get them, so that a layer may have a lower rank, or none.",
        above=0.0,
        high=1.0,
        step=0.01,
    )

    @classmethod
    def all(cls, precision: str) -> Self:
        """The same precision for every part."""
        chosen: dict[str, Any] = dict.fromkeys(PARTS, precision)
        return cls(**chosen)

    @property
    def parts(self) -> dict[str, str]:
        """The precision of each part of the model."""
        return {part: getattr(self, part) for part in PARTS}

    def details(self, part: str) -> tuple[str | float, ...]:
        """Equal for settings that make the same weights of a part: its precision, and what else matters for that."""
        precision = getattr(self, part)
        if precision not in INTEGER:
            return (precision,)
        tied = self.tied_head if part == "language" else False
        group = self.group_size if precision == "int4" else 0
        share = self.compensation_share if self.compensation_rank else 0
        return precision, group, tied, self.use_calibration, self.compensation_rank, share


@dataclass(frozen=True)
class KVConfig(Section):
    """How the keys and values of the prompt and the answer are held while decoding, and which of them.

    Prefill is not touched: it ends with a plain cache, which is then compressed.
    """

    where = "kv"
    bits: int = setting(
        0,
        label="KV bits",
        help="Bits of a cached key or value: keys are quantised per channel, values per token, in blocks. 0 leaves "
        "them as the model made them.",
        choices=(0, 8, 4),
    )
    block_tokens: int = setting(
        64,
        label="Tokens per block",
        help="So many tokens share the scales of their keys. The newest block, until it is full, is not quantised.",
        low=4,
        high=1024,
        step=4,
    )
    sink_tokens: int = setting(
        4,
        label="Sink tokens",
        help="The first tokens of the prompt are never dropped and never quantised.",
        low=0,
        high=64,
        step=1,
    )
    sparsity_threshold: float = setting(
        0.0,
        label="KV sparsity threshold",
        help="Values below this share of the largest in their block and head become exactly 0. 0 is off. A dropped "
        "value still takes its bits: this shows what the answer loses, it saves no memory.",
        low=0.0,
        high=0.5,
        step=0.01,
    )
    visual_keep_ratio: float = setting(
        1.0,
        label="Visual tokens kept while decoding",
        help="Share of each layer's visual tokens that stay in the cache after prefill; published: 0.1. 1 is off.",
        above=0.0,
        high=1.0,
        step=0.05,
    )
    importance: str = setting(
        "attention",
        label="Importance of visual tokens",
        help="Which stay: attention - those to which the end of the prompt attends most, layer by layer (SnapKV, "
        "arXiv 2404.14469); random - the control that any choice has to beat.",
        choices=("attention", "random"),
    )
    text_window: int = setting(
        0,
        label="Text window (tokens)",
        help="While decoding only so many of the newest text tokens, and the sinks, are attended to. 0 is all.",
        low=0,
        high=8192,
        step=1,
    )
    min_live_tokens: int = setting(
        0,
        label="Release blocks under (live tokens)",
        help="A block is released when it holds fewer live tokens than this, those that left the text window being "
        "dead; published: 8. 0 waits until all are dead.",
        low=0,
        high=64,
        step=1,
    )
    norm_floor: float = setting(
        0.0,
        label="Release blocks below (norm)",
        help="A block is released when the L2 norm of what it adds to its layer's attention output falls below this "
        "share of what it was in the block's first step, several steps in a row; published: 0.92. 0 is off.",
        low=0.0,
        high=1.0,
        step=0.01,
    )
    norm_steps: int = setting(
        3, label="Steps in a row", help="How many steps the norm must be that low.", low=1, high=64, step=1
    )

    @property
    def active(self) -> bool:
        drops = self.visual_keep_ratio < 1.0 or self.text_window > 0 or self.norm_floor > 0
        return self.bits > 0 or self.sparsity_threshold > 0 or drops


@dataclass(frozen=True)
class ModalityConfig(Section):
    """Which media the model is given at all. A dropped kind never touches the vision tower."""

    where = "modality"
    image: bool = setting(True, label="Use images", help="Off: the model answers without the images.")
    video: bool = setting(True, label="Use videos", help="Off: the model answers without the videos.")


@dataclass(frozen=True)
class CacheConfig(Section):
    """What may be reused from earlier runs."""

    where = "cache"
    encoder: bool = setting(
        False,
        label="Encoder cache",
        help="An image or a clip that was encoded before, at the same precision, is not encoded again.",
    )
    prefix: bool = setting(
        False,
        label="Prefix cache",
        help="A beginning of a prompt that was prefilled before, media included, is not prefilled again: another "
        "question about the same media, or the next turn of a conversation, runs only its own tokens.",
    )
    scope: str = setting(
        "tenant",
        label="Shared within",
        help="Who finds what this run leaves in the caches: this session, whoever asks about the same media, this "
        "user, this tenant - or everyone, which only the bundled samples can be. Nothing crosses a tenant otherwise.",
        choices=("session", "resource", "user", "tenant", "global"),
    )


@dataclass(frozen=True)
class CompressionConfig:
    """Everything that may differ between the full and the compressed run. The default is `full()`: all off."""

    pruning: PruningConfig = field(default_factory=PruningConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    experts: ExpertConfig = field(default_factory=ExpertConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    modality: ModalityConfig = field(default_factory=ModalityConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    @classmethod
    def full(cls) -> Self:
        """The uncompressed model: bit-identical to transformers' own forward pass."""
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`; missing settings take their defaults, unknown ones raise ValueError."""
        sections = {item.name: item.default_factory for item in dataclasses.fields(cls)}
        built = {}
        for name, section_values in values.items():
            if name not in sections:
                raise ValueError(f"Unknown group of settings {name!r}; the groups are {', '.join(sections)}.")
            if not isinstance(section_values, Mapping):
                raise ValueError(f"{name} must hold settings by name, not {section_values!r}.")
            section = sections[name]
            known = [item.name for item in dataclasses.fields(section)]  # type: ignore[arg-type]
            unknown = [key for key in section_values if key not in known]
            if unknown:
                raise ValueError(f"Unknown setting {name}.{unknown[0]}; {name} has {', '.join(known)}.")
            built[name] = section(**section_values)  # type: ignore[operator]
        return cls(**built)

    def with_settings(self, assignments: Iterable[str]) -> Self:
        """A copy with `group.name=value` texts applied, as from a command line.

        Values are JSON where they parse as JSON and plain words otherwise: `pruning.keep_ratio=0.5`,
        `pruning.method=random`, `precision.all=int8`, `pruning.options.balance=0.3`.
        """
        values = self.to_dict()
        for assignment in assignments:
            path, equals, text = assignment.partition("=")
            keys = path.strip().split(".")
            if not equals or len(keys) < 2:
                raise ValueError(f"{assignment!r} is not of the form group.name=value, such as pruning.keep_ratio=0.5.")
            value = _parse_value(text.strip())
            if keys == ["precision", "all"]:
                values["precision"] |= dict.fromkeys(PARTS, value)
                continue
            target = values.setdefault(keys[0], {})
            for key in keys[1:-1]:
                target = target.setdefault(key, {}) if isinstance(target, dict) else None
            if not isinstance(target, dict):
                raise ValueError(f"{path} names no setting.")
            target[keys[-1]] = value
        return type(self).from_dict(values)

    def fingerprint(self) -> str:
        """SHA-256 of the settings, the same for equal settings in every process."""
        return fingerprint(self.to_dict())


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@dataclass(frozen=True)
class SamplingConfig(Section):
    """How the next token is drawn. Temperature 0 is greedy."""

    where = "sampling"
    max_new_tokens: int = setting(
        64, label="Longest answer (tokens)", help="The answer stops after this many tokens.", low=1, high=4096, step=1
    )
    temperature: float = setting(
        0.0,
        label="Temperature",
        help="0 is greedy: the same answer every time. Higher is more varied.",
        low=0.0,
        high=2.0,
        step=0.1,
    )
    top_p: float = setting(
        1.0,
        label="Top-p",
        help="Draw only from the likeliest tokens that together have this probability.",
        above=0.0,
        high=1.0,
        step=0.05,
    )
    seed: int = setting(
        0, label="Seed", help="Starts the random draws; both sides get the same.", low=0, high=2**31 - 1, step=1
    )
