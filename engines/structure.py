"""The one place that names transformers' internals: where the parts of a Qwen-VL model are.

Parts are found by structure, not by class name, so that Qwen3-VL-MoE, Qwen3-VL and Qwen3.5-MoE go the same road:
a vision tower and a language model side by side in one core, mergers inside the tower, and wherever a block has a
router beside fused 3-D expert weights, a mixture of experts.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.config import PARTS
from engines.device.offload import offloaded, offloaded_tensors
from engines.results import EngineError


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
        self.offloaded = any(True for _ in offloaded(model))
        """Whether some weights are away from the device between the passes of their modules."""

    @property
    def own_top_k(self) -> int | None:
        """Routed experts per token that the checkpoint was trained with; None for a dense model."""
        return int(self.text_config.num_experts_per_tok) if self.moe_layers else None

    @property
    def experts(self) -> int | None:
        return int(self.moe_layers[0].experts.num_experts) if self.moe_layers else None

    @property
    def inner_layers(self) -> tuple[int, ...]:
        """Layers of the language model, counted from 1, after which `LayerCut` can take rows out.

        The last row's attention must be there to be read, which linear attention does not have; every deepstack
        feature must have been added; and a layer must follow.
        """
        last = len(self.language_model.layers)
        return tuple(number for number in self.attention_layers if max(1, self.deepstack_layers) <= number < last)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers of the language model, counted from 1, that have full attention."""
        return tuple(
            number
            for number, layer in enumerate(self.language_model.layers, start=1)
            if hasattr(getattr(layer, "self_attn", None), "q_norm")
        )

    @property
    def tower_layers(self) -> tuple[int, ...]:
        """Layers of the vision tower, counted from 1, after which `TowerCut` can take units out: all but the last."""
        blocks = getattr(self.visual, "blocks", [])
        can = all(hasattr(getattr(block, "attn", None), "qkv") for block in blocks)
        return tuple(range(1, len(blocks))) if can else ()

    @property
    def quantised(self) -> str:
        """How the checkpoint's own weights are quantised, such as fp8, awq or gptq; empty when they are not."""
        return quantisation_of(self.config)

    @property
    def fixed(self) -> str:
        """Why no weight can be converted to another precision, in a sentence; empty when they can."""
        if self.quantised:
            return f"This checkpoint is quantised already ({self.quantised}) and runs as it is."
        if self.offloaded:
            return "These weights are split over GPU and CPU memory, and only those that fit the GPU can be converted."
        return ""

    @property
    def tied_head(self) -> bool:
        """Whether the output head's weights are the table of input embeddings."""
        return self.lm_head.weight is self.core.get_input_embeddings().weight

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


