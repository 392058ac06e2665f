"""What a visitor's last sweep came to, and where it is kept: a reload of the page finds it again, and nobody else."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from engines.sets import EvalSet, RowProblem
from engines.sweep.plan import SweepPlan
from engines.sweep.results import PointResult
from engines.sweep.runner import SweepProgress
from engines.sweep.store import SweepStore

SCHEMA_VERSION = 1
# Of each visitor so many plans are kept, and none longer than this.
MOST_PLANS, KEPT_S = 8, 30 * 24 * 3600


@dataclass(frozen=True)
class SweepView:
    """A sweep as the page shows it."""

    plan: SweepPlan
    points: tuple[PointResult, ...] = ()
    """In the plan's order; empty before the first figures."""
    done: int = 0
    """Runs of the whole plan."""
    problems: tuple[RowProblem, ...] = ()
    set_name: str = ""
    note: str = ""
    """Of the set."""

    @classmethod
    def begin(cls, plan: SweepPlan, found: EvalSet) -> SweepView:
        return cls(plan, problems=found.problems, set_name=found.name, note=found.note)

    @property
    def labelled(self) -> bool:
        return any(point.score is not None for point in self.points)

    @property
    def complete(self) -> bool:
        return self.done >= self.plan.runs

    def after(self, progress: SweepProgress) -> SweepView:
        return replace(self, points=self.points if progress.points is None else progress.points)


class Drawer:
    """One visitor's files: the runs in SQLite, and beside them the figures made of them.

    Their name is a hash of what the visitor's browser alone knows, and of the login where there is one.
    """

    def __init__(self, folder: Path, visitor: str, login: str | None) -> None:
        name = hashlib.sha256(json.dumps([visitor, login]).encode()).hexdigest()
        self._runs, self._shown = folder / f"{name}.sqlite", folder / f"{name}.json"

    def open(self) -> SweepStore:
        self._runs.parent.mkdir(parents=True, exist_ok=True)
        _forget_old(self._runs.parent)
        return SweepStore(self._runs)

    def keep(self, view: SweepView) -> None:
        """Replaced whole, so that a killed process leaves the figures before or the new ones."""
        values = {
            "schema_version": SCHEMA_VERSION,
            "plan": view.plan.to_dict(),
            "points": [point.to_dict() for point in view.points],
            "done": view.done,
            "problems": [[problem.row, problem.reason] for problem in view.problems],
            "set_name": view.set_name,
            "note": view.note,
        }
        written = self._shown.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
        written.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
        written.replace(self._shown)

    def last(self) -> SweepView | None:
        """The last sweep, None if there is none. ValueError, with one sentence, for one that cannot be read."""
        try:
            values = json.loads(self._shown.read_text(encoding="utf-8"))
            if values["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"it has format {values['schema_version']}")
            return SweepView(
                SweepPlan.from_dict(values["plan"]),
                tuple(PointResult.from_dict(point) for point in values["points"]),
                int(values["done"]),
                tuple(RowProblem(row, reason) for row, reason in values["problems"]),
                values["set_name"],
                values["note"],
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"Your last sweep cannot be read ({error}); start a new one.") from error

    def thin_out(self, store: SweepStore) -> None:
        """Let go of the oldest plans."""
        for plan in store.plans()[:-MOST_PLANS]:
            store.delete(plan)

    def forget(self) -> None:
        """Delete everything of this visitor. ValueError, with one sentence, while one of the sweeps is being run."""
        with self.open() as store:
            for plan in store.plans():
                store.delete(plan)
        for path in self._runs.parent.glob(f"{self._runs.stem}.*"):
            path.unlink(missing_ok=True)


def _forget_old(folder: Path) -> None:
    oldest_s = time.time() - KEPT_S
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_mtime < oldest_s:
            path.unlink(missing_ok=True)
