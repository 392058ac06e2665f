"""The one place that names transformers' internals: where the parts of a Qwen-VL model are.

Parts are found by structure, not by class name, so that Qwen3-VL-MoE, Qwen3-VL and Qwen3.5-MoE go the same road:
a vision tower and a language model side by side in one core, mergers inside the tower, and wherever a block has a
router beside fused 3-D expert weights, a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engines.results import EngineError

PARTS = ("vision", "projector", "language", "experts")


@dataclass(frozen=True)
class MoeLayer:
    """A block's router and its fused experts. `path` is the block's name in the language model."""

    path: str
    block: nn.Module
    router: Any
    """Has `top_k` and returns (logits, scores, indices)."""
    experts: Any
    """Has `gate_up_proj` (experts, 2 x width, hidden) and `down_proj` (experts, hidden, width)."""


@dataclass(frozen=True)
class Slot:
    """A replaceable matrix product: `parent` holds `module` under `attribute`."""

    parent: nn.Module
    attribute: str
    module: nn.Module


class Structure:
    """The named parts of a loaded model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.core = _find_core(model)
        self.visual = self.core.visual
        self.language_model = self.core.language_model
        self.lm_head = model.get_output_embeddings()
        self.config = model.config
        self.text_config = self.config.get_text_config()
        self.merge_size = int(self.visual.spatial_merge_size)
        self.mergers: list[nn.Module] = [self.visual.merger, *getattr(self.visual, "deepstack_merger_list", [])]
        self.deepstack_layers = len(self.mergers) - 1
        self.moe_layers = list(_find_moe_layers(self.language_model))

    @property
    def own_top_k(self) -> int | None:
        """Routed experts per token that the checkpoint was trained with; None for a dense model."""
        return int(self.text_config.num_experts_per_tok) if self.moe_layers else None

    @property
    def experts(self) -> int | None:
        return int(self.moe_layers[0].experts.num_experts) if self.moe_layers else None

    def slots(self, part: str) -> list[Slot]:
        """The matrix products of one part. Routers, norms and embeddings are in none."""
        if part == "experts":
            return [Slot(layer.block, "experts", layer.experts) for layer in self.moe_layers]
        if part == "projector":
            return [slot for merger in self.mergers for slot in _products(merger)]
        if part == "vision":
            inside = {id(module) for merger in self.mergers for module in merger.modules()}
            return [slot for slot in _products(self.visual) if id(slot.module) not in inside]
        if part == "language":
            return [*_products(self.language_model), Slot(self.model, "lm_head", self.lm_head)]
        raise ValueError(f"{part!r} is no part; the parts are {', '.join(PARTS)}.")

    def tensors(self, part: str) -> Iterator[Tensor]:
        """Every parameter and buffer of a part as the model stands now, replaced modules included."""
        if part == "experts":
            for layer in self.moe_layers:
                yield from _tensors(layer.block._modules["experts"])
            return
        if part == "projector":
            for merger in self.mergers:
                yield from _tensors(merger)
            return
        if part == "vision":
            inside = {id(tensor) for merger in self.mergers for tensor in _tensors(merger)}
            yield from (tensor for tensor in _tensors(self.visual) if id(tensor) not in inside)
            return
        inside = {id(tensor) for tensor in self.tensors("experts")}
        yield from (tensor for tensor in _tensors(self.language_model) if id(tensor) not in inside)
        yield from _tensors(self.model.lm_head)


def _find_core(model: nn.Module) -> Any:
    for module in model.modules():
        children = dict(module.named_children())
        if "visual" in children and "language_model" in children:
            return module
    raise EngineError(
        f"{type(model).__name__} has no vision tower beside a language model; "
        "load a Qwen3-VL, Qwen3-VL-MoE or Qwen3.5-MoE checkpoint."
    )


def _find_moe_layers(language_model: nn.Module) -> Iterator[MoeLayer]:
    for path, block in language_model.named_modules():
        children = dict(block.named_children())
        experts = children.get("experts")
        routers = [child for child in children.values() if hasattr(child, "top_k")]
        fused = isinstance(getattr(experts, "gate_up_proj", None), Tensor) and experts.gate_up_proj.ndim == 3  # type: ignore[union-attr]
        if fused and routers:
            yield MoeLayer(path, block, routers[0], experts)


def _products(root: nn.Module) -> list[Slot]:
    slots = []
    for parent in root.modules():
        for attribute, child in parent.named_children():
            # A linear layer with very few outputs is a gate, and gates keep their precision.
            is_product = isinstance(child, nn.Linear) and child.out_features >= 8
            if is_product or isinstance(child, nn.Conv3d):
                slots.append(Slot(parent, attribute, child))
    return slots


def _tensors(module: nn.Module | None) -> Iterator[Tensor]:
    if module is not None:
        yield from module.parameters()
        yield from module.buffers()


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
