"""The language model, step by step: prefill, one token at a time, and text out of tokens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from engines.config import SamplingConfig
from engines.sequence import Sequence
from engines.structure import LayerCut, Structure


class Decoder:
    """One generation: holds the KV cache and the position of the next token.

    After pruning, positions and cache length differ: a new token's M-RoPE position follows the unpruned prompt,
    while its place in the cache follows the tokens that were kept.
    """

    def __init__(self, structure: Structure, cut: LayerCut | None = None) -> None:
        """`cut` drops rows of the prompt inside the language model, whose caches then differ in length too."""
        self._structure = structure
        self._cut = cut
        self.cache = DynamicCache(config=structure.text_config)
        self._next_position = 0
        self._length = 0

    def resume(self, states: Tensor) -> None:
        """Begin with rows that were prefilled before: (layers, 2, heads, rows, head size), keys and then values."""
        for index, (keys, values) in enumerate(states):
            self.cache.update(keys[None], values[None], index)
        self._length = states.shape[3]

    def keys_and_values(self) -> list[tuple[Tensor, Tensor]]:
        """Of each layer, (1, heads, rows, head size), as long as the cache is a plain one."""
        return [(layer.keys, layer.values) for layer in self.cache.layers]

    def prefill(self, sequence: Sequence) -> Tensor:
        """Run the prompt, or after `resume` the rest of it; returns its last position's logits, (1, vocabulary)."""
        self._next_position = sequence.next_position
        visual: dict[str, Any] = {}
        if sequence.deepstack and sequence.visual_tokens:
            visual = {"visual_pos_masks": sequence.visual, "deepstack_visual_embeds": list(sequence.deepstack)}
        with self._cut.prefill() if self._cut else nullcontext():
            return self._forward(sequence.embeddings, sequence.positions, visual)

    def step(self, token: int) -> Tensor:
        """Add one token; returns the logits that follow it, (1, vocabulary)."""
        device = self._structure.core.get_input_embeddings().weight.device
        embeddings = self._structure.core.get_input_embeddings()(torch.tensor([[token]], device=device))
        positions = torch.full((3, 1, 1), self._next_position, device=device)
        self._next_position += 1
        with self._cut.step() if self._cut else nullcontext():
            return self._forward(embeddings, positions, {})

    def _forward(self, embeddings: Tensor, positions: Tensor, visual: dict[str, Any]) -> Tensor:
        # The first row is the place in the cache, which has no gaps; the other three are M-RoPE.
        places = torch.arange(self._length, self._length + embeddings.shape[1], device=embeddings.device)
        output = self._structure.language_model(
            inputs_embeds=embeddings,
            position_ids=torch.cat([places.view(1, 1, -1), positions]),
            cache=self.cache,
            use_cache=True,
            **visual,
        )
        self._length += embeddings.shape[1]
        return self._structure.model.lm_head(output.last_hidden_state[:, -1:])[:, -1]


class Sampler:
    """Draws the next token: greedy at temperature 0, otherwise by temperature and top-p, seeded."""

    def __init__(self, config: SamplingConfig) -> None:
        self._greedy = config.temperature == 0.0
        self._generator = torch.Generator().manual_seed(config.seed)
        self._warpers: list[Any] = []
        if not self._greedy:
            self._warpers.append(TemperatureLogitsWarper(float(config.temperature)))
            if config.top_p < 1.0:
                self._warpers.append(TopPLogitsWarper(float(config.top_p)))

    def draw(self, logits: Tensor) -> int:
        logits = logits.float()
        if self._greedy:
            return int(logits.argmax(dim=-1))
        # Drawn on the CPU, so that a seed gives the same draws on every device.
        logits = logits.cpu()
        for warper in self._warpers:
            logits = warper(None, logits)
        return int(torch.multinomial(logits.softmax(dim=-1), 1, generator=self._generator))


class Detokeniser:
    """Text of a growing list of tokens. A character that spans tokens comes out whole, with its last token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._emitted = ""

    def add(self, token: int) -> str:
        """The text that this token completes, often empty."""
        self._tokens.append(token)
        text = self._stream.step(self._tokenizer.backend_tokenizer, token) or ""
        self._emitted += text
        return text

    def finish(self) -> str:
        """What is left when no more tokens come: an unfinished character shows as the replacement sign."""
        whole = self.text()
        return whole[len(self._emitted) :] if whole.startswith(self._emitted) else ""

    def text(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))


def stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end an answer, as the checkpoint's generation settings name them."""
    stop = model.generation_config.eos_token_id
    if stop is None:
        stop = tokenizer.eos_token_id
    return set(stop) if isinstance(stop, list) else {stop}
