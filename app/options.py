"""What whoever starts the server chooses for all visitors of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engines.config import CompressionConfig
from engines.history import HistoryStore


@dataclass(frozen=True)
class PageOptions:
    settings: CompressionConfig | None = None
    """Where the switches stand when the page is opened; None: where they are recommended."""
    signing_key: bytes | None = field(default=None, repr=False)
    """With it, reports that visitors take away are signed."""
    history: HistoryStore | None = None
    """Where finished comparisons are kept; None: nowhere."""
    sweeps: Path | None = None
    """A folder where the page's sweeps are kept; None: in one that goes with the server."""
