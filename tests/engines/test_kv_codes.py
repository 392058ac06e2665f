"""Blocks of keys and values in few bits, against a quantiser of plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engines.kv.codes import KEYS, VALUES, Codes

SHAPE = (2, 3, 16, 8)
BITS = (4, 8)
SHARED = {"keys": KEYS, "values": VALUES}


def slow_group(values: list[float], bits: int, whole_zero: bool) -> tuple[list[int], float, float]:
    """Codes, scale and zero of the values that share them. A value is (code - zero) x scale."""
    least = -(2 ** (bits - 1))
    low, high = min(values), max(values)
    step = max((high - low) / (2**bits - 1), max(abs(low), abs(high)) / 256)
    scale = float(torch.tensor(step).half()) or 1.0
    zero = least - low / scale
    if whole_zero and low <= 0 <= high:
        zero = round(zero)
    zero = float(torch.tensor(zero).half())
    codes = [min(max(round(value / scale + zero), least), -least - 1) for value in values]
    return codes, scale, zero


def slow_decode(rows: Tensor, bits: int, shared: int, threshold: float = 0.0) -> Tensor:
    """(heads, blocks, tokens, size) float64 after encoding and decoding, group by group."""
    rows = rows.double().clone()
    for head in range(rows.shape[0]):
        for block in range(rows.shape[1]):
            own = rows[head, block]
            if threshold:
                own[own.abs() < threshold * own.abs().max()] = 0.0
            for line in own.T if shared == KEYS else own:
                codes, scale, zero = slow_group(line.tolist(), bits, threshold > 0)
                line.copy_(torch.tensor([(code - zero) * scale for code in codes], dtype=torch.float64))
    return rows


def random_rows(seed: int = 0) -> Tensor:
    """With some channels far from 0, as keys have them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(SHAPE, generator=generator)
    return rows + 20 * torch.randn(SHAPE[0], 1, 1, SHAPE[3], generator=generator).round()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_codes_are_those_of_the_slow_quantiser(bits: int, kind: str, threshold: float) -> None:
    rows = random_rows()
    codes = Codes.encode(rows, bits, SHARED[kind], threshold)
    expected = slow_decode(rows, bits, SHARED[kind], threshold)
    assert codes.scale is not None
    # Where float32 puts a value on the other side of a tie, it is one step off; that must be rare.
    off = (codes.decode(torch.float64) - expected).abs()
    assert (off <= codes.scale.double() * 1.001).all()
    assert (off > 1e-3 * codes.scale.double()).float().mean() < 0.002


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", SHARED)
def test_no_value_is_off_by_more_than_half_a_step(bits: int, kind: str) -> None:
    rows = random_rows(1)
    codes = Codes.encode(rows, bits, SHARED[kind])
    assert codes.scale is not None
    # The stored scale and zero are rounded to float16, which moves the ends of the range a little.
    assert ((codes.decode(torch.float32) - rows).abs() <= codes.scale.float() * 0.64).all()


def test_ties_go_to_the_even_code() -> None:
    # 0 to 15 in steps of 1, and halves between them: zero is -8, and the codes are rounded to even.
    line = torch.tensor([0.0, 15.0, 0.5, 1.5, 2.5, 3.5, 4.25, 4.75])
    codes = Codes.encode(line.view(1, 1, 1, 8), 4, VALUES)
    (low, high) = codes.signed(torch.float32)
    assert torch.cat((low, high), -1).flatten().tolist() == [-8, 7, -8, -6, -6, -4, -4, -3]
    assert codes.decode(torch.float32).flatten().tolist() == [0, 15, 0, 2, 2, 4, 4, 5]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("value", [0.0, 3.0, -0.75, 1e-3, 700.0])
def test_constant_values_stay_what_they_are(bits: int, kind: str, value: float) -> None:
    rows = torch.full((1, 1, 4, 4), value)
    decoded = Codes.encode(rows, bits, SHARED[kind]).decode(torch.float32)
    # Float16 cannot hold a step of very small values as finely.
    torch.testing.assert_close(decoded, rows, rtol=1e-3, atol=1e-5)
    assert value or torch.equal(decoded, rows)


@pytest.mark.parametrize("bits", [0, *BITS])
@pytest.mark.parametrize("kind", SHARED)
def test_values_below_the_threshold_are_exactly_zero_and_the_others_are_not_touched(bits: int, kind: str) -> None:
    rows = random_rows(2)
    decoded = Codes.encode(rows, bits, SHARED[kind], 0.1).decode(torch.float32)
    small = rows.abs() < 0.1 * rows.abs().amax(dim=(2, 3), keepdim=True)
    assert 0 < small.float().mean() < 1
    assert (decoded[small] == 0).all()
    if not bits:
        assert torch.equal(decoded[~small], rows[~small])


def test_neutral_settings_keep_every_bit() -> None:
    rows = random_rows().bfloat16()
    codes = Codes.encode(rows, 0, KEYS)
    assert torch.equal(codes.decode(torch.bfloat16), rows)
    assert [part.nbytes for part in codes.tensors()] == [rows.nbytes]


@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_codes_and_two_halves_a_group(bits: int) -> None:
    heads, blocks, tokens, size = SHAPE
    for shared, groups in ((KEYS, size), (VALUES, tokens)):
        held = sum(part.nbytes for part in Codes.encode(random_rows(), bits, shared).tensors())
        assert held == heads * blocks * (tokens * size * bits // 8 + groups * 2 * 2)


@pytest.mark.parametrize("bits", [0, *BITS])
def test_one_block_after_the_other_is_all_at_once(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows()
    whole = Codes.encode(rows, bits, KEYS)
    pieces = [Codes.encode(part, bits, KEYS) for part in rows.split(1, dim=1)]
    grown = pieces[0].append(pieces[1]).append(pieces[2])
    monkeypatch.setattr("engines.kv.codes._AT_ONCE", 2)
    for other in (grown, Codes.encode(rows, bits, KEYS)):
        assert all(torch.equal(*pair) for pair in zip(whole.tensors(), other.tensors(), strict=True))
    chosen = whole.select(torch.tensor([True, False, True]))
    assert torch.equal(chosen.decode(torch.float32), whole.decode(torch.float32)[:, [0, 2]])


def test_a_block_of_one_token_and_huge_values_are_finite() -> None:
    for rows in (torch.randn(1, 2, 1, 6), torch.full((1, 1, 2, 4), 6e4), torch.randn(1, 1, 2, 4) * 1e-9):
        decoded = Codes.encode(rows, 4, KEYS).decode(torch.float32)
        assert decoded.isfinite().all()
        assert not math.isnan(float(decoded.sum()))
