"""A cache layer in blocks: what it holds, what attention makes of it, and which blocks it lets go."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engines.config import KVConfig
from engines.kv.attend import attend
from engines.kv.layer import BlockLayer
from engines.kv.retention import WINDOW, attention_received, choose_tokens, rank_tokens

HEADS, SHARING, SIZE, BLOCK = 2, 3, 16, 8
SCALING = SIZE**-0.5


def draw(tokens: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(1, HEADS, tokens, SIZE, generator=generator) for _ in range(2))
    return (keys + 3 * keys[:, :, :1]).to(dtype), values.to(dtype)


def make(config: KVConfig, keys: Tensor, values: Tensor, visual: Tensor | None = None, keep: Tensor | None = None):
    visual = torch.zeros(keys.shape[2], dtype=torch.bool) if visual is None else visual
    return BlockLayer.of(SimpleNamespace(keys=keys, values=values), config, visual, keep)


def slow_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(1, 1, heads, size), head by head in float64."""
    output = []
    for head in range(query.shape[1]):
        own = head // SHARING
        weights = (keys[0, own].double() @ query[0, head, 0].double() * SCALING).softmax(0)
        output.append(weights @ values[0, own].double())
    return torch.stack(output).float()[None, None]


def query_of(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(1, HEADS * SHARING, 1, SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("tokens", [1, 3, 4, BLOCK, BLOCK + 4, 5 * BLOCK + 4, 50])
@pytest.mark.parametrize("extra", [{}, {"sink_tokens": 0}, {"norm_floor": 1e-6}, {"sparsity_threshold": 0.1}])
def test_attention_on_codes_equals_attention_on_decoded_rows(bits: int, tokens: int, extra: dict[str, float]) -> None:
    keys, values = draw(tokens)
    layer = make(KVConfig(bits=bits, block_tokens=BLOCK, **extra), keys, values)
    decoded = layer.update(*draw(1, seed=1))
    query = query_of(2)
    assert decoded[0].shape[2] == tokens + 1
    torch.testing.assert_close(attend(layer, query, SCALING), slow_attention(query, *decoded), rtol=1e-4, atol=1e-5)
    if not bits and not extra.get("sparsity_threshold"):
        for held, given, new in zip(decoded, (keys, values), draw(1, seed=1), strict=True):
            assert torch.equal(held, torch.cat((given, new), 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_attention_in_narrow_formats_is_as_close_as_they_allow(dtype: torch.dtype, bits: int) -> None:
    layer = make(KVConfig(bits=bits, block_tokens=BLOCK), *draw(60, dtype=dtype))
    decoded = layer.update(*draw(1, seed=1, dtype=dtype))
    query = query_of(2, dtype)
    output = attend(layer, query, SCALING)
    assert output.dtype == dtype
    expected = slow_attention(query, *decoded)
    torch.testing.assert_close(output.float(), expected, rtol=0.03, atol=0.03)


def test_attention_takes_one_token_at_a_time() -> None:
    layer = make(KVConfig(bits=4), *draw(9))
    with pytest.raises(ValueError, match="one after the other"):
        attend(layer, query_of(0).expand(-1, -1, 2, -1), SCALING)


def test_the_cache_of_several_sequences_is_refused() -> None:
    keys, values = draw(5)
    with pytest.raises(ValueError, match="2 sequences"):
        make(KVConfig(bits=4), keys.expand(2, -1, -1, -1), values)


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("tokens", [5, 29, 36])
@pytest.mark.parametrize("window", [0, 14])
def test_token_by_token_equals_all_at_once(bits: int, tokens: int, window: int) -> None:
    """Up to rows that have left the window: those that are already in a block stay in it, dead."""
    config = KVConfig(bits=bits, block_tokens=BLOCK, text_window=window)
    keys, values = draw(tokens)
    grown = make(config, keys[:, :, :5], values[:, :, :5])
    for token in range(5, tokens):
        grown.update(keys[:, :, token : token + 1], values[:, :, token : token + 1])
    whole = make(config, keys, values)
    assert grown.get_seq_length() == whole.get_seq_length() == tokens
    if not window:
        assert all(torch.equal(*pair) for pair in zip(grown.tensors(), whole.tensors(), strict=True))
    for ours, theirs in zip(grown.dense(), whole.dense(), strict=True):
        assert torch.equal(ours, theirs)
    assert grown.get_mask_sizes(1) == whole.get_mask_sizes(1)


def test_sinks_and_the_newest_rows_keep_every_bit_and_the_blocks_do_not() -> None:
    keys, values = draw(4 + 2 * BLOCK + 3)
    held, _ = make(KVConfig(bits=4, block_tokens=BLOCK), keys, values).dense()
    assert torch.equal(held[:, :, :4], keys[:, :, :4])
    assert torch.equal(held[:, :, -3:], keys[:, :, -3:])
    assert not torch.isclose(held[:, :, 4:-3], keys[:, :, 4:-3]).all()


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_bytes_are_those_of_every_tensor_and_of_no_storage_behind_it(bits: int) -> None:
    layer = make(KVConfig(bits=bits, block_tokens=BLOCK, norm_floor=0.5), *draw(4 + 3 * BLOCK + 2))
    layer.update(*draw(1, seed=1))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in layer.tensors()}
    report = layer.report(1)
    assert report.bytes == sum(storages.values())
    assert report.plain_bytes == 2 * HEADS * SIZE * 4 * (4 + 3 * BLOCK + 3)
    if bits:
        codes = 3 * HEADS * 2 * BLOCK * SIZE * bits // 8
        scales = 3 * HEADS * (SIZE + BLOCK) * 2 * 2
        whole = 2 * HEADS * SIZE * 4 * 7
        bookkeeping = (4 + 3 * BLOCK + 3) * 4 + 3 * 5
        assert report.bytes == codes + scales + whole + bookkeeping


# ---- D3: which tokens stay ----


@pytest.mark.parametrize("rows", [1, 5, 60])
def test_importance_is_the_attention_of_the_last_rows(rows: int) -> None:
    keys, _ = draw(60)
    query = torch.randn(HEADS * SHARING, rows, SIZE, generator=torch.Generator().manual_seed(3))
    expected = torch.zeros(60)
    used = min(rows, WINDOW)
    for row in range(rows - used, rows):
        seen = 60 - rows + row + 1
        for head in range(HEADS * SHARING):
            weights = (keys[0, head // SHARING, :seen] @ query[head, row] * SCALING).softmax(0)
            expected[:seen] += weights / (used * HEADS * SHARING)
    torch.testing.assert_close(attention_received(query, keys[0], SCALING), expected)
    assert float(expected.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("window", [0, 1, 6, 100])
@pytest.mark.parametrize("sinks", [0, 4, 12])
def test_top_visual_tokens_the_text_window_and_the_sinks_stay(ratio: float, window: int, sinks: int) -> None:
    visual = torch.tensor([False] * 5 + [True] * 20 + [False] * 4 + [True] * 7 + [False] * 6)
    importance = torch.rand(len(visual), generator=torch.Generator().manual_seed(0)).round(decimals=1)
    expected = set(range(sinks))
    own = [token for token in range(len(visual)) if visual[token] and token >= sinks]
    budget = max(1, round(ratio * len(own)))
    expected |= set(sorted(own, key=lambda token: (-float(importance[token]), token))[:budget])
    texts = [token for token in range(len(visual)) if not visual[token]]
    expected |= set(texts[-window:] if window else texts)
    ranks = rank_tokens(visual, sinks)
    keep = choose_tokens(ranks, len(texts), importance, visual_keep_ratio=ratio, text_window=window)
    assert set(keep.nonzero().flatten().tolist()) == expected


def test_without_visual_tokens_all_text_stays() -> None:
    visual = torch.zeros(7, dtype=torch.bool)
    keep = choose_tokens(rank_tokens(visual, 2), 7, torch.rand(7), visual_keep_ratio=0.1, text_window=0)
    assert keep.all()


# ---- D2: which blocks are released ----


class SlowBlocks:
    """Lists of (number, is text, key, value), block by block, with the two rules written out."""

    def __init__(self, config: KVConfig, keys: Tensor, values: Tensor, visual: Tensor) -> None:
        self.config, self.texts = config, 0
        self.sinks: list[tuple[float, Tensor, Tensor]] = []
        self.blocks: list[list[tuple[float, Tensor, Tensor]]] = []
        self.newest: list[tuple[float, Tensor, Tensor]] = []
        self.first: list[float | None] = []
        self.below: list[int] = []
        for token in range(keys.shape[2]):
            self.add(keys[0, :, token], values[0, :, token], bool(visual[token]))

    def add(self, key: Tensor, value: Tensor, visual: bool = False) -> None:
        number = float("inf") if visual else self.texts
        self.texts += not visual
        if len(self.sinks) < self.config.sink_tokens:
            self.sinks.append((float("inf"), key, value))
            return
        self.newest.append((number, key, value))
        if len(self.newest) == self.config.block_tokens:
            self.blocks.append(self.newest)
            self.newest = []
            self.first.append(None)
            self.below.append(0)

    def live(self, rows: list[tuple[float, Tensor, Tensor]]) -> list[tuple[float, Tensor, Tensor]]:
        window = self.config.text_window
        return [row for row in rows if not window or row[0] >= self.texts - window]

    def release(self, gone: list[bool]) -> None:
        gone[-1:] = [False] * len(gone[-1:])
        for name in ("blocks", "first", "below"):
            kept = [item for item, out in zip(getattr(self, name), gone, strict=True) if not out]
            setattr(self, name, kept)

    def release_dead(self) -> None:
        self.release([len(self.live(block)) < max(1, self.config.min_live_tokens) for block in self.blocks])

    def attend(self, query: Tensor) -> Tensor:
        groups = [self.live(rows) for rows in (self.sinks, *self.blocks, self.newest)]
        keys = torch.stack([row[1] for rows in groups for row in rows], dim=1)
        values = torch.stack([row[2] for rows in groups for row in rows], dim=1)
        output = torch.zeros(query.shape[1], SIZE)
        norms = [0.0] * len(self.blocks)
        for head in range(query.shape[1]):
            weights = (keys[head // SHARING] @ query[0, head, 0] * SCALING).softmax(0)
            added = weights[:, None] * values[head // SHARING]
            output[head] = added.sum(0)
            start = len(groups[0])
            for index, rows in enumerate(groups[1:-1]):
                norms[index] += float(added[start : start + len(rows)].sum(0).square().sum())
                start += len(rows)
        if self.config.norm_floor:
            for index, squared in enumerate(norms):
                first = self.first[index] = squared**0.5 if self.first[index] is None else self.first[index]
                self.below[index] = self.below[index] + 1 if squared**0.5 < self.config.norm_floor * first else 0
            self.release([below >= self.config.norm_steps for below in self.below])
        return output[None, None]


@pytest.mark.parametrize(
    "settings",
    [
        {"text_window": 12},
        {"text_window": 12, "min_live_tokens": 4},
        {"text_window": 3, "min_live_tokens": 8, "sink_tokens": 0},
        {"norm_floor": 0.92},
        {"norm_floor": 0.6, "norm_steps": 1},
        {"norm_floor": 0.9, "text_window": 20, "min_live_tokens": 3, "norm_steps": 2},
    ],
    ids=str,
)
def test_blocks_are_released_as_obvious_loops_do_it(settings: dict[str, float]) -> None:
    config = KVConfig(block_tokens=BLOCK, **settings)
    visual = torch.tensor([False] * 5 + [True] * 13 + [False] * 30)
    keys, values = draw(len(visual))
    layer, slow = make(config, keys, values, visual), SlowBlocks(config, keys, values, visual)
    released = 0
    for step in range(25):
        key, value = draw(1, seed=100 + step)
        promised, _ = layer.get_mask_sizes(1)
        written, _ = layer.update(key, value)
        assert written.shape[2] == promised
        slow.add(key[0, :, 0], value[0, :, 0])
        if config.text_window:
            slow.release_dead()
        query = query_of(200 + step)
        torch.testing.assert_close(attend(layer, query, SCALING), slow.attend(query), rtol=1e-4, atol=1e-5)
        assert layer.blocks == len(slow.blocks)
        report = layer.report(1)
        assert report.tokens_held == sum(len(slow.live(rows)) for rows in (slow.sinks, *slow.blocks, slow.newest))
        released = report.blocks_released
    assert released > 0
    assert report.visual_seen == 13
    assert report.tokens_seen == len(visual) + 25
