"""From what a person writes in the Sweep tab to the points of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from app.controls import EXPERTS, METHOD, OPTIONS, TOP_K, Control
from app.panels.settings import GROUPS
from engines.config import CompressionConfig
from engines.sweep.space import Axis, Point, Space, config_of

CACHE = "cache"
# They change no answer, or nothing that a sweep looks at.
_NO_AXES = ((CACHE, "scope"), ("vision", "measure_fidelity"))
_SHARES = (1.0, 0.75, 0.5, 0.25)
# Where even steps between the bounds of a setting would miss the values that matter.
_TYPICAL: dict[tuple[str, ...], str] = {
    ("attention", "text_top_k"): "0, 24, 12, 6",
    ("attention", "visual_top_k"): "0, 24, 12, 6",
    ("precision", "compensation_rank"): "0, 8, 16",
    ("kv", "text_window"): "0, 512, 128, 32",
    ("kv", "block_tokens"): "32, 64, 128",
    ("kv", "sparsity_threshold"): "0, 0.02, 0.05, 0.1",
    ("pruning", "min_tokens"): "1, 4, 16",
}
_SWITCH = {"off": False, "false": False, "no": False, "0": False, "on": True, "true": True, "yes": True, "1": True}


def axes_of(controls: Sequence[Control]) -> dict[str, Control]:
    """The controls that can be an axis here, by name."""
    return {control.name: control for control in controls if not control.why_not and control.path not in _NO_AXES}


def axis_label(control: Control, controls: Sequence[Control]) -> str:
    """With its group, and its method where it belongs to one: labels alone are not unique."""
    group = GROUPS[control.path[0]]
    if not control.method:
        return f"{group}: {control.label}"
    chooser = next(one for one in controls if one.path == (control.path[0], METHOD))
    named = {value: label for label, value in chooser.choices}
    return f"{group}, {named.get(control.method, control.method)}: {control.label}"


def setting_of(control: Control) -> str:
    return ".".join(control.path)


def default_values(control: Control) -> str:
    """What to try where nobody has said so: from closest to the full model to farthest, where it has an order."""
    if control.kind == "choice":
        return ", ".join(str(value) for _, value in control.choices)
    if control.kind == "switch":
        return "on, off" if control.default else "off, on"
    if control.path in _TYPICAL:
        return _TYPICAL[control.path]
    if control.path == TOP_K:
        values: Iterable[float] = {max(1, int(control.default * share)) for share in _SHARES}
        return ", ".join(str(value) for value in sorted(values, reverse=True))
    if control.default == control.high == 1:
        return ", ".join(f"{share:g}" for share in _SHARES)
    low = control.low
    high = control.high if control.high is not None else max(4 * abs(control.default), low + 4 * control.step)
    spread = {low + round((high - low) * share / control.step) * control.step for share in (0.25, 0.5, 0.75)}
    inside = {value for value in {control.default, *spread} if low <= value <= high}
    return ", ".join(f"{round(value, 6):g}" for value in sorted(inside))


def parse_axis(control: Control, text: str | None) -> Axis:
    """ValueError, with one sentence, for values that the setting cannot take."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if not words:
        raise ValueError(f"{control.label} has no values; write some, such as {default_values(control)}.")
    return Axis(setting_of(control), tuple(_value(control, word) for word in words))


def _value(control: Control, word: str) -> str:
    if control.kind == "switch":
        if word.lower() not in _SWITCH:
            raise ValueError(f"{control.label}: {word!r} is not a value; it can be on or off.")
        return json.dumps(_SWITCH[word.lower()])
    if control.kind == "choice":
        for label, value in control.choices:
            if word.lower() in (label.lower(), str(value).lower()):
                return str(value)
        allowed = ", ".join(str(value) for _, value in control.choices)
        raise ValueError(f"{control.label}: {word!r} is not a value; it can be {allowed}.")
    try:
        number = float(word)
    except ValueError:
        example = default_values(control)
        raise ValueError(f"{control.label}: {word!r} is not a number; write values such as {example}.") from None
    # Written so that NaN is refused too.
    if not control.low <= number <= (control.high if control.high is not None else float("inf")):
        most = f" to {control.high:g}" if control.high is not None else " up"
        raise ValueError(f"{control.label}: {word} is out of range; it can be from {control.low:g}{most}.")
    if control.whole and not number.is_integer():
        raise ValueError(f"{control.label}: {word} is not a whole number.")
    if control.path == TOP_K and number == control.default:
        return "null"  # the checkpoint's own number, which is how the full model writes it
    return json.dumps(int(number) if control.whole or isinstance(control.default, int) else number)


def make_space(chosen: Sequence[tuple[Control, str | None]], base: CompressionConfig) -> Space:
    """The axes on top of `base`, whose caches are left out: a hit would hide what an encoding takes."""
    if not chosen:
        raise ValueError("Choose at least one setting to try.")
    axes = tuple(parse_axis(control, text) for control, text in chosen)
    fixed = dict(assignment.split("=", 1) for assignment in assignments(base))
    fixed = {name: value for name, value in fixed.items() if not name.startswith(f"{CACHE}.")}
    of_methods = {control.path[0] for control, _ in chosen if control.path[1] == METHOD}
    wanted = {(control.path[0], control.method) for control, _ in chosen if control.method}
    for section, method in wanted:
        if section in of_methods or len({one for part, one in wanted if part == section}) > 1:
            raise ValueError(
                f"A parameter of {method} can only be tried with {method}; leave the other method of"
                f" {GROUPS[section].lower()} out."
            )
        if getattr(base, section).method != method:
            fixed = _without_options(fixed, section)
        fixed[f"{section}.{METHOD}"] = method
    for section in of_methods:
        # Another method has no such parameters.
        fixed = _without_options(fixed, section)
    swept = {axis.setting for axis in axes}
    return Space(axes, tuple(f"{name}={value}" for name, value in fixed.items() if name not in swept))


def _without_options(fixed: dict[str, str], section: str) -> dict[str, str]:
    return {name: value for name, value in fixed.items() if not name.startswith(f"{section}.{OPTIONS}.")}


def assignments(config: CompressionConfig) -> Point:
    """What differs from the full model: `CompressionConfig.full().with_settings` makes the same of it again."""
    full, found = CompressionConfig.full().to_dict(), []
    for section, values in config.to_dict().items():
        for name, value in values.items():
            if name == OPTIONS:
                found += [f"{section}.{name}.{option}={_text(given)}" for option, given in value.items()]
            elif value != full[section][name]:
                found.append(f"{section}.{name}={_text(value)}")
    return tuple(found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def idle_groups(points: Iterable[Point]) -> list[str]:
    """Groups of settings that the points vary although none of them switches the group on: nothing would change."""
    configs = [config_of(point) for point in points]
    active = {
        "pruning": any(config.pruning.may_prune for config in configs),
        "vision": any(config.vision.active for config in configs),
        "attention": any(config.attention.active for config in configs),
        EXPERTS: any(config.experts.skipping or config.experts.top_k is not None for config in configs),
        "kv": any(config.kv.active for config in configs),
    }
    return [
        GROUPS[section]
        for section, on in active.items()
        if not on and len({str(getattr(config, section)) for config in configs}) > 1
    ]
