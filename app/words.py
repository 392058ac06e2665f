"""Numbers and texts as the page writes them. None is always "not measured", never 0."""

from __future__ import annotations

from html import escape

MISSING = "—"

__all__ = ["MISSING", "count", "escape", "megabytes", "percent", "plural", "ratio", "seconds", "value_words"]


def seconds(value: float | None) -> str:
    """A duration with three meaningful digits: 840 ms, 1.24 s."""
    if value is None:
        return MISSING
    if 0 < abs(value) < 0.000_0995:
        return f"{value * 1e6:.0f} µs"
    if abs(value) < 0.0995:
        return f"{value * 1000:.1f} ms"
    if abs(value) < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if abs(value) < 100 else f"{value:.0f} s"


def megabytes(value: int | None) -> str:
    """Bytes in the unit that fits, powers of 1024."""
    if value is None:
        return MISSING
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value * 100:.0f} %"


def ratio(value: float | None) -> str:
    """Compressed / full: 0.52x."""
    if value is None:
        return MISSING
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def count(value: int | None) -> str:
    """A whole number with a thin space between the thousands."""
    return MISSING if value is None else f"{value:,}".replace(",", " ")


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def value_words(name: str, value: object) -> str:
    """One attribute of a span in words, by the unit in its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and name.endswith("_s"):
        return seconds(float(value))
    if isinstance(value, int) and name.endswith("bytes"):
        return megabytes(value)
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(value_words(name, item) for item in value[:8]) + (", ..." if len(value) > 8 else "")
    return str(value)
