"""Pruning inside the language model: after which layer it is done, and when it can't be."""

from __future__ import annotations

from engines.config import PruningConfig
from engines.pruning import METHODS, create
from engines.results import EngineError
from engines.structure import Structure

_NO_LAYER = (
    "its language model has no layer of full attention that every deepstack feature has reached and another layer "
    "follows."
)


def why_not(method: str, structure: Structure) -> str:
    """Why a method cannot be used with this checkpoint; empty when it can."""
    return "" if METHODS[method]().asked_layer is None or structure.inner_layers else _NO_LAYER


def check(config: PruningConfig, structure: Structure) -> None:
    """Raise EngineError for settings that this checkpoint, or the method inside it, cannot do."""
    if not config.may_prune or (layer := create(config.method, config.options).asked_layer) is None:
        return
    if not structure.inner_layers:
        # A method that can also work before the language model is told which layer it may have.
        asked = f"pruning.options.layer={layer}" if METHODS[config.method]().asked_layer is None else ""
        raise EngineError(
            f"{asked or f'pruning.method={config.method}'} is not available with this checkpoint: {_NO_LAYER}"
        )
    if config.merge:
        raise EngineError(
            f"pruning.merge=true works before the language model, and pruning.method={config.method} drops tokens "
            "inside it; switch one of them off."
        )


def layer_of(config: PruningConfig, structure: Structure) -> tuple[int | None, tuple[str, ...]]:
    """After which layer the settings prune, None for before the first; and a sentence if it is not the one asked."""
    asked = create(config.method, config.options).asked_layer if config.active else None
    if asked is None:
        return None, ()
    offered = structure.inner_layers
    layer = next((number for number in offered if number >= asked), offered[-1])
    if layer == asked:
        return layer, ()
    reached = f", not before layer {structure.deepstack_layers}, where the last deepstack feature enters,"
    return layer, (
        f"Visual tokens were dropped after layer {layer} instead of {asked}: it must be a layer of full attention"
        f"{reached if structure.deepstack_layers else ''} and another layer must follow.",
    )
