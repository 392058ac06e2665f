"""Results of sweeps on disk, written as they come."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from engines.sweep.plan import SweepPlan
from engines.sweep.rows import Row

SCHEMA_VERSION = 1
# How long a write waits for another process's write to the same file.
BUSY_S = 30.0
_FIELDS = tuple(item.name for item in dataclasses.fields(Row))
_SCHEMA = f"""
CREATE TABLE plans (
    number INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,
    plan TEXT NOT NULL,
    created TEXT DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE results (
    plan INTEGER NOT NULL REFERENCES plans (number) ON DELETE CASCADE,
    {", ".join(_FIELDS)},
    PRIMARY KEY (plan, point, item, repeat)
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
"""


class SweepStore:
    """A SQLite file (WAL) with one row a (plan, point, item, repeat). Usable from several threads and processes.

    A row is on disk when `add` returns, so that a killed process loses at most the run in progress.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. ValueError, with one sentence, if it is something else or cannot be written."""
        self.path = path
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"The results cannot be kept in {path}: {error}.") from error
        try:
            self._open()
        except (sqlite3.Error, ValueError) as error:
            self._base.close()
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"{path} holds no results of sweeps, or cannot be written: {error}.") from error

    def _open(self) -> None:
        # Before anything is changed: the file may be somebody else's.
        self._is_new()
        self._base.execute("PRAGMA journal_mode = WAL")
        # Enough against a killed process; only a power cut may take the last rows, and never the file.
        self._base.execute("PRAGMA synchronous = NORMAL")
        self._base.execute("PRAGMA foreign_keys = ON")
        with self._writing():
            if self._is_new():
                for statement in _SCHEMA.split(";"):
                    self._base.execute(statement)

    def _is_new(self) -> bool:
        """Whether nothing is in the file yet. ValueError if something else is."""
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == SCHEMA_VERSION and {"plans", "results"} <= tables:
            return False
        if version == 0 and not tables:
            return True
        raise ValueError(
            f"{self.path} is another program's database, or was written by another version of this one; name another "
            "file."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def plans(self) -> tuple[SweepPlan, ...]:
        """All plans in the file, the newest last."""
        with self._lock:
            found = self._base.execute("SELECT plan FROM plans ORDER BY number").fetchall()
        return tuple(SweepPlan.from_json(text) for (text,) in found)

    @contextmanager
    def claimed(self, plan: SweepPlan) -> Iterator[None]:
        """Write the plan down and keep it for this caller; ValueError while another process or thread runs it.

        The system frees the claim of a process that dies.
        """
        # Beside the file and not in it, where nobody would free it after a kill.
        # The page takes it in one thread and gives it back in another.
        name = f"{self.path}.{plan.fingerprint[:16]}.lock"
        lock = FileLock(name, timeout=0, is_singleton=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"This sweep is being run already, with its results in {self.path.name}: wait for it, or stop it first."
            ) from None
        try:
            self._number(plan, write=True)
            yield
        finally:
            # The lock's file stays: deleting it could take it from under a process that has just opened it.
            lock.release()

    def add(self, plan: SweepPlan, rows: Iterable[Row]) -> None:
        """Keep rows of a claimed plan; one that is there already stays as it is."""
        number = self._number(plan)
        names = f"plan, {', '.join(_FIELDS)}"
        marks = ", ".join("?" * (len(_FIELDS) + 1))
        with self._writing():
            self._base.executemany(
                f"INSERT OR IGNORE INTO results ({names}) VALUES ({marks})",
                [(number, *dataclasses.astuple(row)) for row in rows],
            )

    def rows(self, plan: SweepPlan) -> list[Row]:
        """Everything measured for a plan."""
        with self._lock:
            found = self._base.execute(
                f"SELECT {', '.join(_FIELDS)} FROM results "
                "WHERE plan = (SELECT number FROM plans WHERE fingerprint = ?) ORDER BY point, item, repeat",
                (plan.fingerprint,),
            ).fetchall()
        return [_row(values) for values in found]

    def count(self, plan: SweepPlan) -> int:
        """How many runs of the plan are done."""
        with self._lock:
            (count,) = self._base.execute(
                "SELECT count(*) FROM results WHERE plan = (SELECT number FROM plans WHERE fingerprint = ?)",
                (plan.fingerprint,),
            ).fetchone()
        return int(count)

    def delete(self, plan: SweepPlan) -> None:
        """Forget a plan and everything measured for it. ValueError while it is being run."""
        with self.claimed(plan), self._writing():
            self._base.execute("DELETE FROM plans WHERE fingerprint = ?", (plan.fingerprint,))

    def _number(self, plan: SweepPlan, *, write: bool = False) -> int:
        with self._writing():
            if write:
                self._base.execute(
                    "INSERT OR IGNORE INTO plans (fingerprint, plan) VALUES (?, ?)", (plan.fingerprint, plan.to_json())
                )
            found = self._base.execute("SELECT number FROM plans WHERE fingerprint = ?", (plan.fingerprint,)).fetchone()
        if found is None:
            raise ValueError("The plan is not in this file.")
        return int(found[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: all of it is kept, or nothing."""
        with self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")


def _row(values: tuple[Any, ...]) -> Row:
    named = dict(zip(_FIELDS, values, strict=True))
    return Row(**{**named, "timed": bool(named["timed"])})
