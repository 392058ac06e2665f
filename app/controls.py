"""The switches of the compressed side, made from the descriptions in engines/config.py.

A control is a value and what a person must know about it; the panel draws it. Values go to a CompressionConfig and
back without loss, so no control can be one that changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engines.config import INTEGER, PARTS, CompressionConfig, KVConfig, PrecisionConfig
from engines.experts import describe_methods as describe_skipping
from engines.methods import MethodDescription
from engines.pruning import describe_methods as describe_pruning
from engines.results import Capabilities, Capability
from engines.settings import allowed_range, type_name
from engines.vision import describe_methods as describe_vision

Kind = Literal["choice", "switch", "number"]
METHOD, OPTIONS = "method", "options"
EXPERTS = "experts"
VISION = "vision"
AFTER_LAYER = (VISION, "after_layer")
PREFIX = ("cache", "prefix")
KV = "kv"
TOP_K = (EXPERTS, "top_k")
PRECISION = "precision"

Methods = Mapping[str, Sequence[MethodDescription]]
"""The methods to choose from, by the group of settings that has them."""


@dataclass(frozen=True)
class Control:
    """One switch. `path` is where its value goes in `CompressionConfig.to_dict()`."""

    path: tuple[str, ...]
    label: str
    help: str
    kind: Kind
    default: Any
    low: float = 0.0
    high: float = 1.0
    step: float = 1.0
    whole: bool = False
    choices: tuple[tuple[str, str | int], ...] = ()
    """(what the page shows, value)"""
    method: str = ""
    """The method whose parameter it is, if it is one."""
    why_not: str = ""
    """Why it cannot be used here; empty when it can."""

    @property
    def name(self) -> str:
        return ".".join((*self.path[:2], self.method, *self.path[2:]) if self.method else self.path)


def methods_of(capabilities: Capabilities) -> Methods:
    """With what was measured of this checkpoint, where a method goes by that."""
    return {
        "pruning": describe_pruning(),
        VISION: describe_vision(),
        EXPERTS: describe_skipping(capabilities.calibration),
    }


def make_controls(capabilities: Capabilities, methods: Methods) -> tuple[Control, ...]:
    """Every setting of CompressionConfig and every method's own parameters, in the order of the page."""
    offered = {"pruning": capabilities.pruning, VISION: (), EXPERTS: capabilities.skipping}
    controls: list[Control] = []
    for section in dataclasses.fields(CompressionConfig):
        found: list[Control] = []
        for item in dataclasses.fields(section.default_factory):  # type: ignore[arg-type]
            path = (section.name, item.name)
            if item.name == OPTIONS:
                found += [
                    described((*path, name), default, metadata, kind, method=method.name)
                    for method in methods[section.name]
                    for name, default, metadata, kind in method.parameters
                ]
            elif item.name == METHOD:
                found.append(_method(path, item, offered[section.name], methods[section.name]))
            elif path == AFTER_LAYER:
                found.append(_after_layer(item, capabilities.tower_layers))
            elif path == TOP_K:
                found.append(_top_k(item, capabilities))
            elif section.name == PRECISION and item.name in PARTS:
                found.append(_precision(item, capabilities.precisions))
            else:
                found.append(described(path, item.default, item.metadata, type_name(item)))
        no_kv = next((item.reason for item in capabilities.others if item.name == "KV compression"), "")
        if section.name == KV and no_kv:
            found = [dataclasses.replace(control, why_not=f"Not available here: {no_kv}") for control in found]
        reason = next((item.reason for item in capabilities.others if item.name == "prefix cache"), "")
        if reason:
            found = [
                dataclasses.replace(item, why_not=f"Not available here: {reason}") if item.path == PREFIX else item
                for item in found
            ]
        if section.name == EXPERTS and capabilities.own_top_k is None:
            found = [dataclasses.replace(control, why_not="This model has no experts.") for control in found]
        if section.name == VISION and not capabilities.tower_layers:
            reason = "This model's vision tower cannot be reduced."
            found = [dataclasses.replace(control, why_not=reason) for control in found]
        controls += found
    return tuple(controls)


def described(path: tuple[str, ...], default: Any, metadata: Any, kind: str, method: str = "") -> Control:
    """A control from a `setting()` and the name of its type."""
    if metadata["choices"] is not None:
        choices = tuple((str(choice), choice) for choice in metadata["choices"])
        return Control(path, metadata["label"], metadata["help"], "choice", default, choices=choices, method=method)
    if kind.startswith("bool"):
        return Control(path, metadata["label"], metadata["help"], "switch", default, method=method)
    step = metadata["step"] or 1
    # A slider has no open end: the first step above an excluded bound is its lowest value.
    low = metadata["low"] if metadata["low"] is not None else metadata["above"] + step
    return Control(
        path,
        metadata["label"],
        metadata["help"],
        "number",
        default,
        low=low,
        high=metadata["high"],
        step=step,
        whole=kind.startswith("int"),
        method=method,
    )


