"""Which visual tokens earlier runs kept: a prompt whose media are all cached can then be pruned without features.

Only for choices that the media and the settings decide alone. What is chosen for the question, or by the state of the
device, is chosen anew every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from cachetools import LRUCache

from engines.cache.scope import Owner
from engines.config import PruningConfig
from engines.reports import PruneReport
from engines.tokens.group import FrameGroup

# Methods that look at nothing but the media; and the settings that such a choice may differ by. A test holds the
# methods to it.
BY_MEDIA = ("mmr", "max_min", "temporal", "l2_norm", "uniform", "random")
_SETTINGS = {"method", "keep_ratio", "scope", "min_tokens", "merge", "options"}
# A truth value, and a number with its place in a tuple.
_CELL_BYTES = 40


def chosen_by_media(config: PruningConfig) -> bool:
    """Whether the same media at the same settings keep the same tokens, whatever is asked. False if unknown."""
    usual = PruningConfig()
    others = [item.name for item in fields(config) if item.name not in _SETTINGS]
    if any(getattr(config, name) != getattr(usual, name) for name in others):
        return False
    return not config.active or config.method in BY_MEDIA


@dataclass(frozen=True)
class _Plan:
    owner: Owner
    report: PruneReport


class Plans:
    """What was kept, by a key over owner, settings and media."""

    def __init__(self, capacity_bytes: int) -> None:
        self._plans: LRUCache[str, _Plan] = LRUCache(capacity_bytes, getsizeof=lambda plan: _size(plan.report))

    @property
    def nbytes(self) -> int:
        return int(self._plans.currsize)

    def put(self, key: str, owner: Owner, report: PruneReport) -> None:
        if _size(report) <= self._plans.maxsize:
            self._plans[key] = _Plan(owner, report)

    def get(self, key: str, groups: Sequence[FrameGroup]) -> PruneReport | None:
        """The report as if these groups had been pruned: they may have other names and other times."""
        plan = self._plans.get(key)
        if plan is None:
            return None
        frames = zip(plan.report.frames, groups, strict=True)
        return replace(plan.report, frames=tuple(replace(frame, **vars(group)) for frame, group in frames))

    def clear(self, tenant: str | None = None, scope: str | None = None) -> None:
        for key in [key for key, plan in self._plans.items() if plan.owner.within(tenant, scope)]:
            del self._plans[key]


def _size(report: PruneReport) -> int:
    return _CELL_BYTES * sum(len(frame.kept) for frame in report.frames)
