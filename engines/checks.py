"""Which settings a checkpoint and its device can do."""

from __future__ import annotations

import torch

from engines import precision
from engines.cache.stage import why_not as why_not_prefix
from engines.config import CompressionConfig
from engines.experts import create as create_skipper
from engines.experts.calibration import Calibration
from engines.kv.stage import check as check_kv
from engines.pruning import create
from engines.pruning.inside import check as check_inside
from engines.results import EngineError
from engines.structure import Structure
from engines.vision.reduced import check as check_reduced


def check(
    config: CompressionConfig, structure: Structure, calibration: Calibration | None, device: torch.device
) -> None:
    """Raise ValueError or EngineError, with one sentence, for settings that cannot be done."""
    create(config.pruning.method, config.pruning.options)
    check_inside(config.pruning, structure)
    check_reduced(config.vision, structure)
    if config.cache.prefix and (reason := why_not_prefix(structure)):
        raise EngineError(f"cache.prefix=true is not available with this checkpoint: {reason}")
    check_kv(config, structure)
    create_skipper(config.experts.method, config.experts.options, calibration)
    own = structure.own_top_k
    if config.experts.top_k is not None:
        if own is None:
            raise EngineError("experts.top_k has no meaning here: this checkpoint is dense and has no experts.")
        if config.experts.top_k > own:
            raise ValueError(
                f"experts.top_k is {config.experts.top_k}; this checkpoint uses {own} experts a token, "
                f"so it must be at least 1 and at most {own}."
            )
    if config.experts.skipping and own is None:
        raise EngineError("experts.method has no meaning here: this checkpoint is dense and has no experts.")
    for part, chosen in config.precision.parts.items():
        if reason := precision.why_not(chosen, device, structure.fixed):
            raise EngineError(f"precision.{part}={chosen} is not available: {reason}")