def _method(
    path: tuple[str, str],
    item: dataclasses.Field,
    capabilities: Sequence[Capability],
    methods: Sequence[MethodDescription],
) -> Control:
    refused = {capability.name: capability.reason for capability in capabilities if not capability.available}
    usable = [method for method in methods if method.name not in refused]
    reasons = [
        f"{method.label} is not available: {refused[method.name]}" for method in methods if method.name in refused
    ]
    default = item.default if any(method.name == item.default for method in usable) else usable[0].name
    return Control(
        path,
        item.metadata["label"],
        " ".join([item.metadata["help"], *reasons]),
        "choice",
        default,
        choices=tuple((method.label, method.name) for method in usable),
    )


def _top_k(item: dataclasses.Field, capabilities: Capabilities) -> Control:
    own = capabilities.own_top_k
    metadata = item.metadata
    if own is None:
        return Control(TOP_K, metadata["label"], metadata["help"], "number", 1, low=1, high=2, whole=True)
    note = f" Here that is {own} of {capabilities.experts}."
    if own == 1:
        return Control(
            TOP_K, metadata["label"], metadata["help"] + note, "number", 1, low=1, high=2, whole=True,
            why_not="This model uses one expert per token already.",
        )  # fmt: skip
    return Control(TOP_K, metadata["label"], metadata["help"] + note, "number", own, low=1, high=own, whole=True)


def _after_layer(item: dataclasses.Field, last: int) -> Control:
    control = described(AFTER_LAYER, item.default, item.metadata, type_name(item))
    if last == 1:
        return dataclasses.replace(control, high=2, why_not="This model's vision tower can be reduced there only.")
    return dataclasses.replace(control, high=max(2, last))


def _precision(item: dataclasses.Field, capabilities: Sequence[Capability]) -> Control:
    refused = {capability.name: capability.reason for capability in capabilities if not capability.available}
    part = {choice: refused.get(f"{item.name}.{choice}", refused.get(choice)) for choice in item.metadata["choices"]}
    reasons = "".join(f" {choice} is not available: {reason}" for choice, reason in part.items() if reason)
    return Control(
        (PRECISION, item.name),
        item.metadata["label"],
        item.metadata["help"] + reasons,
        "choice",
        item.default,
        choices=tuple((choice, choice) for choice, reason in part.items() if reason is None),
    )


def to_config(controls: Sequence[Control], values: Sequence[Any]) -> CompressionConfig:
    """The configuration that the controls show. ValueError, with a sentence, where a value cannot be used."""
    built: dict[str, dict[str, Any]] = CompressionConfig.full().to_dict()
    chosen = {
        control.path[0]: value for control, value in zip(controls, values, strict=True) if control.path[1] == METHOD
    }
    for control, value in zip(controls, values, strict=True):
        if control.why_not or (control.method and control.method != chosen[control.path[0]]):
            continue
        if control.kind == "number":
            value = _number(control, value)
        if control.method and value == control.default:
            continue  # left to the method, so that all switches off is CompressionConfig.full() to the letter
        if control.path == TOP_K and value == control.default:
            value = None
        target: dict[str, Any] = built
        for key in control.path[:-1]:
            target = target[key]
        target[control.path[-1]] = value
    return CompressionConfig.from_dict(built)


def to_values(controls: Sequence[Control], config: CompressionConfig) -> list[Any]:
    """What the controls show for a configuration: the inverse of `to_config`."""
    values = config.to_dict()
    shown = []
    for control in controls:
        section = values[control.path[0]]
        if control.method:
            own = section[OPTIONS] if control.method == section[METHOD] else {}
            shown.append(own.get(control.path[-1], control.default))
            continue
        value = section[control.path[1]]
        shown.append(control.default if control.path == TOP_K and value is None else value)
    return shown


def lost(controls: Sequence[Control], config: CompressionConfig) -> list[str]:
    """What the controls cannot show of a configuration, since this checkpoint or device does not offer it."""
    shown = to_values(controls, config)
    try:
        again = to_values(controls, to_config(controls, shown))
    except ValueError as error:
        return [str(error)]
    return [
        f"{control.name} cannot be {value!r} here. {control.why_not}".strip()
        for control, value, kept in zip(controls, shown, again, strict=True)
        if value != kept or (control.kind == "choice" and value not in [choice for _, choice in control.choices])
    ]


