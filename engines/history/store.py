"""Finished comparisons on disk. Every entry belongs to an owner, and no call gives or takes what is another's."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
DATA_VARIABLE = "QWEN_VL_MOE_WORKBENCH_DATA"
MIB = 1 << 20
MOST_ENTRIES = 200
"""Of one owner; the oldest go first."""
MOST_BYTES = 512 * MIB
"""Of all owners together; then the oldest of whoever holds most go."""
MOST_ENTRY_BYTES = 8 * MIB
MOST_FOUND = 100
_TABLES = """
create table entries (
    id integer primary key autoincrement,
    owner text not null,
    kind text not null,
    made_at text not null,
    summary text not null,
    words text not null,
    content blob not null
);
create index entries_of_owner on entries (owner, kind, id);
"""


@dataclass(frozen=True)
class Summary:
    """An entry as a list shows it. `values` is what was said of it when it was kept."""

    id: int
    made_at: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """All that was kept."""

    summary: Summary
    content: dict[str, Any]


class HistoryStore:
    """One file, for any number of threads and for several servers at once."""

    def __init__(self, path: Path, *, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        """Opens or makes the file. ValueError, with one sentence, if it is something else or cannot be written."""
        self.path, self._most_entries, self._most_bytes = path, most_entries, most_bytes
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What visitors asked is nobody else's business on this machine either.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
            self._connection.execute("pragma journal_mode = wal")
            # What is deleted shall not be left lying in the file.
            self._connection.execute("pragma secure_delete = on")
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise ValueError(
                f"The history {path} cannot be used ({error}); name another file with --history."
            ) from error

    def _prepare(self) -> None:
        with self._writing() as connection:
            (version,) = connection.execute("pragma user_version").fetchone()
            (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
            if version == 0 and tables == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    connection.execute(statement)
                connection.execute(f"pragma user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise ValueError(
                    f"The history {self.path} has format {version}, and this version of the workbench reads "
                    f"{SCHEMA_VERSION}; name another file with --history."
                )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def add(
        self, owner: str, kind: str, made_at: str, summary: Mapping[str, Any], words: str, content: Mapping[str, Any]
    ) -> int:
        """Keep an entry and return its number. `words` is what a search looks in. ValueError where it is too large."""
        packed = zlib.compress(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
        if len(packed) > MOST_ENTRY_BYTES:
            raise ValueError(f"It takes more than {MOST_ENTRY_BYTES // MIB} MiB, which is too much to keep.")
        values = json.dumps(summary, ensure_ascii=False)
        with self._writing() as connection:
            cursor = connection.execute(
                "insert into entries (owner, kind, made_at, summary, words, content) values (?, ?, ?, ?, ?, ?)",
                (_hidden(owner), kind, made_at, values, words.casefold(), packed),
            )
            self._make_room(connection, _hidden(owner), kind)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def search(self, owner: str, kind: str, text: str = "", most: int = MOST_FOUND) -> list[Summary]:
        """The owner's entries that have the text somewhere in their words, newest first."""
        sought = text.strip().casefold()
        rows = self._read(
            "select id, made_at, summary from entries where owner = ? and kind = ? and instr(words, ?) > 0"
            " order by id desc limit ?",
            (_hidden(owner), kind, sought, most),
        )
        return [Summary(number, made_at, json.loads(summary)) for number, made_at, summary in rows]

    def count(self, owner: str, kind: str) -> int:
        rows = self._read("select count(*) from entries where owner = ? and kind = ?", (_hidden(owner), kind))
        return int(rows[0][0])

    def get(self, owner: str, kind: str, number: int) -> Entry | None:
        """An entry of this owner; None if there is none of that number, or it is another's."""
        rows = self._read(
            "select id, made_at, summary, content from entries where id = ? and owner = ? and kind = ?",
            (number, _hidden(owner), kind),
        )
        if not rows:
            return None
        found, made_at, summary, content = rows[0]
        return Entry(Summary(found, made_at, json.loads(summary)), json.loads(zlib.decompress(content)))

    def delete(self, owner: str, kind: str, number: int | None = None) -> int:
        """One entry of this owner, or all; how many there were."""
        one, values = ("", ()) if number is None else (" and id = ?", (number,))
        with self._writing() as connection:
            cursor = connection.execute(
                f"delete from entries where owner = ? and kind = ?{one}", (_hidden(owner), kind, *values)
            )
        with self._lock:
            # The log of changes still has what was deleted.
            self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        return cursor.rowcount

    def _make_room(self, connection: sqlite3.Connection, owner: str, kind: str) -> None:
        connection.execute(
            "delete from entries where owner = ? and kind = ? and id not in"
            " (select id from entries where owner = ? and kind = ? order by id desc limit ?)",
            (owner, kind, owner, kind, self._most_entries),
        )
        while True:
            (held,) = connection.execute("select coalesce(sum(length(content)), 0) from entries").fetchone()
            if held <= self._most_bytes:
                return
            connection.execute(
                "delete from entries where id = (select min(id) from entries where owner ="
                " (select owner from entries group by owner order by sum(length(content)) desc, owner limit 1))"
            )

    def _read(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock, _spoken(self.path):
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _spoken(self.path):
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")


@contextmanager
def _spoken(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ValueError(f"The history {path.name} cannot be used ({error}).") from error


def _hidden(owner: str) -> str:
    """An owner is known by a secret of the browser, which whoever reads the file must not learn."""
    return hashlib.sha256(owner.encode()).hexdigest()


def default_path() -> Path:
    """In the user's data folder, or in the one that DATA_VARIABLE names."""
    folder = os.environ.get(DATA_VARIABLE)
    if folder:
        return Path(folder) / "history.sqlite"
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / "qwen-vl-moe-workbench" / "history.sqlite"
