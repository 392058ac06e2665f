"""What a setting is: described once, checked whenever it is made, read by the page and the command line alike."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    *,
    label: str,
    help: str,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    step: float | None = None,
    choices: tuple[str | int, ...] | None = None,
) -> Any:
    """A dataclass field with what a person must know about it.

    `low` and `high` are inclusive bounds, `above` an exclusive lower bound, `choices` the allowed words or numbers.
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
        # False would pass for the number 0.
        if isinstance(value, bool) or value not in described["choices"]:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(str, described['choices']))}.")
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


def fingerprint(values: Any) -> str:
    """SHA-256, in hex, of a JSON-able value with its keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
