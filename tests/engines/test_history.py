"""The history: kept over a restart, found again by its owner and by nobody else, bounded, and gone when deleted."""

from __future__ import annotations

import random
import sqlite3
import stat
from pathlib import Path

import pytest

from engines.history import HistoryStore

KIND = "comparison"


def add(store: HistoryStore, owner: str = "a", words: str = "a Red circle", **content: object) -> int:
    return store.add(owner, KIND, "2026-01-02T03:04:05Z", {"title": words}, words, {"said": words, **content})


def test_an_entry_is_found_again_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.sqlite"
    store = HistoryStore(path)
    number = add(store)
    add(store, "owner-name")
    store.close()
    # The file does not say whose it is.
    assert b"owner-name" not in b"".join(one.read_bytes() for one in path.parent.iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = HistoryStore(path)
    entry = store.get("a", KIND, number)
    assert entry is not None
    assert entry.content == {"said": "a Red circle"}
    assert entry.summary.values == {"title": "a Red circle"}
    assert store.get("b", KIND, number) is None
    assert store.get("a", "other", number) is None
    assert store.search("b", KIND) == []
    assert store.delete("b", KIND) == 0
    assert store.count("a", KIND) == 1


def test_search_takes_any_words_newest_first_and_is_no_pattern(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "h")
    for words in ("a Red circle", "100 % blue", "ROT über"):
        add(store, words=words)
    assert [one.values["title"] for one in store.search("a", KIND)] == ["ROT über", "100 % blue", "a Red circle"]
    assert [one.values["title"] for one in store.search("a", KIND, " red ")] == ["a Red circle"]
    assert [one.values["title"] for one in store.search("a", KIND, "ÜBER")] == ["ROT über"]
    assert [one.values["title"] for one in store.search("a", KIND, "%")] == ["100 % blue"]
    assert store.search("a", KIND, "'; drop table entries") == []
    assert len(store.search("a", KIND, most=2)) == 2


def test_the_oldest_go_first_and_each_owner_has_room(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "h", most_entries=3)
    add(store, "b", "kept")
    for number in range(5):
        add(store, words=str(number))
    assert [one.values["title"] for one in store.search("a", KIND)] == ["4", "3", "2"]
    assert store.count("b", KIND) == 1


def test_an_entry_that_is_too_large_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "h")
    noise = random.Random(0).randbytes(9 << 20).hex()
    with pytest.raises(ValueError, match="too much to keep"):
        add(store, noise=noise)
    assert store.count("a", KIND) == 0


def test_what_was_deleted_is_not_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "h"
    store = HistoryStore(path)
    number = add(store, words="a very secret question")
    assert store.delete("a", KIND, number) == 1
    store.close()
    left = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert b"secret" not in left


def test_files_of_something_else_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ValueError, match="name another file with --history"):
        HistoryStore(tmp_path / "text")
    with sqlite3.connect(tmp_path / "newer") as connection:
        connection.execute("create table other (x)")
        connection.execute("pragma user_version = 99")
    with pytest.raises(ValueError, match="format 99"):
        HistoryStore(tmp_path / "newer")
    with pytest.raises(ValueError, match="cannot be used"):
        HistoryStore(tmp_path)
