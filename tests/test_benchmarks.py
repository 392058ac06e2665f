"""What the benchmarks compute beside their timings."""

from __future__ import annotations

import torch

from benchmarks.demo_claims import GROUP, round_weights
from engines.engine import Engine


def test_rounding_leaves_so_many_levels_a_group_and_spares_routers_norms_and_embeddings(moe: Engine) -> None:
    model = moe.checkpoint.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        round_weights(model, 3)
        for name, value in model.named_parameters():
            spared = value.ndim < 2 or any(part in name for part in ("norm", "embed", "gate.weight", "lm_head"))
            assert torch.equal(value, before[name]) == spared, name
            if not spared and value.ndim <= 3 and value.shape[-1] % GROUP == 0:
                groups = value.reshape(-1, GROUP)
                assert max(len(group.unique()) for group in groups[:50]) <= 7
                step = groups.abs().amax(-1, keepdim=True) / 3
                assert ((groups - before[name].reshape(-1, GROUP)).abs() <= step / 2 + 1e-6).all()
    finally:
        model.load_state_dict(before)
