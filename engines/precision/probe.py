"""Runs a request on the checkpoint as it stands, so that hooks can look at what goes through its layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engines.checkpoint import Checkpoint
from engines.decoding import Decoder, stop_tokens
from engines.media import load_all
from engines.prompt import build_prompt
from engines.results import RunRequest
from engines.sequence import build_sequence
from engines.vision.torch_tower import encode_items


def run_request(
    checkpoint: Checkpoint,
    request: RunRequest,
    *,
    tokens: int = 1,
    begin: Callable[[Tensor], None] = lambda visual: None,
) -> tuple[int, int]:
    """The tokens of the prompt and of the greedy answer, of which at most `tokens` are drawn.

    `begin` is told which tokens of the prompt are visual, (length,) bool, just before the language model runs it.
    """
    structure = checkpoint.structure
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
    images, videos = (encode_items(structure, items) if items else [] for items in (prompt.images, prompt.videos))
    sequence = build_sequence(structure, prompt, images, videos)
    begin(sequence.visual[0])
    decoder, stop = Decoder(structure), stop_tokens(checkpoint.model, checkpoint.tokenizer)
    token, drawn = int(decoder.prefill(sequence).argmax()), 1
    while drawn < tokens and token not in stop and not (request.cancel is not None and request.cancel.is_set()):
        token = int(decoder.step(token).argmax())
        drawn += 1
    return sequence.length, drawn
