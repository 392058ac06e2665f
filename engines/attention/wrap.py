"""The way into the language model's attention: a function of our own in transformers' registry while a run needs it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engines.structure import Structure

Attend = Callable[..., Any]
"""An attention function as transformers calls it: (module, query, key, value, mask, **named) -> (output, weights)."""

# Engines may run side by side, and the registry is one for all.
_NUMBERS = itertools.count()


@contextmanager
def attention_through(structure: Structure, wrap: Callable[[Attend, Attend], Attend]) -> Iterator[None]:
    """While open, every layer of full attention in the language model computes it by `wrap(own, masked)`.

    `own` is the function that the model uses now, `masked` one that takes a mask (1, heads, queries, keys) of bool.
    The wrapping function gets the mask that `own` would get. The vision tower keeps its own.
    """
    model = structure.language_model
    before = model.config._attn_implementation
    layer = model.layers[structure.attention_layers[0] - 1].self_attn
    # The eager function is in no registry: each model file has its own.
    eager = sys.modules[type(layer).__module__].eager_attention_forward
    own = ALL_ATTENTION_FUNCTIONS.get_interface(before, eager)
    name = f"wrapped_{next(_NUMBERS)}"
    ALL_ATTENTION_FUNCTIONS[name] = wrap(own, ALL_ATTENTION_FUNCTIONS["sdpa"])
    # Without an entry here the model makes no mask at all, and the eager function would not be causal.
    if before in ALL_MASK_ATTENTION_FUNCTIONS:
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[before])
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        model.set_attn_implementation(before)
        del ALL_ATTENTION_FUNCTIONS[name]
        # Only the shared mapping is asked for masks, and `register` has no opposite.
        ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(name, None)
