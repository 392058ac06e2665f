"""The experts of one run: which pairs are skipped while it goes on, and the report of what was computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from engines.config import OFF, ExpertConfig
from engines.experts import create
from engines.experts.base import Prompt, Routing, Skipper, Tokens
from engines.experts.calibration import Calibration
from engines.experts.kernel import only_kept_pairs
from engines.experts.load import ExpertLoad
from engines.experts.top_k import lower_top_k
from engines.reports import ExpertReport, PairCounts
from engines.structure import MoeLayer, Structure


class ExpertStage:
    """Applies the settings of one run. Say with `begin` which tokens of a prompt are visual before its prefill."""

    def __init__(
        self,
        structure: Structure,
        config: ExpertConfig,
        method: Skipper | None = None,
        importances: tuple[float, ...] | None = None,
    ) -> None:
        """No method skips nothing. `importances` are those of the MoE layers, None where they were not measured."""
        self._structure = structure
        self._config = config
        self._method = method
        self._importances = importances
        self._next_visual: Tensor | None = None
        self._tokens: Tokens | None = None
        self._load = ExpertLoad(structure.moe_layers, lambda: self._now.visual)

    @classmethod
    def of(cls, structure: Structure, config: ExpertConfig, calibration: Calibration | None) -> Self:
        """With the method that the settings name, as it is calibrated for the checkpoint."""
        method = create(config.method, config.options, calibration) if config.skipping else None
        return cls(structure, config, method, calibration.importances if calibration is not None else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person who asked should know, a sentence each."""
        if self._method is None or not self._method.calibrated or self._importances is not None:
            return ()
        return (
            f"experts.method={self._method.name} is not calibrated for this checkpoint, so all layers weigh the same: "
            "run launch.py calibrate experts.",
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While open, the model routes and computes as the settings say."""
        layers, config = self._structure.moe_layers, self._config
        with ExitStack() as stack:
            watch = self._structure.language_model.register_forward_pre_hook(self._watch, with_kwargs=True)
            stack.callback(watch.remove)
            stack.enter_context(lower_top_k(layers, config.top_k, config.renormalise))
            if self._method is not None and layers:
                stack.enter_context(only_kept_pairs(self._structure.model))
                for index, layer in enumerate(layers):
                    handle = layer.router.register_forward_hook(self._make_hook(self._method, index, layer))
                    stack.callback(handle.remove)
            yield

    @contextmanager
    def counting(self) -> Iterator[None]:
        """While open, inside `applied`, the pairs are counted for the report."""
        with self._load.counting():
            yield

    def begin(self, visual: Tensor) -> None:
        """`visual` (length,) bool: which tokens of the prompt that is run next are visual."""
        self._next_visual = visual

    def narrow(self, keep: Tensor) -> None:
        """Inside a forward pass: only the rows where `keep` (tokens,) is true go on to the layers that follow."""
        # Those of a dense model are not watched.
        if (now := self._tokens) is not None:
            self._tokens = Tokens(now.embeddings[keep], now.visual[keep], now.prompt)

    @property
    def _now(self) -> Tokens:
        assert self._tokens is not None, "no forward pass is under way"
        return self._tokens

    def _watch(self, _module: Any, _inputs: Any, named: dict[str, Any]) -> None:
        embeddings = named["inputs_embeds"][0]
        if self._next_visual is not None:
            prompt = Prompt(embeddings, self._next_visual)
            self._tokens, self._next_visual = Tokens(embeddings, prompt.visual, prompt), None
        else:
            text = torch.zeros(embeddings.shape[0], dtype=torch.bool, device=embeddings.device)
            self._tokens = Tokens(embeddings, text, self._now.prompt)

    def _make_hook(self, method: Skipper, index: int, layer: MoeLayer) -> Any:
        layers = len(self._structure.moe_layers)
        importance = 1.0 if self._importances is None else self._importances[index]

        def hook(_module: Any, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits, weights, chosen = output
            routing = Routing(
                weights.float(), self._now, index, layers, self._structure.own_top_k or chosen.shape[1], importance
            )
            keep = method.keep(routing)
            remaining = reweigh(weights, keep, self._config.renormalise)
            return logits, remaining, chosen.masked_fill(~keep, layer.experts.num_experts)

        return hook

    def report(self) -> ExpertReport | None:
        """What was counted; None for a dense model."""
        own, experts = self._structure.own_top_k, self._structure.experts
        if own is None or experts is None:
            return None
        routed = self._config.top_k or own
        kinds = []
        for kind in (0, 1):
            counts = self._load.pairs(kind)
            # A lower top-k skips pairs too: those that the router no longer hands out.
            full = [(computed + skipped) // routed * own for computed, skipped in counts]
            computed = tuple(pair[0] for pair in counts)
            kinds.append(PairCounts(computed, tuple(all_ - one for all_, one in zip(full, computed, strict=True))))
        text, visual = kinds
        return ExpertReport(
            top_k=routed,
            own_top_k=own,
            experts=experts,
            pairs_computed=text.total_computed + visual.total_computed,
            pairs_full=text.total + visual.total,
            layers=self._load.layers(),
            method=OFF if self._method is None else self._method.name,
            calibrated=None if self._method is None or not self._method.calibrated else self._importances is not None,
            text=text,
            visual=visual,
        )


def reweigh(weights: Tensor, keep: Tensor, renormalise: bool) -> Tensor:
    """Weights (tokens, k) with 0 for the skipped pairs; renormalised, a token's others add up to what all did.

    The weights of a token that keeps all its pairs stay as they are, to the bit.
    """
    kept = weights.masked_fill(~keep, 0.0)
    if not renormalise:
        return kept
    before = weights.float().sum(dim=-1, keepdim=True)
    left = kept.float().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    scaled = (kept.float() * (before / left)).to(weights.dtype)
    return torch.where(keep.all(dim=-1, keepdim=True), weights, scaled)
