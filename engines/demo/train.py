"""Train the demo checkpoint from scratch on generated scenes.

    python -m engines.demo.train --out assets/demo                       one command, start to end
    python -m engines.demo.train --out assets/demo --minutes 60          one sitting of it
    python -m engines.demo.train --out assets/demo --resume              the next sitting
    python -m engines.demo.train --out assets/demo --start-from assets/demo --steps 12000
                                                                         further, from the weights alone

Everything is a function of the seed and the number of steps taken: a run that is stopped and resumed takes the
same steps as one that is not. `--steps` sets the length of the schedule, `--minutes` only ends a sitting early.
The schedules of two lengths are the same until the shorter one begins to lower its learning rate.

Two workers of one thread each took about two thirds of the time of one with two threads: the layers are so small
that threads mostly wait for each other. With glibc, MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 helps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from engines.demo import build, losses
from engines.demo.batches import NO_LABEL, Batch, Packer
from engines.demo.curriculum import CURRICULUM, TOWER_STEPS, Lesson, draw_lesson, phase_of
from engines.demo.experts import use_sorted_experts
from engines.demo.optim import Optimizers
from engines.demo.patches import use_linear_patches
from engines.demo.workers import any_worker, average_gradients, place, run_workers

# Beside the checkpoint: how it came about, and the auxiliary heads, which a further sitting needs.
HISTORY, HEADS = "training.json", "training_heads.safetensors"
DEFAULT_STATE = Path.home() / ".cache" / "qwen-vl-moe-workbench" / "demo-training"


@dataclass(frozen=True)
class Recipe:
    """All that decides the outcome."""

    steps: int = 10_600
    seed: int = 0
    workers: int = 1
    learning_rate: float = 1.2e-3
    warmup_steps: int = 150
    cooldown: float = 0.3  # share of the schedule, at its end, over which the rate falls to zero
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    tower_steps: int = TOWER_STEPS  # in which the vision tower learns alone at first
    work_per_step: int = 3_000  # about this many tokens (text and visual, weighted by cost) a step
    questions: int = 8  # a scene
    quadrant_weight: float = 1.0
    word_weight: float = 0.5
    place_weight: float = 1.0
    balance_weight: float = 0.02
    pointing_weight: float = 0.25
    moment_weight: float = 0.3
    model: dict[str, int] = field(default_factory=dict)  # overrides of build.demo_config, for tests


@dataclass
class Trainer:
    """Model, heads, optimizer and the two counters that, with the recipe, determine everything else."""

    recipe: Recipe
    step: int = 0
    images: int = 0
    started: tuple[int, ...] = (0,)
    """Steps at which the optimizer was new: 0, and wherever training went on from an exported checkpoint."""
    notes: tuple[str, ...] = ()
    """What was changed underway, if the recipe is not the whole truth."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.recipe.seed)
        self.processor = build.build_processor()
        tokenizer = self.processor.tokenizer
        self.model = build.build_model(tokenizer, self.recipe.seed, **self.recipe.model)
        use_sorted_experts(self.model)
        use_linear_patches(self.model)
        self.heads = losses.VisualHeads(self.model.config.text_config.hidden_size, tokenizer)
        self.packer = Packer(self.processor, self.model)
        self.optimizer = Optimizers(self.model, self.heads, self.recipe.learning_rate, self.recipe.weight_decay)

    @property
    def tower_alone(self) -> bool:
        phase = phase_of(self.step)
        # The first phase is as long as the recipe says.
        return self.step < self.recipe.tower_steps or (phase.tower_alone and phase is not CURRICULUM[0])

    def learning_rate(self) -> float:
        """Warm-up, the phase's rate, at last linear to zero, by steps. The language model's start is warmed up too."""
        begun = self.started[-1] if self.tower_alone else max(self.started[-1], self.recipe.tower_steps)
        since = self.step - begun
        warm = min(1.0, (since + 1) / max(1, self.recipe.warmup_steps))
        left = (1 - self.step / self.recipe.steps) / self.recipe.cooldown
        return self.recipe.learning_rate * phase_of(self.step).rate * warm * min(1.0, max(left, 0.02))

    def draw_lesson(self) -> Lesson:
        """This worker's share of the current step's scenes, with questions."""
        recipe = self.recipe
        worker, workers = place()
        return draw_lesson(
            self.step,
            self.images,
            seed=recipe.seed,
            alone=self.tower_alone,
            work=recipe.work_per_step,
            questions=recipe.questions,
            worker=worker,
            workers=workers,
        )

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float], list[bool]]:
        """Total loss, its parts, and which questions were answered right."""
        recipe, config = self.recipe, self.model.config.text_config
        parts: dict[str, torch.Tensor] = {}
        right: list[bool] = []
        if batch.questions:
            with self._half_way_up() as states:
                output = self.model.model(**batch.inputs, output_router_logits=True, use_cache=False)
            media = output.image_outputs or output.video_outputs
            places = batch.targets != NO_LABEL
            logits = self.model.lm_head(output.last_hidden_state[places])
            parts["answers"], hits = losses.answer_loss(
                logits, batch.targets[places], batch.question[places], len(batch.questions)
            )
            parts["balance"] = recipe.balance_weight * losses.balance_loss(
                output.router_logits, config.num_experts, config.num_experts_per_tok
            )
            right = hits.tolist()
        elif "pixel_values" in batch.inputs:
            media = self.model.get_image_features(batch.inputs["pixel_values"], batch.inputs["image_grid_thw"])
        else:
            clips = batch.inputs["pixel_values_videos"], batch.inputs["video_grid_thw"]
            media = self.model.get_video_features(*clips)
        tokens = torch.cat(list(media.pooler_output))
        embedding = self.model.get_input_embeddings().weight
        parts["quadrants"] = recipe.quadrant_weight * self.heads.quadrant_loss(tokens, batch.quadrants)
        parts["words"] = recipe.word_weight * self.heads.word_loss(tokens, batch.quadrants, embedding)
        pointing = self.heads.pointing_loss(tokens, batch.quadrants, batch.ninths, embedding)
        parts["pointing"] = recipe.pointing_weight * pointing
        if batch.questions and "pixel_values_videos" in batch.inputs:
            shown = states[0][batch.inputs["input_ids"] == self.model.config.video_token_id]
            moments = self.heads.moment_loss(shown, batch.quadrants, batch.seconds, embedding)
            parts["moments"] = recipe.moment_weight * moments
        parts["places"] = recipe.place_weight * self.heads.place_loss(tokens, batch.places)
        total = torch.stack(list(parts.values())).sum()
        seen = self.heads.share_seen(tokens, batch.quadrants)
        return total, {name: float(part.detach()) for name, part in parts.items()} | seen, right

    @contextmanager
    def _half_way_up(self) -> Iterator[list[torch.Tensor]]:
        """Collects the states (B, L, width) that the middle layer of the language model hands on."""
        layers = self.model.model.language_model.layers
        states: list[torch.Tensor] = []
        hook = layers[len(layers) // 2].register_forward_hook(lambda _, __, output: states.append(output))
        try:
            yield states
        finally:
            hook.remove()

    def train_step(self) -> tuple[dict[str, float], list[tuple[str, bool]]]:
        """One optimizer step.

        Returns the weighted parts of the loss with the shares of patches that the heads name right, and
        (level/category, right) of every question. With several workers, of this one's share.
        """
        lesson = self.draw_lesson()
        batch = self.packer.pack(lesson.scenes, lesson.asked)
        self.optimizer.set_learning_rate(self.learning_rate())
        self.optimizer.zero_grad()
        total, parts, right = self.loss(batch)
        total.backward()
        average_gradients(self.optimizer.parameters)
        torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.step += 1
        self.images += lesson.size
        keys = [f"{lesson.level}/{question.category}" for question in batch.questions]
        return parts, list(zip(keys, right, strict=True))

    def save_state(self, folder: Path) -> None:
        """Write all that a resumed run needs, so that a crash while writing leaves the older state whole."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "images": self.images,
            "started": self.started,
            "notes": self.notes,
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, folder / "state.tmp")
        (folder / "state.tmp").replace(folder / "state.pt")

    def load_state(self, folder: Path) -> None:
        """Continue from a saved state. The recipe given now holds; its seed and sizes must be the saved
        ones.
        """
        state = torch.load(folder / "state.pt", weights_only=True)
        self._check_recipe(state["recipe"], folder)
        self.step, self.images = state["step"], state["images"]
        self.started, self.notes = tuple(state["started"]), tuple(state.get("notes", ()))
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])

    def export(self, folder: Path) -> None:
        """Write the checkpoint as it is now, and what it takes to go on from it on another machine."""
        build.save_checkpoint(self.model, self.processor, folder)
        save_file(self.heads.state_dict(), folder / HEADS)
        history = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "images": self.images,
            "started": self.started,
            "notes": self.notes,
        }
        (folder / HISTORY).write_text(json.dumps(history, indent=2) + "\n", encoding="utf-8")

    def load_checkpoint(self, folder: Path) -> None:
        """Go on from an exported checkpoint, with a new optimizer. Seed and sizes must be its own."""
        history = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
        self._check_recipe(history["recipe"], folder)
        weights = type(self.model).from_pretrained(folder, dtype=torch.float32).state_dict()
        self.model.load_state_dict(weights)
        unknown = self.heads.load_state_dict(load_file(folder / HEADS), strict=False).unexpected_keys
        if unknown:  # heads that came later than the checkpoint start anew
            raise ValueError(f"{folder / HEADS} holds heads that this trainer does not know: {', '.join(unknown)}")
        self.step, self.images = history["step"], history["images"]
        self.started = (*history["started"], self.step)
        self.notes = tuple(history["notes"])

    def _check_recipe(self, saved: dict[str, Any], folder: Path) -> None:
        for key in ("seed", "model", "workers"):
            if saved[key] != getattr(self.recipe, key):
                raise ValueError(f"the state in {folder} has {key} {saved[key]!r}, not {getattr(self.recipe, key)!r}")


def sitting(trainer: Trainer, out: Path, state: Path, minutes: float | None, log_every: int, save_every: int) -> None:
    """Train until the schedule ends or the minutes are over, with a line of progress now and then."""
    first = place()[0] == 0
    began, last_log, images_at_log = time.monotonic(), time.monotonic(), trainer.images
    sums: dict[str, list[float]] = defaultdict(list)
    tally: dict[str, list[bool]] = defaultdict(list)
    while trainer.step < trainer.recipe.steps:
        parts, answered = trainer.train_step()
        for name, value in parts.items():
            sums[name].append(value)
        for key, right in answered:
            tally[key].append(right)
        if trainer.step % log_every == 0 and first:
            now = time.monotonic()
            rate = (trainer.images - images_at_log) / (now - last_log)
            mean = " ".join(f"{name} {np.mean(values):.3f}" for name, values in sums.items())
            rights = " ".join(f"{key} {np.mean(hits):.2f}" for key, hits in sorted(tally.items()))
            print(
                f"step {trainer.step} images {trainer.images} {rate:.1f}/s lr {trainer.learning_rate():.2e} "
                f"{mean} | {rights}",
                flush=True,
            )
            last_log, images_at_log = now, trainer.images
            sums.clear()
            tally.clear()
        if trainer.step % save_every == 0 and first:
            trainer.save_state(state)
            trainer.export(out)
        if any_worker(minutes is not None and time.monotonic() - began > 60 * minutes):
            break
    if first:
        trainer.save_state(state)
        trainer.export(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the checkpoint, rewritten as training goes on"
    )
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="folder of the resumable state")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="length of the schedule")
    parser.add_argument(
        "--tower-steps",
        type=int,
        default=Recipe.tower_steps,
        help="steps in which the tower learns alone at first",
    )
    parser.add_argument("--minutes", type=float, help="end this sitting after so many minutes")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument(
        "--learning-rate", type=float, default=Recipe.learning_rate, help="highest rate of the schedule"
    )
    parser.add_argument("--note", help="what differs from here on; kept beside the checkpoint and in its model card")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="continue from the state folder")
    start.add_argument("--start-from", type=Path, metavar="FOLDER", help="go on from an exported checkpoint")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that share a step's scenes; part of what decides the outcome"
    )
    parser.add_argument("--threads", type=int, help="of each worker (default: the cores, shared out)")
    parser.add_argument("--log-every", type=int, default=50, help="steps between two lines of progress")
    parser.add_argument("--save-every", type=int, default=500, help="steps between two saves")
    arguments = parser.parse_args()
    run_workers(arguments.workers, work, arguments)


def work(arguments: argparse.Namespace) -> None:
    """What each worker does."""
    torch.set_num_threads(arguments.threads or max(1, (os.cpu_count() or 1) // arguments.workers))
    recipe = Recipe(
        arguments.steps,
        arguments.seed,
        arguments.workers,
        arguments.learning_rate,
        tower_steps=arguments.tower_steps,
    )
    trainer = Trainer(recipe)
    if arguments.resume:
        trainer.load_state(arguments.state)
    elif arguments.start_from:
        trainer.load_checkpoint(arguments.start_from)
    if arguments.note:
        trainer.notes += (f"from step {trainer.step:,}: {arguments.note}",)
    sitting(trainer, arguments.out, arguments.state, arguments.minutes, arguments.log_every, arguments.save_every)


if __name__ == "__main__":
    main()
