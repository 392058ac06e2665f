"""What each stage of a run computes and moves, counted from the model's own tensors and configuration.

A multiply-add is two FLOPs. Attention is counted as a whole square, masked or not, as PyTorch's counter does; norms,
softmax and rotary embeddings are not counted, as there. Weights are read once a stage, of the experts only as many as
so many tokens choose if they choose evenly; each product reads its input and writes its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from engines.device.offload import offloaded_tensors
from engines.device.report import Stage
from engines.structure import Structure


@dataclass(frozen=True)
class Load:
    """One image, and text around it. Decoding adds one token after them."""

    visual_tokens: int
    text_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return self.visual_tokens + self.text_tokens


@dataclass
class _Count:
    """Multiply-adds, and values of weights, activations and the KV cache."""

    products: float = 0.0
    weights: float = 0.0
    activations: float = 0.0
    cache: float = 0.0

    def product(self, rows: float, inner: int, outer: int, *, weights: float | None = None) -> None:
        """`weights` are the values that are read; by default one whole matrix."""
        self.products += rows * inner * outer
        self.weights += inner * outer if weights is None else weights
        self.activations += rows * (inner + outer)

    def attention(self, rows: int, keys: int, width: int) -> None:
        """Queries by keys, and weights by values; `width` is that of all heads together."""
        self.products += 2 * rows * keys * width
        self.activations += 2 * rows * width

    def stage(self, name: str, itemsize: int, transfer_bytes: float = 0.0) -> Stage:
        return Stage(
            name,
            2 * self.products,
            self.weights * itemsize,
            self.activations * itemsize,
            self.cache * itemsize,
            transfer_bytes,
        )


def stages(structure: Structure, load: Load, itemsize: int) -> tuple[Stage, ...]:
    """Vision encode, prefill and one step of decoding. `itemsize` is the bytes of a value."""
    transfer = sum(tensor.nbytes for tensor in offloaded_tensors(structure.language_model))
    return (
        _vision(structure, load).stage("vision encode", itemsize),
        _language(structure, load.prompt_tokens, 0).stage("prefill", itemsize, transfer),
        _language(structure, 1, load.prompt_tokens).stage("decode, a token", itemsize, transfer),
    )


def _vision(structure: Structure, load: Load) -> _Count:
    found, patches = _Count(), load.visual_tokens * structure.merge_size**2
    inside = {id(module) for merger in structure.mergers for module in merger.modules()}
    for module in structure.visual.modules():
        if isinstance(module, nn.Conv3d):
            found.product(patches, module.weight[0].numel(), module.out_channels)
        elif isinstance(module, nn.Linear):
            rows = load.visual_tokens if id(module) in inside else patches
            found.product(rows, module.in_features, module.out_features)
    for block in structure.visual.blocks:
        found.attention(patches, patches, block.attn.proj.in_features)
    return found


def _language(structure: Structure, rows: int, before: int) -> _Count:
    """A pass of so many new rows after so many in the cache; the output head runs for the last one."""
    found, keys = _Count(), before + rows
    inside = {id(module) for layer in structure.moe_layers for module in layer.experts.modules()}
    for module in _products(structure.language_model, inside):
        found.product(rows, module.in_features, module.out_features)
    found.product(1, structure.lm_head.in_features, structure.lm_head.out_features)
    for layer in structure.moe_layers:
        found.product(rows, layer.router.weight.shape[1], layer.router.weight.shape[0])
        _experts(found, layer.experts, rows, structure.own_top_k or 0)
    config = structure.text_config
    for number, layer in enumerate(structure.language_model.layers, start=1):
        if number in structure.attention_layers:
            found.attention(rows, keys, config.num_attention_heads * config.head_dim)
            found.cache += 2 * (before + 2 * rows) * config.num_key_value_heads * config.head_dim
        else:
            _linear_attention(found, getattr(layer, "linear_attn", None), rows)
    return found


def _products(root: nn.Module, inside: set[int]) -> Iterator[nn.Linear]:
    return (module for module in root.modules() if isinstance(module, nn.Linear) and id(module) not in inside)


def _experts(found: _Count, experts: Any, rows: int, top_k: int) -> None:
    count = int(experts.num_experts)
    chosen = count * (1 - (1 - top_k / count) ** rows)
    for weights in (experts.gate_up_proj, experts.down_proj):
        _, outer, inner = weights.shape
        found.product(rows * top_k, inner, outer, weights=chosen * inner * outer)


def _linear_attention(found: _Count, layer: Any, rows: int) -> None:
    """Gated DeltaNet in its recurrent form: what is read of a head's state, what is written, what comes out."""
    if layer is None:
        return
    state = layer.num_v_heads * layer.head_k_dim * layer.head_v_dim
    found.products += rows * (3 * state + layer.conv1d.weight.numel())
    found.weights += layer.conv1d.weight.numel()
    found.cache += 2 * state