class LayerCut:
    """Takes rows out of a prompt between two layers of the language model.

    After `layer`, counted from 1, `choose` is given the attention (length,) that each row received there from the
    last one, averaged over the heads, and the rows (length, hidden) as they left it, and says as bool (length,)
    which rows go on; None lets all go on. The layers up to `layer` compute and cache every row, the later ones only
    those.
    """

    def __init__(self, structure: Structure, layer: int, choose: Callable[[Tensor, Tensor], Tensor | None]) -> None:
        layers = structure.language_model.layers
        self._attention, self._later = layers[layer - 1].self_attn, layers[layer:]
        self._choose = choose
        self._query: Tensor | None = None
        self._rows: Tensor | None = None
        self._dropped = 0
        self._masked = False

    @contextmanager
    def prefill(self) -> Iterator[None]:
        """While open, the one forward pass of the prompt, from an empty cache, is cut."""
        handles = [
            self._attention.q_norm.register_forward_hook(self._keep_last_query),
            self._later[0].register_forward_pre_hook(self._cut_rows, with_kwargs=True),
            *(layer.register_forward_pre_hook(self._cut_named, with_kwargs=True) for layer in self._later),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def step(self) -> Iterator[None]:
        """While open, one new row at a time finds the shorter caches of the later layers."""
        # Without a mask, as in the fast kernels, each layer takes the length of its own cache.
        later = self._later if self._dropped and self._masked else []
        handles = [layer.register_forward_pre_hook(self._shorten_mask, with_kwargs=True) for layer in later]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keep_last_query(self, _module: Any, _inputs: Any, output: Tensor) -> None:
        self._query = output[:, -1:].transpose(1, 2)

    def _cut_rows(self, _layer: Any, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        keep = self._choose(self._received(named), inputs[0][0])
        if keep is None:
            return None
        self._rows = keep.nonzero().flatten()
        self._dropped = len(keep) - len(self._rows)
        hidden, *others = inputs
        return (hidden[:, self._rows], *others), named

    def _received(self, named: dict[str, Any]) -> Tensor:
        attention = self._attention
        assert self._query is not None
        # Each model file has its own rotary embedding: some turn only a part of each head.
        rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
        query, _ = rotate(self._query, self._query, *(part[:, -1:] for part in named["position_embeddings"]))
        keys = named["cache"].layers[attention.layer_idx].keys.float()
        # (1, key heads, query heads that share a key, head size), in the order in which the layer repeats its keys
        query = query.float().view(1, keys.shape[1], -1, keys.shape[-1])
        return (query @ keys.mT * attention.scaling).softmax(dim=-1).mean(dim=(0, 1, 2))

    def _cut_named(self, _layer: Any, inputs: Any, named: dict[str, Any]) -> Any:
        rows = self._rows
        mask = named.get("attention_mask")
        self._masked |= mask is not None
        if rows is None:
            return None
        cut = {"position_embeddings": tuple(part[:, rows] for part in named["position_embeddings"])}
        if (places := named.get("position_ids")) is not None:
            # Places in the cache have no gaps, unlike the positions that turn queries and keys.
            cut["position_ids"] = places[:, : len(rows)]
        if mask is not None:
            cut["attention_mask"] = mask[:, rows] if mask.ndim == 2 else mask[:, :, rows][..., rows]
        return inputs, named | cut

    def _shorten_mask(self, _layer: Any, inputs: Any, named: dict[str, Any]) -> Any:
        # A new row sees every row in the cache, so that only the number of columns matters.
        mask = named["attention_mask"]
        return (inputs, named | {"attention_mask": mask[..., self._dropped :]}) if mask is not None else None


class TowerCut:
    """Takes merge units out of the vision tower between two of its layers, and puts them back before every merger.

    After `layer`, counted from 1, `assign` is asked image by image, or frame group by frame group: it is given the
    keys (units, patches x head size), averaged over the heads, and the units (units, patches x hidden) as they
    entered and as they left the layer, and says (units,) which of them goes on for each; -1 for nobody. Units with
    the same one go on as their mean, at its place.

    A unit alone comes out as the later layers computed it. One of several has what it had itself, plus the change
    of their mean since then; one without anybody has what it had itself.
    """

    def __init__(self, structure: Structure, layer: int, assign: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        blocks = structure.visual.blocks
        self._block, self._later = blocks[layer - 1], blocks[layer:]
        self._mergers, self._assign = structure.mergers, assign
        self._patches = structure.merge_size**2
        self._keys: Tensor | None = None
        self._entered: Tensor | None = None
        self._groups: _Groups | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While open, one forward pass of the tower is cut."""
        handles = [
            self._block.attn.qkv.register_forward_hook(self._keep_keys),
            self._block.register_forward_pre_hook(self._keep_entered),
            self._later[0].register_forward_pre_hook(self._cut, with_kwargs=True),
            *(block.register_forward_pre_hook(self._cut_named, with_kwargs=True) for block in self._later),
            *(merger.register_forward_pre_hook(self._restore) for merger in self._mergers),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _units(self, rows: Tensor) -> Tensor:
        """(patches, size) -> (units, patches of one x size): the patches of a unit follow one another."""
        return rows.reshape(-1, self._patches * rows.shape[-1])

    def _keep_keys(self, _module: Any, _inputs: Any, output: Tensor) -> None:
        heads = self._block.attn.num_heads
        self._keys = self._units(output.unflatten(-1, (3, heads, -1))[:, 1].float().mean(dim=1))

    def _keep_entered(self, _block: Any, inputs: tuple[Tensor, ...]) -> None:
        self._entered = self._units(inputs[0])

    def _cut(self, _block: Any, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        hidden, *others = inputs
        assert self._keys is not None
        assert self._entered is not None
        own, owners, kept = self._units(hidden), [], [0]
        for start, end in itertools.pairwise((named["cu_seqlens"] // self._patches).tolist()):
            owner = self._assign(self._keys[start:end], self._entered[start:end], own[start:end])
            kept.append(int((owner == _places(owner)).sum()))
            owners.append(torch.where(owner < 0, owner, owner + start))
        self._keys = self._entered = None
        self._groups = _Groups.of(own, torch.cat(owners), kept)
        return (self._groups.mean.view(-1, hidden.shape[-1]), *others), named

    def _cut_named(self, _block: Any, inputs: Any, named: dict[str, Any]) -> Any:
        assert self._groups is not None
        rows = self._groups.goes_on.repeat_interleave(self._patches)
        sizes = torch.tensor(self._groups.kept) * self._patches
        cut = {
            "cu_seqlens": sizes.cumsum(0).to(named["cu_seqlens"]),
            "position_embeddings": tuple(part[rows] for part in named["position_embeddings"]),
        }
        if named.get("max_seqlen") is not None:
            cut["max_seqlen"] = int(sizes.max())
        return inputs, named | cut

    def _restore(self, _merger: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._groups is None:  # a deepstack feature from before the cut
            return None
        hidden, *others = inputs
        return (self._groups.restore(self._units(hidden)).view(-1, hidden.shape[-1]), *others)


@dataclass(frozen=True)
class _Groups:
    """The units of one forward pass of the tower, (units, patches x hidden), and which go on together."""

    own: Tensor
    """As they were when the tower was cut."""
    goes_on: Tensor
    """(units,) bool."""
    group: Tensor
    """(units,): which of those that go on stands for each; -1 for none."""
    mean: Tensor
    """(groups, patches x hidden): what goes on."""
    alone: Tensor
    """(groups,) bool: groups of a single unit."""
    kept: list[int]
    """0, then how many go on of each image or frame group."""

    @classmethod
    def of(cls, own: Tensor, owner: Tensor, kept: list[int]) -> Self:
        goes_on = owner == _places(owner)
        group = torch.where(owner < 0, owner, (goes_on.cumsum(0) - 1)[owner])
        # Bags of members in a fixed order: adding by index is not the same in every run on a GPU.
        ordered, members = group.sort(stable=True)
        members = members[ordered >= 0]
        sizes = torch.bincount(group[members], minlength=sum(kept))
        mean = F.embedding_bag(members, own.float(), sizes.cumsum(0) - sizes, mode="mean").to(own.dtype)
        return cls(own, goes_on, group, mean, sizes == 1, kept)

    def restore(self, now: Tensor) -> Tensor:
        """(groups, patches x hidden) as a later layer left them -> every unit."""
        group = self.group.clamp_min(0)
        moved = (self.own.float() + (now.float() - self.mean.float())[group]).to(now.dtype)
        grouped = torch.where(self.alone[group][:, None], now[group], moved)
        return torch.where((self.group < 0)[:, None], self.own, grouped)


def _places(of: Tensor) -> Tensor:
    return torch.arange(len(of), device=of.device)


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
        # The parameters then are stand-ins without values.
        yield from offloaded_tensors(module)


def quantisation_of(config: Any) -> str:
    """The method of a configuration whose weights are stored quantised: fp8, awq, gptq, compressed-tensors, ..."""
    described = getattr(config, "quantization_config", None) or {}
    method = described.get("quant_method") if isinstance(described, dict) else getattr(described, "quant_method", None)
    # transformers has its known methods as an enumeration of texts.
    return str(getattr(method, "value", method) or "") if described else ""


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
