"""What a run is asked to do: frozen dataclasses, validated, JSON in and out.

Each setting is described once, by `setting()`, with its help line and allowed values. The command line, the page
and the error sentences are all made from that description.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

NATIVE = "native"
PRECISIONS = (NATIVE, "fp32", "bf16", "int8")
OFF = "off"


def setting(
    default: Any,
    *,
    label: str,
    help: str,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    step: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with what a person must know about it.

    `low` and `high` are inclusive bounds, `above` an exclusive lower bound, `choices` the allowed words.
    """
    described = {
        "label": label,
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "step": step,
        "choices": choices,
    }
    return field(default=default, metadata=described)


def check_settings(instance: Any, where: str = "") -> None:
    """Raise ValueError, with the value and what is allowed, for the first field outside its description."""
    for item in dataclasses.fields(instance):
        if "label" not in item.metadata:
            continue
        name = f"{where}.{item.name}" if where else item.name
        _check_value(name, getattr(instance, item.name), item)


def type_name(item: dataclasses.Field) -> str:
    """The type of a setting as it is written, whether or not the file postpones its annotations."""
    return item.type.__name__ if isinstance(item.type, type) else str(item.type)


def _check_value(name: str, value: Any, item: dataclasses.Field) -> None:
    described = item.metadata
    if described["choices"] is not None:
        if value not in described["choices"]:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(described['choices'])}.")
        return
    kind = type_name(item)
    if value is None and "None" in kind:
        return
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; it must be true or false.")
        return
    if kind.startswith("str"):
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}; it must be a text.")
        return
    whole = kind.startswith("int")
    allowed = allowed_range(described, whole=whole)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{name} is {value!r}; it must be {allowed}.")
    low, high, above = described["low"], described["high"], described["above"]
    # Written so that NaN, which compares false with everything, is refused too.
    inside = (low is None or value >= low) and (high is None or value <= high) and (above is None or value > above)
    if not inside or value != value:
        raise ValueError(f"{name} is {value!r}; it must be {allowed}.")


def allowed_range(described: Mapping[str, Any], *, whole: bool) -> str:
    """The allowed values in words: 'a number above 0 and at most 1'."""
    parts = []
    if described["above"] is not None:
        parts.append(f"above {described['above']:g}")
    if described["low"] is not None:
        parts.append(f"at least {described['low']:g}")
    if described["high"] is not None:
        parts.append(f"at most {described['high']:g}")
    return ("a whole number " if whole else "a number ") + " and ".join(parts)


class Section:
    """Shared behaviour of the groups of settings: every one checks itself when made."""

    where = ""

    def __post_init__(self) -> None:
        check_settings(self, self.where)


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
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters by name; its dataclass validates them."""

    @property
    def active(self) -> bool:
        return self.keep_ratio < 1.0


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

    @classmethod
    def all(cls, precision: str) -> Self:
        """The same precision for every part."""
        return cls(**{item.name: precision for item in dataclasses.fields(cls)})


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


@dataclass(frozen=True)
class CompressionConfig:
    """Everything that may differ between the full and the compressed run. The default is `full()`: all off."""

    pruning: PruningConfig = field(default_factory=PruningConfig)
    experts: ExpertConfig = field(default_factory=ExpertConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
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
                values["precision"] = dict.fromkeys(values["precision"], value)
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


def fingerprint(values: Any) -> str:
    """SHA-256, in hex, of a JSON-able value with its keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


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
