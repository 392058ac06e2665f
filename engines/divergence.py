"""Divergence of a compressed model along the full model's answer: both are given the same tokens, one after another.

Columns as in llama.cpp's table of KL divergence: mean, median, 99th percentile, maximum, same top token.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.agreement import divergences, summarise
from engines.along import Along
from engines.attention.wrap import Attend, attention_through
from engines.compare import Runner, Side, SideEvent
from engines.config import CacheConfig, CompressionConfig
from engines.divergence_report import Candidate, DivergenceReport, TokenDivergence, VisualAttention, not_in
from engines.kv.retention import attention_received
from engines.pruning.adaptive import settled
from engines.results import Finished, RunRequest, RunResult
from engines.structure import Structure
from engines.tokens.registry import TokenRegistry

TOP = 5
# Logits that are kept of each model fill no more than this.
_LOGIT_BYTES = 128 << 20


def most_tokens(vocabulary: int) -> int:
    """How many tokens of an answer are measured at most."""
    return max(1, _LOGIT_BYTES // (4 * vocabulary))


def as_it_ran(result: RunResult) -> CompressionConfig:
    """The settings of a run with the keep ratio that it used, where that followed the device."""
    return settled(result.config, result.prune_report.adaptation)


def measure(
    engine: Runner,
    request: RunRequest,
    config: CompressionConfig,
    *,
    answer: Sequence[int],
    most: int,
    text_of: Callable[[int], str],
) -> Iterator[SideEvent | DivergenceReport]:
    """Run the full model and then the compressed one, with the caches off; end with the report, unless cancelled.

    `answer` are the tokens along which to measure; without any, the full model answers by itself. At most `most` of
    them are taken. `text_of` is the text of a token.
    """
    length = min(len(answer) or request.sampling.max_new_tokens, most)
    request = replace(request, warm_up=False)
    ours = FullModel(answer[:length])
    full = yield from _run("full", engine, _bounded(request, ours, length), CompressionConfig.full())
    if full is None:
        return
    theirs = Along(full.tokens)
    untouched = replace(config, cache=CacheConfig(), vision=replace(config.vision, measure_fidelity=False))
    compressed = yield from _run("compressed", engine, _bounded(request, theirs, len(full.tokens)), untouched)
    if compressed is None:
        return
    asked = len(answer) or request.sampling.max_new_tokens
    tokens, kl = compare_tokens(full.tokens, ours.along.logits, theirs.logits, text_of)
    yield DivergenceReport(
        tokens=tokens,
        agreement=summarise(kl, torch.tensor([token.same_top for token in tokens])),
        attention=ours.looked(full.registry, compressed.registry),
        config=config,
        cut_short=asked > length and full.finish_reason != "stop",
    )


def _bounded(request: RunRequest, watch: Any, tokens: int) -> RunRequest:
    return replace(request, watch=watch, sampling=replace(request.sampling, max_new_tokens=tokens))


def _run(
    side: Side, engine: Runner, request: RunRequest, config: CompressionConfig
) -> Generator[SideEvent, None, RunResult | None]:
    """Hand on the events of a run; returns its result, None where it was cancelled."""
    result = None
    with closing(engine.run(request, config)) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Finished) and event.result.finish_reason != "cancelled":
                result = event.result
            yield SideEvent(side, event)
    return result


def compare_tokens(
    tokens: Sequence[int], full: Tensor, compressed: Tensor, text_of: Callable[[int], str]
) -> tuple[tuple[TokenDivergence, ...], Tensor]:
    """Each token from the logits (tokens, vocabulary) of both before it; and the divergences (tokens,)."""
    kl = divergences(full, compressed)
    found = []
    for index, token in enumerate(tokens):
        ours, theirs = (logits[index].double().softmax(dim=-1) for logits in (full, compressed))
        found.append(
            TokenDivergence(
                index=index,
                token=token,
                text=text_of(token),
                kl=float(kl[index]),
                same_top=int(full[index].argmax()) == int(compressed[index].argmax()),
                full_probability=float(ours[token]),
                compressed_probability=float(theirs[token]),
                full_top=_top(ours, text_of),
                compressed_top=_top(theirs, text_of),
            )
        )
    return tuple(found), kl


def _top(probabilities: Tensor, text_of: Callable[[int], str]) -> tuple[Candidate, ...]:
    best = probabilities.topk(min(TOP, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(Candidate(token, text_of(token), probability) for token, probability in pairs)


@dataclass
class _Step:
    """Attention of one query on the visual tokens, summed over layers; and in how many layers."""

    received: Tensor
    layers: int = 0


class FullModel:
    """A request's `watch` for the full model: its predictions, and where each step's query looks.

    Attention is computed a second time, of the one query that predicts, so that the run itself stays as it is.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.along = Along(tokens)
        self._places: Tensor | None = None
        self._steps: list[_Step] = []
        self._first = -1

    @contextmanager
    def applied(self, structure: Structure) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.along.applied(structure))
            stack.enter_context(self._watching(structure))
            yield

    def _watching(self, structure: Structure) -> AbstractContextManager[None]:
        if not structure.attention_layers:
            return nullcontext()
        self._first = structure.attention_layers[0] - 1
        return attention_through(structure, self._wrap)

    def begin(self, visual: Tensor) -> None:
        self._places = visual.nonzero().flatten()

    def narrow(self, keep: Tensor) -> None:
        """The full model drops nothing."""

    def looked(self, full: TokenRegistry | None, compressed: TokenRegistry | None) -> VisualAttention | None:
        """What was seen, with what the compressed run had dropped; None where there was nothing to look at."""
        if full is None or compressed is None or not self._steps or not len(full.cell_positions):
            return None
        on_visual = torch.stack([step.received / step.layers for step in self._steps]).double()
        totals = on_visual.sum(dim=-1, keepdim=True)
        shares = (on_visual / totals.clamp_min(torch.finfo(torch.float64).tiny)).float().numpy()
        pruned, evicted = not_in(full, compressed)
        return VisualAttention(shares.astype(np.float32), tuple(totals.flatten().tolist()), full, pruned, evicted)

    def _wrap(self, own: Attend, _masked: Attend) -> Attend:
        def through(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **named: Any) -> Any:
            if self._places is not None and len(self._places):
                scaling = named.get("scaling") or module.scaling
                received = attention_received(query[0, :, -1:], key[0], scaling)[self._places].cpu()
                if module.layer_idx == self._first:
                    self._steps.append(_Step(torch.zeros_like(received)))
                self._steps[-1].received += received
                self._steps[-1].layers += 1
            return own(module, query, key, value, mask, **named)

        return through
