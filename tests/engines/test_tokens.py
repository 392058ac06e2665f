"""The registry against a slow walk over the prompt, on random prompts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engines.tokens.group import FrameGroup
from engines.tokens.registry import TokenRegistry

IMAGE, VIDEO = 7, 8


def prompt(seed: int) -> tuple[TokenRegistry, list[tuple[int, int, int] | None]]:
    """A random one of several images and videos, and for each position (group, row, column) or None for text."""
    random = np.random.default_rng(seed)
    ids, groups = [1], []
    where: list[tuple[int, int, int] | None] = [None]
    for item in range(int(random.integers(0, 4))):
        video = bool(random.integers(2))
        rows, columns = (int(side) for side in random.integers(1, 5, 2))
        for frame in range(int(random.integers(1, 4)) if video else 1):
            ids += [1] * int(random.integers(0, 3))
            where += [None] * (len(ids) - len(where))
            kind, times = ("video", 0.5 * frame) if video else ("image", None)
            groups.append(FrameGroup(item, f"{item}", kind, (frame,), times, rows, columns))
            ids += [VIDEO if video else IMAGE] * (rows * columns)
            where += [(len(groups) - 1, row, column) for row in range(rows) for column in range(columns)]
    ids.append(1)
    where.append(None)
    positions = random.integers(0, 50, (3, len(ids)))
    made = TokenRegistry.of(np.array(ids), positions, [IMAGE, VIDEO], groups, layers=[1, 2, 4])
    return made, where


@pytest.mark.parametrize("seed", range(20))
def test_position_cell_and_place_lead_to_each_other(seed: int) -> None:
    registry, where = prompt(seed)
    cells = [position for position, place in enumerate(where) if place is not None]
    assert registry.cell_positions.tolist() == cells
    for position, place in enumerate(where):
        cell = registry.cell_at(position)
        if place is None:
            assert cell is None
            continue
        assert cell == cells.index(position)
        assert registry.place(cell) == place
        assert registry.cell(*place) == cell
        own = registry.cells_of(place[0])
        assert own.start <= cell < own.stop


@pytest.mark.parametrize("seed", range(20))
def test_patches_and_cells_lead_to_each_other(seed: int) -> None:
    registry, where = prompt(seed)
    # Patch rows of one item count on through its frames, from 0 for each item.
    seen: dict[int, list[int]] = {}
    for cell in range(len(registry.cell_positions)):
        group, row, column = registry.place(cell)
        patches = registry.patches(cell)
        assert patches == [(2 * row, 2 * column), (2 * row, 2 * column + 1),
                           (2 * row + 1, 2 * column), (2 * row + 1, 2 * column + 1)]  # fmt: skip
        assert {registry.cell_of_patch(group, *patch) for patch in patches} == {cell}
        assert registry.box_px(cell) == (column * 32, row * 32, column * 32 + 32, row * 32 + 32)
        seen.setdefault(registry.groups[group].item, []).extend(registry.patch_rows(cell))
    for rows in seen.values():
        assert rows == list(range(len(rows)))
    assert len(where) == len(registry)


@pytest.mark.parametrize("inside", [None, 2])
@pytest.mark.parametrize("seed", range(20))
def test_rows_of_the_cache_are_those_of_a_walk(seed: int, inside: int | None) -> None:
    registry, where = prompt(seed)
    random = np.random.default_rng(seed + 100)
    kept = random.random(len(registry.cell_positions)) < 0.5
    pruned = registry.pruned(kept.tolist(), inside)
    cells = iter(kept.tolist())
    alive = [place is None or next(cells) for place in where]
    evicted = {}
    expected = {}
    for layer in (1, 2, 4):
        there = [position for position in range(len(where)) if alive[position] or (inside is not None and layer <= 2)]
        assert np.flatnonzero(pruned.reached(layer)).tolist() == there
        held = random.random(len(there)) < 0.6
        evicted[layer] = held
        expected[layer] = [position for position, holds in zip(there, held, strict=True) if holds]
    ended = pruned.evicted(evicted)
    for layer, rows in expected.items():
        assert ended.rows(layer).tolist() == rows
        for position in range(len(where)):
            row = rows.index(position) if position in rows else None
            assert ended.row_of(layer, position) == row
    lost = [
        [position not in expected[layer] for layer in (1, 2, 4) if pruned.reached(layer)[position]]
        for position in registry.cell_positions.tolist()
    ]
    shares = [sum(one) / len(one) if one else 0.0 for one in lost]
    np.testing.assert_allclose(ended.evicted_share, shares)
    assert ended.kept_cells.tolist() == kept.tolist()
    again = TokenRegistry.from_dict(json.loads(json.dumps(ended.to_dict())))
    assert again.to_dict() == ended.to_dict()
    assert all(again.rows(layer).tolist() == ended.rows(layer).tolist() for layer in (1, 2, 4))


def test_nothing_dropped_is_everything_and_media_that_do_not_fit_are_refused() -> None:
    registry, _ = prompt(3)
    assert registry.kept_cells.all()
    assert not registry.evicted_share.any()
    assert registry.pruned([True] * len(registry.cell_positions)).to_dict() == registry.to_dict()
    with pytest.raises(ValueError, match="visual tokens"):
        TokenRegistry.of(np.array([1, IMAGE]), np.zeros((3, 2), dtype=np.int64), [IMAGE], [])
    with pytest.raises(ValueError, match="Layer 3"):
        registry.holding(3)
