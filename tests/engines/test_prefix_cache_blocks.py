"""The blocks by themselves: what is found is a beginning, what is in use stays, and bytes are bounded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.cache.prefix import Cost, PrefixCache
from engines.cache.rows import BLOCK_TOKENS, Modality, Rows
from engines.cache.scope import Owner, Scope
from engines.tokens.group import FrameGroup
from engines.tokens.registry import TokenRegistry

OWNER = Owner("a", "0" * 64)
ROOT, OTHER_ROOT = b"root", b"another root"
IMAGE, VIDEO = 900, 901
ROW_BYTES = 2 * 2 * 1 * 4 * 4  # layers, keys and values, heads, head size, float32


def rows_of(ids: list[int], contents: list[tuple[str, int]] | None = None, prompt: int | None = None) -> Rows:
    places = np.tile(np.arange(len(ids)), (3, 1))
    groups = [
        FrameGroup(index, name, "image", (0,), None, 1, size) for index, (name, size) in enumerate(contents or [])
    ]
    tokens = TokenRegistry.of(np.asarray(ids, dtype=np.int64), places, (IMAGE, VIDEO), groups)
    rows = Rows.of(tokens, [name for name, _ in contents or []])
    return rows if prompt is None else Rows(**{**vars(rows), "prompt": prompt})


def states_of(rows: Rows) -> Callable[[int, int], Tensor]:
    """Every row holds its token, so that what comes back can be told."""
    tokens = torch.from_numpy(rows.ids[rows.kept]).float().view(1, 1, 1, -1, 1).expand(2, 2, 1, -1, 4)
    return lambda first, end: tokens[..., first:end, :].clone()


def add(cache: PrefixCache, rows: Rows, root: bytes = ROOT, owner: Owner = OWNER) -> int:
    return cache.add(root, owner, rows, states_of(rows), Cost(0.5, 2.0))


def found(cache: PrefixCache, rows: Rows, root: bytes = ROOT) -> int:
    with cache.find(root, rows, len(rows) - 1) as match:
        if match.rows:
            expected = states_of(rows)(0, match.rows)
            assert torch.equal(match.states(), expected)
        return match.tokens


def test_a_longer_prompt_finds_a_shorter_one_whole() -> None:
    cache = PrefixCache(1 << 20)
    ids = list(range(2 * BLOCK_TOKENS + 7))
    add(cache, rows_of(ids))
    assert found(cache, rows_of([*ids, 500, 501])) == len(ids)
    assert found(cache, rows_of(ids)) == len(ids) - 1, "one token is always run"
    assert found(cache, rows_of([999, *ids[1:]])) == 0
    assert found(cache, rows_of([*ids[:BLOCK_TOKENS], 999])) == BLOCK_TOKENS


def test_conversations_grow_by_blocks_of_any_length() -> None:
    cache = PrefixCache(1 << 20)
    draw = random.Random(0)
    ids: list[int] = []
    for _ in range(12):
        known = len(ids)
        ids += [draw.randrange(800) for _ in range(draw.randrange(2, 50))]
        assert found(cache, rows_of(ids)) == known
        add(cache, rows_of(ids))
    assert cache.stats().bytes == len(ids) * ROW_BYTES, "nothing is held twice"


def test_another_question_finds_the_media_to_the_last_token() -> None:
    cache = PrefixCache(1 << 20)
    head = [1, 2, *[IMAGE] * 41, 3]
    contents = [("picture", 41)]
    add(cache, rows_of([*head, 10, 11, 12], contents))
    assert found(cache, rows_of([*head, 20, 21], contents)) == 43
    assert found(cache, rows_of([*head, 20, 21], [("other", 41)])) == 2, "the text before the media"


def test_dropped_tokens_have_no_rows_and_are_part_of_the_key() -> None:
    cache = PrefixCache(1 << 20)
    ids, contents = [1, *[IMAGE] * 6, 2, 3], [("picture", 6)]
    half = rows_of(ids, contents).keeping([True, False] * 3)
    add(cache, half)
    with cache.find(ROOT, half, 8) as match:
        assert (match.tokens, match.rows) == (8, 5)
        assert match.states()[0, 0, 0, :, 0].tolist() == [1, IMAGE, IMAGE, IMAGE, 2]
    assert found(cache, rows_of(ids, contents).keeping([False, True] * 3)) == 1
    assert found(cache, rows_of(ids, contents)) == 1


@pytest.mark.parametrize("change", ["positions", "groups", "kinds"])
def test_whatever_decides_a_row_is_in_its_key(change: str) -> None:
    cache = PrefixCache(1 << 20)
    rows = rows_of([*[IMAGE] * 4, 5], [("picture", 4)])
    add(cache, rows)
    values = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in vars(rows).items()}
    if change == "positions":
        values["positions"][2, 1] += 1
    elif change == "groups":
        values["groups"][:], values["contents"] = -1, ()
    else:
        # Forged: the same key, but a request that is said to hold no image.
        values["kinds"][:] = Modality.TEXT
    assert found(cache, Rows(**values)) == 0


def test_owners_never_meet() -> None:
    cache = PrefixCache(1 << 20)
    rows = rows_of(list(range(50)))
    add(cache, rows)
    assert found(cache, rows, OTHER_ROOT) == 0
    add(cache, rows, OTHER_ROOT, Owner("b", "1" * 64))
    cache.clear("a")
    assert found(cache, rows) == 0
    assert found(cache, rows, OTHER_ROOT) == 49
    cache.clear()
    assert cache.stats().entries == cache.stats().bytes == 0
    assert not cache._roots


def test_what_is_in_use_survives_any_load() -> None:
    capacity = 40 * BLOCK_TOKENS * ROW_BYTES
    cache = PrefixCache(capacity)
    mine = rows_of(list(range(20 * BLOCK_TOKENS)))
    add(cache, mine)
    with cache.find(ROOT, mine, len(mine) - 1) as match:
        for start in range(1000, 1000 + 50):
            add(cache, rows_of([start] * 10 * BLOCK_TOKENS))
            assert cache.stats().bytes <= capacity
        assert cache.stats().evictions > 0
        assert match.states().shape[3] == len(mine) - 1
        assert found(cache, mine) == len(mine) - 1
    for start in range(2000, 2000 + 50):
        add(cache, rows_of([start] * 10 * BLOCK_TOKENS))
    assert found(cache, mine) == 0, "and is let go of afterwards"


def test_the_least_recent_ending_goes_first() -> None:
    cache = PrefixCache(33 * BLOCK_TOKENS * ROW_BYTES * 32 // 31)
    head = list(range(20 * BLOCK_TOKENS))
    first, second = ([*head, *[token] * 6 * BLOCK_TOKENS] for token in (800, 801))
    add(cache, rows_of(first))
    add(cache, rows_of(second))
    found(cache, rows_of(first))
    add(cache, rows_of([802] * 3 * BLOCK_TOKENS))
    assert found(cache, rows_of(first)) == len(first) - 1
    assert len(head) <= found(cache, rows_of(second)) < len(second) - BLOCK_TOKENS


def test_a_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    cache = PrefixCache(4 * BLOCK_TOKENS * ROW_BYTES * 32 // 31)
    rows = rows_of(list(range(10 * BLOCK_TOKENS)))
    assert add(cache, rows) == 4
    assert found(cache, rows) == 4 * BLOCK_TOKENS


def test_random_prompts_against_a_plain_list_of_beginnings() -> None:
    """What is found is never longer than what some earlier prompt has in common, and its rows are right."""
    draw = random.Random(1)
    capacity = 500 * ROW_BYTES
    cache = PrefixCache(capacity)
    seen: list[list[int]] = []
    for _ in range(500):
        old = draw.choice(seen) if seen and draw.random() < 0.7 else []
        ids = old[: draw.randrange(len(old) + 1)] + [draw.randrange(3) for _ in range(draw.randrange(1, 60))]
        rows = rows_of(ids, prompt=draw.randrange(1, len(ids) + 1))
        with ExitStack() as held:
            match = held.enter_context(cache.find(ROOT, rows, len(rows) - 1))
            common = max((common_length(ids, other) for other in seen), default=0)
            assert match.tokens <= min(common, len(ids) - 1)
            if match.rows:
                assert torch.equal(match.states(), states_of(rows)(0, match.rows))
            add(cache, rows)
        assert cache.stats().bytes <= capacity
        assert cache.stats().bytes == sum(block.nbytes for block in cache._order)
        assert not any(block.users for block in cache._order)
        seen.append(ids)


def common_length(ours: list[int], theirs: list[int]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))))


# ---- who owns what ----


def key(scope: Scope, level: str, resource: str = "media", public: bool = False) -> str | None:
    owner = scope.owner(level, resource, public=public)
    return owner.key if owner is not None else None


@pytest.mark.parametrize("level", ["session", "resource", "user", "tenant", "global"])
def test_no_names_lead_into_another_tenant(level: str) -> None:
    mine = Scope("a", "user", "session", "resource")
    forged = [
        Scope("b", "user", "session", "resource"),
        Scope("b", "a", "a", "a"),
        Scope('b", "a', "user", "session", "resource"),
        Scope("", "a", "user", "session"),
        Scope("b", 'user"], ["a', "session", "resource"),
    ]
    levels = ["session", "resource", "user", "tenant", "global"]
    assert key(mine, level) not in {key(scope, other) for scope in forged for other in levels}


def test_each_level_is_shared_by_those_it_names() -> None:
    mine = Scope("a", "u", "s", "")
    assert key(mine, "session") == key(Scope("a", "u", "s", "x"), "session")
    assert key(mine, "session") != key(Scope("a", "u", "t"), "session")
    assert key(mine, "session") != key(Scope("a", "v", "s"), "session"), "a session belongs to a user"
    assert key(mine, "user") == key(Scope("a", "u", "t"), "user") != key(Scope("a", "v", "s"), "user")
    assert key(mine, "tenant") == key(Scope("a", "v", "t"), "tenant")
    assert key(mine, "resource") == key(Scope("a", "v", "t"), "resource") != key(mine, "resource", "others")
    assert key(Scope("a", resource="x"), "resource", "m") == key(Scope("a", resource="x"), "resource", "n")
    assert len({key(mine, level) for level in ("session", "resource", "user", "tenant")}) == 4


def test_everyone_shares_what_is_public_and_nothing_else() -> None:
    assert key(Scope("a"), "global", public=True) == key(Scope("b"), "global", public=True)
    assert key(Scope("a"), "global") == key(Scope("a"), "tenant") != key(Scope("b"), "global")
    assert Scope("a").owner("tenant", "", public=True) != Scope("b").owner("tenant", "", public=True)


def test_a_level_without_its_name_shares_with_nobody() -> None:
    nameless = Scope("a", user="", session="")
    assert key(nameless, "session") is key(nameless, "user") is None
    assert key(nameless, "tenant") == key(Scope("a"), "tenant")