def _number(control: Control, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        allowed = allowed_range({"low": control.low, "high": control.high, "above": None}, whole=control.whole)
        raise ValueError(f"{control.label} is empty; it must be {allowed}.")
    # Steps of 0.05 arrive as 0.15000000000000002; a fractional value of a whole number is left for the check.
    return int(value) if control.whole and float(value).is_integer() else round(float(value), 6)


def summary(config: CompressionConfig, controls: Sequence[Control]) -> list[str]:
    """What is switched on, one short phrase each; empty when the configuration is the full model."""
    labels = {control.path: control.label for control in controls if not control.method}
    names = {
        control.path[0]: {value: label for label, value in control.choices}
        for control in controls
        if control.path[1] == METHOD
    }
    full, found = CompressionConfig.full(), []
    if config.pruning.active:
        found.append(f"keeps {config.pruning.keep_ratio * 100:.0f} % of visual tokens")
        found.append(names["pruning"].get(config.pruning.method, config.pruning.method))
        if config.pruning.scope != full.pruning.scope:
            found.append(f"one budget for each {config.pruning.scope}")
        found += ["merges what it drops"] if config.pruning.merge else []
    found += ["keep ratio follows the device"] if config.pruning.adaptive else []
    if config.attention.active:
        of_text, of_visual = (k or "all" for k in (config.attention.text_top_k, config.attention.visual_top_k))
        found.append(f"cross-modal mask: {of_text} visual keys per text token, {of_visual} text keys per visual token")
    if config.vision.active:
        method = names[VISION].get(config.vision.method, config.vision.method)
        share = f"{config.vision.keep_ratio * 100:.0f} % of the units"
        found.append(f"vision tower on {share} after layer {config.vision.after_layer}: {method}")
    if config.experts.top_k is not None:
        found.append(f"{config.experts.top_k} experts per token")
    if config.experts.skipping:
        found.append(f"skips experts: {names[EXPERTS].get(config.experts.method, config.experts.method)}")
    if not config.experts.renormalise:
        found.append("weights not renormalised")
    precisions = config.precision.parts
    if len(set(precisions.values())) == 1:
        if precisions != full.precision.parts:
            found.append(f"{config.precision.vision} throughout")
    else:
        found += [
            f"{labels[(PRECISION, part)].lower()} {precision}"
            for part, precision in precisions.items()
            if precision != getattr(full.precision, part)
        ]
    found += _precision_details(config.precision)
    found += _kv_summary(config.kv)
    found += [] if config.modality.image else ["no images"]
    found += [] if config.modality.video else ["no videos"]
    found += ["encoder cache"] if config.cache.encoder else []
    found += ["prefix cache"] if config.cache.prefix else []
    if (config.cache.encoder or config.cache.prefix) and config.cache.scope != full.cache.scope:
        whom = "by all" if config.cache.scope == "global" else f"within the {config.cache.scope}"
        found.append(f"caches shared {whom}")
    return found


def _precision_details(config: PrecisionConfig) -> list[str]:
    """What is chosen beside the formats, as far as it matters for them."""
    chosen, found = set(config.parts.values()), []
    if "int4" in chosen and config.group_size != PrecisionConfig().group_size:
        found.append(f"int4 groups of {config.group_size}")
    if chosen & set(INTEGER):
        found += [f"compensation of rank {config.compensation_rank}"] if config.compensation_rank else []
        found += ["tied output head quantised"] if config.tied_head else []
        found += [] if config.use_calibration else ["precision calibration unused"]
    return found


def _kv_summary(config: KVConfig) -> list[str]:
    found = [f"KV cache in {config.bits} bits"] if config.bits else []
    if config.visual_keep_ratio < 1.0:
        found.append(f"KV of {config.visual_keep_ratio * 100:.0f} % of visual tokens")
    found += [f"KV of the newest {config.text_window} text tokens"] if config.text_window else []
    if config.text_window and config.min_live_tokens:
        found.append(f"KV blocks released under {config.min_live_tokens} live tokens")
    found += [f"KV blocks released below {config.norm_floor:g} of their norm"] if config.norm_floor else []
    return found + ([f"KV values below {config.sparsity_threshold:g} dropped"] if config.sparsity_threshold else [])


def recommended() -> CompressionConfig:
    """Where the page starts: half of the visual tokens, and no picture encoded twice."""
    return CompressionConfig().with_settings(["pruning.method=mmr", "pruning.keep_ratio=0.5", "cache.encoder=true"])
