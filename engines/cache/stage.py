"""The prefix cache in one run: what of its prompt was prefilled before, and what it leaves for later runs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from engines.cache.content import group_contents
from engines.cache.plan import chosen_by_media
from engines.cache.prefix import Cost, Match, PrefixCache
from engines.cache.rows import Rows
from engines.cache.scope import Owner
from engines.config import OFF, CompressionConfig
from engines.decoding import Decoder
from engines.prompt import Prompt
from engines.pruning import create
from engines.reports import CacheStats, PruneReport
from engines.sequence import Sequence, text_after
from engines.settings import fingerprint
from engines.structure import Structure
from engines.tokens.build import positions_of
from engines.tokens.registry import TokenRegistry

# Groups of settings that do not change what a prefill computes: what may be reused, and what becomes of keys and
# values after it. Whatever is not named here is in the key, and so is a group of settings that does not exist yet.
NOT_IN_KEY = ("cache", "kv")
# Groups of settings that are known to leave a token's keys and values to the tokens before it and to the media.
_UNDERSTOOD = (*NOT_IN_KEY, "pruning", "vision", "experts", "precision", "modality")
# Skipping methods that look at each token by itself; the others compare it with the whole prompt.
_TOKEN_BY_TOKEN = (OFF, "modality")


def why_not(structure: Structure) -> str:
    """Why a checkpoint cannot use the prefix cache; empty when it can."""
    layers = DynamicCache(config=structure.text_config).layers
    if layers and all(type(layer) is DynamicLayer for layer in layers):
        return ""
    return (
        "it has layers of linear or windowed attention, whose state is one for all tokens so far and cannot be cut "
        "between two of them."
    )


def refusal(config: CompressionConfig) -> str:
    """Why these settings rule the prefix cache out for a run, as a sentence; empty when they do not."""
    usual = CompressionConfig()
    named = [
        item.name
        for item in fields(config)
        if item.name not in _UNDERSTOOD and _changed(getattr(config, item.name), getattr(usual, item.name))
    ]
    if config.experts.method not in _TOKEN_BY_TOKEN:
        named.append(f"experts.method={config.experts.method}")
    if config.pruning.may_prune and create(config.pruning.method, config.pruning.options).asked_layer is not None:
        named.append(f"pruning.method={config.pruning.method}")
    if not named:
        return ""
    return (
        f"The prefix cache was not used: with {' and '.join(named)} it is not known to give the same answer, since "
        "what becomes of a token can depend on later ones."
    )


def _changed(section: Any, usual: Any) -> bool:
    return bool(getattr(section, "active", section != usual))


class PrefixStage:
    """Of one prompt. In order: `look_up`, unless `settled` `look_again`, `resume`, `tail`, `prefilled`, `keep`."""

    def __init__(
        self,
        cache: PrefixCache,
        structure: Structure,
        config: CompressionConfig,
        owner: Owner,
        identity: str,
        prompt: Prompt,
        tokens: TokenRegistry,
        *,
        seed: int,
        temporal_patch: int,
        least_rows: int = 1,
    ) -> None:
        """`identity` says which weights compute, and on what; `seed` is what pruning draws from.

        At least `least_rows` are run in any case: the last one for its logits, with which the answer begins.
        """
        self._least_rows = least_rows
        self._cache, self._structure, self._config, self._owner = cache, structure, config, owner
        self._prompt, self._groups = prompt, tokens.groups
        self._positions = positions_of(tokens, prompt.input_ids.device)
        items = prompt.in_prompt_order()
        contents = [content for item in items for content in group_contents(item, temporal_patch)]
        self._rows = Rows.of(tokens, contents)
        settings = {name: value for name, value in config.to_dict().items() if name not in NOT_IN_KEY}
        made_by = [identity, fingerprint(settings)]
        self._root = bytes.fromhex(owner.below(*made_by))
        self._plan_key = ""
        if contents and chosen_by_media(config.pruning):
            drawn = seed if config.pruning.active else None
            self._plan_key = owner.below(*made_by, contents, drawn)
        self._held = ExitStack()
        self._match: Match | None = None
        self._prefilled: list[tuple[Tensor, Tensor]] | None = None
        self.stats = CacheStats()

    @property
    def settled(self) -> bool:
        """Whether the lookup is over."""
        return self._match is not None

    def look_up(self, span: dict[str, Any]) -> PruneReport | None:
        """Look for the prompt before its media are encoded.

        Returns what is kept of the media if all of it is cached, so that nothing need be encoded; None otherwise.
        """
        if not self._rows.contents:
            self._find(self._rows, span, encoded=True)
        report = self._planned()
        if report is not None and self._find(_pruned(self._rows, report), span, encoded=False):
            return report
        return None

    def has_media(self) -> bool:
        """Whether all of the media are cached, and so there is little to do. Nothing is counted or held."""
        report = self._planned()
        if report is None:
            return False
        rows = _pruned(self._rows, report)
        with self._cache.find(self._root, self._shared(rows), len(rows) - 1) as match:
            return match.tokens >= rows.media_end

    def _planned(self) -> PruneReport | None:
        """What is kept of the media, if it is known before they are encoded."""
        if not self._plan_key:
            return None
        return self._cache.plans.get(self._plan_key, self._groups)

    def look_again(self, report: PruneReport, span: dict[str, Any]) -> None:
        """Look for the prompt as it has been pruned."""
        if self._plan_key:
            self._cache.plans.put(self._plan_key, self._owner, report)
        self._find(_pruned(self._rows, report), span, encoded=True)

    def _find(self, rows: Rows, span: dict[str, Any], *, encoded: bool) -> bool:
        """Hold the longest match; where the media are not encoded, only if it has all of them."""
        most = int(rows.kept.nonzero()[0][-self._least_rows :][0])
        with ExitStack() as held:
            match = held.enter_context(self._cache.find(self._root, self._shared(rows), most))
            if not encoded and match.tokens < rows.media_end:
                return False
            self._held = held.pop_all()
        self._rows, self._match = rows, match
        self.stats = self._cache.count(self._owner, match, len(rows), match.saved_s(encoded=encoded))
        span |= {"tokens_queried": len(rows), "tokens_hit": match.tokens, "bytes_reused": match.nbytes}
        return True

    def _shared(self, rows: Rows) -> Rows:
        """What of a prompt may be looked for and left: of one that is everybody's only the media, not the question."""
        return rows if self._owner.tenant else rows.first(rows.media_end)

    def tail(self, entering: Sequence | None) -> Sequence:
        """What is left to be prefilled; `entering` is the pruned prompt, None if it was not built."""
        assert self._match is not None
        if entering is None:
            return text_after(self._structure, self._prompt, self._positions, self._match.tokens)
        if not self._match.rows:
            return entering
        return entering.select(torch.arange(entering.length, device=entering.embeddings.device) >= self._match.rows)

    def resume(self, decoder: Decoder) -> None:
        """Put what was found where the prefill goes on."""
        assert self._match is not None
        if self._match.rows:
            decoder.resume(self._match.states())

    def prefilled(self, decoder: Decoder) -> None:
        """To be called between the prefill and whatever is done to its keys and values afterwards."""
        if not self._plain:
            self._prefilled = decoder.keys_and_values()

    @property
    def _plain(self) -> bool:
        """Whether keys and values stay as they were computed, and those of an answer come from such."""
        usual = CompressionConfig()
        return not any(
            getattr(own, "kv", None) != getattr(other, "kv", None)
            for own, other in ((self._config, usual), (self._config.precision, usual.precision))
        )

    def keep(
        self, decoder: Decoder, tokens: list[int], span: dict[str, Any], *, prefill_s: float, encode_s: float
    ) -> None:
        """Leave the prompt for later runs, and the `tokens` of the answer that were run, if nothing lossy was done.

        The seconds are what this run's prefill, and its encoding and choosing of visual tokens, took.
        """
        assert self._match is not None
        rows, layers = self._rows, self._prefilled
        visual = rows.visual_between(0, len(rows))
        cost = Cost(prefill_s / (len(rows) - self._match.tokens), encode_s / visual if visual else 0.0)
        if layers is None:
            rows = rows.followed_by(tokens, int(self._positions.max()) + 1)
            layers = decoder.keys_and_values()

        def states(first: int, end: int) -> Tensor:
            return torch.stack([torch.cat((keys[:, :, first:end], values[:, :, first:end])) for keys, values in layers])

        before = self._cache.evictions
        span["blocks_added"] = self._cache.add(self._root, self._owner, self._shared(rows), states, cost)
        self.stats = replace(self.stats, evictions=self._cache.evictions - before)
        span["bytes_held"] = self._cache.stats().bytes

    def close(self) -> None:
        """Let go of what was found."""
        self._held.close()


def _pruned(rows: Rows, report: PruneReport) -> Rows:
    return rows.keeping(report.cells)
