"""Training is deterministic, and a resumed run takes the steps that an uninterrupted one takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.demo.train import Recipe, Trainer

RECIPE = Recipe(
    images=60,
    warmup_images=4,
    work_per_step=400,
    model={"width": 96, "text_layers": 2, "vision_layers": 1, "experts": 4, "expert_width": 16},
)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    straight = Trainer(RECIPE)
    losses = [straight.train_step()[0] for _ in range(6)]
    stopped = Trainer(RECIPE)
    for _ in range(3):
        stopped.train_step()
    stopped.save_state(tmp_path)
    resumed = Trainer(RECIPE)
    resumed.load_state(tmp_path)
    assert [resumed.train_step()[0] for _ in range(3)] == losses[3:]
    assert (resumed.step, resumed.images) == (straight.step, straight.images)
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_another_seed_is_another_run_and_is_not_resumed(tmp_path: Path) -> None:
    first = Trainer(RECIPE)
    first.save_state(tmp_path)
    other = Trainer(Recipe(**{**RECIPE.__dict__, "seed": 1}))
    assert first.train_step()[0] != other.train_step()[0]
    with pytest.raises(ValueError, match="seed"):
        other.load_state(tmp_path)


def test_the_loss_falls() -> None:
    trainer = Trainer(Recipe(**{**RECIPE.__dict__, "images": 2000, "learning_rate": 3e-3}))
    losses = [trainer.train_step()[0]["answers"] for _ in range(25)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
