"""Training is deterministic, and a resumed run takes the steps that an uninterrupted one takes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.demo.build import build_model, build_processor
from engines.demo.curriculum import choose, draw_lesson
from engines.demo.patches import use_linear_patches
from engines.demo.questions import ask
from engines.demo.scenes import make_scene
from engines.demo.train import Recipe, Trainer
from engines.demo.workers import average_gradients, place, run_workers, share_work

ROOT = Path(__file__).parents[3]

# Two images a step; the tower learns alone for the first three steps.
RECIPE = Recipe(
    steps=30,
    warmup_steps=2,
    work_per_step=400,
    tower_steps=3,
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


def test_going_on_from_the_exported_checkpoint_needs_no_state(tmp_path: Path) -> None:
    """Weights, heads, step and scenes seen are in the checkpoint's folder; the optimizer starts anew, gently."""
    trainer = Trainer(RECIPE)
    for _ in range(4):
        trainer.train_step()
    trainer.export(tmp_path)
    further = Trainer(RECIPE)
    further.load_checkpoint(tmp_path)
    assert (further.step, further.images, further.started) == (4, trainer.images, (0, 4))
    assert further.learning_rate() < trainer.learning_rate()
    for name, value in weights(trainer).items():
        assert torch.equal(value.bfloat16().float(), weights(further)[name]), name
    assert all(torch.equal(a, b) for a, b in zip(trainer.heads.parameters(), further.heads.parameters(), strict=True))
    further.train_step()


def test_the_schedules_of_two_lengths_agree_until_the_shorter_one_cools_down() -> None:
    def rates(steps: int) -> list[float]:
        trainer = Trainer(replace(RECIPE, steps=steps))
        found = []
        for trainer.step in range(30):
            found.append(trainer.learning_rate())
        return found

    short, long = rates(30), rates(60)
    assert short[:21] == long[:21]
    assert short[25] < long[25]
    assert short[0] < short[2]
    assert short[3] < short[6]  # the language model's own warm-up, when it joins the tower


def test_workers_share_a_step_and_agree_on_its_gradients(tmp_path: Path) -> None:
    options = {"seed": 0, "alone": False, "work": 800, "questions": 3}
    whole = draw_lesson(5, 40, **options)
    shares = [draw_lesson(5, 40, **options, worker=worker, workers=2) for worker in range(2)]
    assert {share.size for share in shares} == {whole.size}
    assert sorted(s.seed for share in shares for s in share.scenes) == [s.seed for s in whole.scenes]
    asked = {s.seed: q for share in shares for s, q in zip(share.scenes, share.asked, strict=True)}
    assert [asked[s.seed] for s in whole.scenes] == whole.asked
    run_workers(2, average_and_write, tmp_path)
    assert [torch.load(tmp_path / f"{worker}.pt").tolist() for worker in range(2)] == [[1.5, 3.0]] * 2


def average_and_write(folder: Path) -> None:
    """In a worker: average (1, 2) of worker 0 with (2, 4) of worker 1."""
    worker, _ = place()
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, 2.0]) * (worker + 1)
    average_gradients([parameter, torch.nn.Parameter(torch.zeros(3))])
    torch.save(parameter.grad, folder / f"{worker}.pt")


def test_workers_share_the_work_on_a_stack(tmp_path: Path) -> None:
    run_workers(2, double_and_write, tmp_path)
    assert [torch.load(tmp_path / f"{worker}.pt").tolist() for worker in range(2)] == [[[0], [2], [4]]] * 2


def double_and_write(folder: Path) -> None:
    """In a worker: twice 0, 1 and 2, of which it is given one or two."""
    given = []
    doubled = share_work(torch.arange(3)[:, None], lambda part: given.append(len(part)) or 2 * part)
    assert given in ([1], [2])
    torch.save(doubled, folder / f"{place()[0]}.pt")


def test_patches_are_embedded_as_by_the_convolution() -> None:
    model = build_model(build_processor().tokenizer, **RECIPE.model)
    patches = torch.randn(5, 3 * 2 * 16 * 16)
    expected = model.model.visual.patch_embed(patches)
    use_linear_patches(model)
    assert torch.allclose(model.model.visual.patch_embed(patches), expected, atol=1e-5)


def test_the_command_gives_the_same_checkpoint_twice(tmp_path: Path) -> None:
    """Shortened: two steps of the tower alone and two of everything, by two workers, from new processes."""
    digests = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "engines.demo.train", "--out", tmp_path / name, "--state", tmp_path / "state"]
        short = ["--steps", "4", "--tower-steps", "2", "--log-every", "2"]
        done = subprocess.run([*command, *short], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.count("step ") == 2
        digests.append(hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def test_the_loss_falls() -> None:
    trainer = Trainer(replace(RECIPE, steps=1000, tower_steps=0, learning_rate=3e-3))
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
