"""Training is deterministic, and a resumed run takes the steps that an uninterrupted one takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.demo.questions import ask
from engines.demo.scenes import make_scene
from engines.demo.train import Recipe, Trainer, choose

# Two images a step; the tower learns alone for the first three steps.
RECIPE = Recipe(
    images=60,
    warmup_images=4,
    work_per_step=400,
    tower_share=0.1,
    model={"width": 96, "text_layers": 2, "vision_layers": 1, "experts": 4, "expert_width": 16},
)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("stop", [2, 4])
def test_resumed_equals_uninterrupted(tmp_path: Path, stop: int) -> None:
    straight = Trainer(RECIPE)
    losses = [straight.train_step()[0] for _ in range(6)]
    assert "answers" not in losses[0]
    assert "answers" in losses[-1]
    stopped = Trainer(RECIPE)
    for _ in range(stop):
        stopped.train_step()
    stopped.save_state(tmp_path)
    resumed = Trainer(RECIPE)
    resumed.load_state(tmp_path)
    assert [resumed.train_step()[0] for _ in range(6 - stop)] == losses[stop:]
    assert (resumed.step, resumed.images) == (straight.step, straight.images)
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_another_seed_is_another_run_and_is_not_resumed(tmp_path: Path) -> None:
    first, other = Trainer(RECIPE), Trainer(replace(RECIPE, seed=1))
    first.save_state(tmp_path)
    assert first.train_step()[0] != other.train_step()[0]
    with pytest.raises(ValueError, match="seed"):
        other.load_state(tmp_path)


def test_the_loss_falls() -> None:
    trainer = Trainer(replace(RECIPE, images=2000, tower_share=0.0, learning_rate=3e-3))
    losses = [trainer.train_step()[0]["answers"] for _ in range(25)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_scene_is_asked_for_its_list_and_its_sign_and_little_twice() -> None:
    scenes = (make_scene("train", seed, "small") for seed in range(100))
    scene = next(scene for scene in scenes if scene.sign and len(scene.things) == 3)
    chosen = choose(ask(scene), 6, np.random.default_rng(0))
    categories = [question.category for question in chosen]
    assert len(chosen) == 6
    assert {"list", "reading"} <= set(categories)
    assert max(categories.count(name) for name in categories) <= 3
