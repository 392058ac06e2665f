"""What exchangeable methods share: each is a dataclass of parameters, found by name, described once for all users."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from engines.settings import check_settings, type_name


@dataclass(frozen=True)
class Method(ABC):
    """Base of every method. Subclasses are frozen dataclasses whose fields, made by `setting()`, are its parameters."""

    section: ClassVar[str]
    """The group of settings that chooses it, and under whose `options` its parameters are."""
    name: ClassVar[str]
    label: ClassVar[str]
    help: ClassVar[str]
    source: ClassVar[str]
    """The paper or the reason that the method comes from."""

    def __post_init__(self) -> None:
        check_settings(self, f"{self.section}.options")


AnyMethod = TypeVar("AnyMethod", bound=Method)


def registry(*methods: type[AnyMethod]) -> dict[str, type[AnyMethod]]:
    return {method.name: method for method in methods}


@dataclass(frozen=True)
class MethodDescription:
    """A method as the page shows it. Each parameter is (name, default, metadata of `setting()`, type name)."""

    name: str
    label: str
    help: str
    source: str
    parameters: tuple[tuple[str, Any, dict[str, Any], str], ...]


def describe(method: type[Method]) -> MethodDescription:
    parameters = tuple(
        (item.name, item.default, dict(item.metadata), type_name(item))
        for item in dataclasses.fields(method)
        if "label" in item.metadata
    )
    return MethodDescription(method.name, method.label, method.help, method.source, parameters)


def describe_all(methods: Iterable[type[Method]]) -> tuple[MethodDescription, ...]:
    return tuple(describe(method) for method in methods)


def create(section: str, methods: Mapping[str, type[AnyMethod]], name: str, options: Mapping[str, Any]) -> AnyMethod:
    """A fresh method by name. Raises ValueError for an unknown name, an unknown option or a value out of range."""
    if name not in methods:
        raise ValueError(f"{section}.method is {name!r}; it must be one of {', '.join(methods)}.")
    known = [parameter[0] for parameter in describe(methods[name]).parameters]
    unknown = [option for option in options if option not in known]
    if unknown:
        offered = ", ".join(known) or "no options"
        raise ValueError(f"Unknown option {section}.options.{unknown[0]}; {name} has {offered}.")
    return methods[name](**options)
