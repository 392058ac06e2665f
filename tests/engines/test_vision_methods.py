"""Every method that reduces the vision tower against a slow, obvious reference, ties included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from engines.vision import METHODS, create, describe_methods
from engines.vision.base import Units, units_kept

Reference = Callable[[Units, int], list[int]]


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def reference_merging(units: Units, keep: int) -> list[int]:
    """Lists of members, joined two by two until `keep` lists are left; keys are the means over the members."""
    keys = units.keys.tolist()
    groups = [(place, [place]) for place in range(len(keys))]  # (who goes on, members), by place

    def key_of(members: list[int]) -> list[float]:
        return [sum(keys[member][i] for member in members) / len(members) for i in range(len(keys[0]))]

    while len(groups) > keep:
        sources, targets = groups[::2], groups[1::2]
        proposals = []
        for place, (_, members) in enumerate(sources):
            likeness = [cosine(key_of(members), key_of(others)) for _, others in targets]
            best = max(likeness)
            partner = next(index for index, value in enumerate(likeness) if value >= best - 1e-6)
            proposals.append((place, partner, best))
        left = len(groups) - keep
        accepted: list[tuple[int, int, float]] = []
        while proposals and len(accepted) < left:
            best = max(value for _, _, value in proposals)
            first = next(proposal for proposal in proposals if proposal[2] >= best - 1e-6)
            proposals.remove(first)
            accepted.append(first)
        for place, partner, _ in accepted:
            targets[partner][1].extend(sources[place][1])
        gone = {sources[place][0] for place, _, _ in accepted}
        groups = sorted(group for group in [*sources, *targets] if group[0] not in gone)
    owner = [-1] * len(keys)
    for stands, members in groups:
        for member in members:
            owner[member] = stands
    return owner


def reference_still(units: Units, keep: int) -> list[int]:
    changes = []
    for entered, left in zip(units.entered.tolist(), units.left.tolist(), strict=True):
        moved = math.sqrt(sum((a - b) ** 2 for a, b in zip(entered, left, strict=True)))
        changes.append(moved / math.sqrt(sum(b * b for b in left)))
    order: list[int] = []
    while len(order) < keep:
        rest = [place for place in range(len(changes)) if place not in order]
        best = max(changes[place] for place in rest)
        order.append(next(place for place in rest if changes[place] >= best - 1e-6))
    return [place if place in order else -1 for place in range(len(changes))]


def reference_random(units: Units, keep: int) -> list[int]:
    drawn = torch.randperm(units.count, generator=torch.Generator().manual_seed(0)).tolist()[:keep]
    return [place if place in drawn else -1 for place in range(units.count)]


REFERENCES: dict[str, Reference] = {
    "merging": reference_merging,
    "still": reference_still,
    "random": reference_random,
}


def make_units(count: int, seed: int, ties: bool) -> Units:
    generator = torch.Generator().manual_seed(seed)
    keys, entered, left = (torch.randn(count, 16, generator=generator) for _ in range(3))
    if ties:
        # Signs alone: norms are equal and many cosines too. Later rounds compare means, of which few are equal.
        keys, entered, left = keys.sign(), entered.sign(), left.sign()
    return Units(keys, entered, left)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("count", [1, 2, 3, 16, 35])
@pytest.mark.parametrize("ties", [False, True])
def test_units_go_on_as_the_reference_says(name: str, count: int, ties: bool) -> None:
    for seed in range(4):
        units = make_units(count, seed, ties)
        for ratio in (0.001, 0.1, 0.25, 0.5, 0.75, 0.99):
            keep = units_kept(count, ratio)
            owner = create(name, {}).assign(units, keep).tolist()
            assert owner == REFERENCES[name](units, keep)
            assert sum(stands == place for place, stands in enumerate(owner)) == keep


def test_of_equal_units_the_earlier_ones_merge() -> None:
    same = torch.ones(6, 4)
    owner = create("merging", {}).assign(Units(same, same, same), 4).tolist()
    assert owner == [1, 1, 1, 3, 4, 5]


def test_every_method_has_a_reference_and_is_described() -> None:
    assert set(METHODS) == set(REFERENCES)
    assert all(method.label and method.help and method.source for method in describe_methods())


def test_unknown_methods_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"vision\.method is 'foo'; it must be one of merging, still, random"):
        create("foo", {})
    with pytest.raises(ValueError, match=r"Unknown option vision\.options\.power; merging has no options"):
        create("merging", {"power": 2})


def test_at_least_one_unit_goes_on() -> None:
    assert [units_kept(1, 0.01), units_kept(7, 0.01), units_kept(7, 0.5), units_kept(7, 1.0)] == [1, 1, 4, 7]
