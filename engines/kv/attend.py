"""Attention of one new token over a layer in blocks, on the codes themselves.

Writing out all keys and values at every step would cost more than it saves. Instead the scales go to the other side
of each product: query x (code - zero) x scale = (query x scale) x code - (query x scale) x zero, and for the values
(weight x scale) x code - (weight x scale) x zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engines.kv.codes import Codes
from engines.kv.layer import BlockLayer


def attend(layer: BlockLayer, query: Tensor, scaling: float) -> Tensor:
    """`query` (1, heads, 1, size) over every live row -> (1, 1, heads, size), as transformers' functions return it."""
    if query.shape[2] != 1:
        raise ValueError(f"{query.shape[2]} tokens were given at once; a cache in blocks takes one after the other.")
    key_heads, own = layer.keys.shape[1], layer.keys.shape[2]
    grouped = query.float().view(key_heads, -1, query.shape[-1]) * scaling
    live = layer.live()
    scores = grouped @ layer.keys[0].float().mT
    if live is not None:
        scores = scores.masked_fill(~live[0], -torch.inf)
    coded = layer.coded
    if coded is not None:
        of_blocks = score_blocks(grouped, coded[0], query.dtype)
        if live is not None:
            of_blocks = of_blocks.masked_fill(~live[1].flatten(), -torch.inf)
        scores = torch.cat((scores, of_blocks), dim=-1)
    weights = scores.softmax(dim=-1)
    output = weights[..., :own] @ layer.values[0].float()
    if coded is not None:
        if layer.config.norm_floor:
            added = sum_by_block(weights[..., own:], coded[1], query.dtype)
            output = output + added.sum(dim=1)
            layer.note_norms(added.square().sum(dim=(0, 2, 3)).sqrt())
        else:
            output = output + sum_blocks(weights[..., own:], coded[1], query.dtype)
    return output.to(query.dtype).view(1, 1, query.shape[1], -1)


def score_blocks(query: Tensor, keys: Codes, dtype: torch.dtype) -> Tensor:
    """(heads, rows, blocks x tokens) float32 from `query` (heads, rows, size), float32 and scaled."""
    query = query[:, None]
    if keys.scale is not None:
        query = query * keys.scale.float()
    query = query.to(_product_dtype(dtype))
    runs = keys.signed(query.dtype)
    first, *others = [(part @ run.mT).float() for part, run in zip(query.chunk(len(runs), dim=-1), runs, strict=True)]
    scores = sum(others, first)
    if keys.zero is not None:
        scores = scores - query.float() @ keys.zero.float().mT
    return scores.transpose(1, 2).flatten(2)


def sum_blocks(weights: Tensor, values: Codes, dtype: torch.dtype) -> Tensor:
    """(heads, rows, size) float32: the weighted sum of all values, from `weights` (heads, rows, blocks x tokens)."""
    scaled, correction = _scale(weights, values, dtype)
    runs = values.signed(scaled.dtype)
    total = torch.cat([scaled @ run.flatten(1, 2) for run in runs], dim=-1).float()
    return total if correction is None else total - correction.sum(dim=-1, keepdim=True)


def sum_by_block(weights: Tensor, values: Codes, dtype: torch.dtype) -> Tensor:
    """As `sum_blocks`, one sum a block: (heads, blocks, rows, size)."""
    by_block = (values.blocks, values.tokens)
    scaled, correction = _scale(weights, values, dtype)
    scaled = scaled.unflatten(-1, by_block).transpose(1, 2)
    total = torch.cat([scaled @ run for run in values.signed(scaled.dtype)], dim=-1).float()
    if correction is None:
        return total
    return total - correction.unflatten(-1, by_block).transpose(1, 2).sum(dim=-1, keepdim=True)


def _scale(weights: Tensor, values: Codes, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weights times the scales of their tokens; and those times the zeros, which belong to every channel alike."""
    if values.scale is None or values.zero is None:
        return weights.to(_product_dtype(dtype)), None
    scaled = (weights * values.scale.float().flatten(1)[:, None]).to(_product_dtype(dtype))
    return scaled, scaled.float() * values.zero.float().flatten(1)[:, None]


def _product_dtype(dtype: torch.dtype) -> torch.dtype:
    """bfloat16 holds every code exactly; in float16 small weights would vanish."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
