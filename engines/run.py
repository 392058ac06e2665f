"""What one run gathers on its way through the stages."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from torch import Tensor

from engines.attention.stage import AttentionStage
from engines.cache.encoder import Features
from engines.cache.scope import Owner
from engines.cache.stage import PrefixStage
from engines.config import CompressionConfig
from engines.decoding import Decoder
from engines.experts.stage import ExpertStage
from engines.kv.stage import KVStage
from engines.media import Media
from engines.prompt import VisualItem
from engines.pruning.stage import PruneStage
from engines.reports import Adaptation, CacheStats, PruneReport, VisionReport
from engines.results import RunRequest
from engines.tokens.registry import TokenRegistry
from engines.trace import Tracer


@dataclass
class Run:
    """What one run gathers on its way."""

    request: RunRequest
    config: CompressionConfig
    experts: ExpertStage
    attention: AttentionStage
    kv: KVStage
    tracer: Tracer
    warnings: list[str] = field(default_factory=list)
    cache: CacheStats = field(default_factory=CacheStats)
    owner: Owner | None = None
    """Whose the entries of the caches are; None where nothing may be cached."""
    prefix: PrefixStage | None = None
    held: ExitStack = field(default_factory=ExitStack)
    """Lets go of what the run holds of the caches."""
    media: list[Media] = field(default_factory=list)
    adaptation: Adaptation | None = None
    """How the keep ratio follows the device, where it shall."""
    prompt_tokens: int = 0
    registry: TokenRegistry | None = None
    """Where the prompt's tokens are; None before there is a prompt."""
    encoded: list[tuple[VisualItem, Features]] = field(default_factory=list)
    vision: VisionReport | None = None
    pruning: PruneStage | None = None
    planned: PruneReport | None = None
    """What is kept of media that are cached whole: known without encoding them."""
    decoder: Decoder | None = None
    tokens: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: str = "cancelled"

    def narrow(self, keep: Tensor) -> None:
        """Inside the prefill: only the rows where `keep` (tokens,) is true go on."""
        self.experts.narrow(keep)
        self.attention.narrow(keep)
        self.kv.narrow(keep)
        if self.request.watch is not None:
            self.request.watch.narrow(keep)

    @property
    def cancelled(self) -> bool:
        return self.request.cancel is not None and self.request.cancel.is_set()
