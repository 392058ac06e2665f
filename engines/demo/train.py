"""Train the demo checkpoint from scratch on generated scenes.

    python -m engines.demo.train --out assets/demo --images 150000           one command, start to end
    python -m engines.demo.train --out assets/demo --images 150000 --minutes 60       one sitting of it
    python -m engines.demo.train --out assets/demo --images 150000 --resume           the next sitting

Everything is a function of the seed and the number of images seen: a run that is stopped and resumed takes
the same steps as one that is not. `--images` sets the length of the schedule, `--minutes` only ends a sitting
early.

On a CPU that does other work too, set OMP_WAIT_POLICY=PASSIVE: threads that spin while they wait for others
made a step up to seven times as slow. With glibc, MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 helps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from engines.demo import build, losses
from engines.demo.batches import NO_LABEL, Batch, Packer
from engines.demo.experts import use_sorted_experts
from engines.demo.optim import Optimizers
from engines.demo.questions import Question, ask
from engines.demo.scenes import LEVEL_NAMES, LEVELS, make_scene

# Share of the steps a level gets, by how far the training is. Few small objects first: binding a colour to a
# shape is learned there, and carries over to crowded scenes; the other way round it does not come.
CURRICULUM: tuple[tuple[float, dict[str, float]], ...] = (
    (0.30, {"tiny": 0.5, "small": 0.4, "medium": 0.1}),
    (0.80, {"tiny": 0.2, "small": 0.7, "clip": 0.1}),
    (1.01, {"small": 0.4, "medium": 0.35, "large": 0.1, "clip": 0.15}),
)
DEFAULT_STATE = Path.home() / ".cache" / "qwen-vl-moe-workbench" / "demo-training"


@dataclass(frozen=True)
class Recipe:
    """All that decides the outcome."""

    images: int = 150_000
    seed: int = 0
    learning_rate: float = 2e-3
    warmup_images: int = 2_000
    cooldown: float = 0.3  # share of the schedule, at its end, over which the rate falls to zero
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    # The vision tower first learns alone, from what lies under each token: until it tells shapes and
    # characters apart the language model has nothing to bind, and would cost most of the time.
    tower_share: float = 0.3
    work_per_step: int = 3_000  # about this many tokens (text and visual, weighted by cost) a step
    questions: int = 6  # a scene
    quadrant_weight: float = 0.5
    word_weight: float = 0.5
    balance_weight: float = 0.01
    model: dict[str, int] = field(default_factory=dict)  # overrides of build.demo_config, for tests


@dataclass
class Trainer:
    """Model, heads, optimizer and the two counters that, with the recipe, determine everything else."""

    recipe: Recipe
    step: int = 0
    images: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.recipe.seed)
        self.processor = build.build_processor()
        tokenizer = self.processor.tokenizer
        self.model = build.build_model(tokenizer, self.recipe.seed, **self.recipe.model)
        use_sorted_experts(self.model)
        self.heads = losses.VisualHeads(self.model.config.text_config.hidden_size, tokenizer)
        self.packer = Packer(self.processor, self.model)
        self.optimizer = Optimizers(self.model, self.heads, self.recipe.learning_rate, self.recipe.weight_decay)

    @property
    def tower_alone(self) -> bool:
        return self.images < self.recipe.tower_share * self.recipe.images

    def learning_rate(self) -> float:
        """Warm-up, constant, then linear to zero: by images seen. The language model's start is warmed up
        too.
        """
        since = self.images if self.tower_alone else self.images - self.recipe.tower_share * self.recipe.images
        warm = min(1.0, (since + 1) / max(1, self.recipe.warmup_images))
        left = (1 - self.images / self.recipe.images) / self.recipe.cooldown
        return self.recipe.learning_rate * warm * min(1.0, max(left, 0.02))

    def draw_batch(self) -> tuple[Batch, str]:
        """The scenes and questions of the current step, and their level."""
        recipe = self.recipe
        rng = np.random.default_rng([recipe.seed, self.step])
        mix = next(mix for until, mix in CURRICULUM if self.images / recipe.images < until)
        name = str(rng.choice(list(mix), p=np.array(list(mix.values())) / sum(mix.values())))
        level = LEVELS[LEVEL_NAMES.index(name)]
        height, width = (int(side) for side in rng.choice(level.sides, 2))
        frames = int(rng.choice(level.frames))
        visual = height * width // (build.PATCH_PX * build.MERGE) ** 2 * -(-frames // build.TEMPORAL)
        questions = 0 if self.tower_alone else recipe.questions
        # Tokens of text and visual tokens, the latter weighted by what the tower costs. A lone tower gets
        # fewer images a step than it could: many small steps take it further than few large ones.
        count = max(2, recipe.work_per_step // (14 * questions + (10 if self.tower_alone else 5) * visual))
        first = recipe.seed * 1_000_000_000 + self.images
        scenes = [make_scene("train", first + i, name, (height, width), frames) for i in range(count)]
        asked = [choose(ask(scene), questions, rng) if questions else [] for scene in scenes]
        return self.packer.pack(scenes, asked), name

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float], list[bool]]:
        """Total loss, its parts, and which questions were answered right."""
        recipe, config = self.recipe, self.model.config.text_config
        parts: dict[str, torch.Tensor] = {}
        right: list[bool] = []
        if batch.questions:
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
        else:
            media = self.model.get_image_features(batch.inputs["pixel_values"], batch.inputs["image_grid_thw"])
        tokens = torch.cat(list(media.pooler_output))
        embedding = self.model.get_input_embeddings().weight
        parts["quadrants"] = recipe.quadrant_weight * self.heads.quadrant_loss(tokens, batch.quadrants)
        parts["words"] = recipe.word_weight * self.heads.word_loss(tokens, batch.quadrants, embedding)
        total = torch.stack(list(parts.values())).sum()
        seen = self.heads.share_seen(tokens, batch.quadrants)
        return total, {name: float(part.detach()) for name, part in parts.items()} | seen, right

    def train_step(self) -> tuple[dict[str, float], list[tuple[str, bool]]]:
        """One optimizer step.

        Returns the weighted parts of the loss with the shares of patches that the heads name right, and
        (level/category, right) of every question.
        """
        batch, level = self.draw_batch()
        self.optimizer.set_learning_rate(self.learning_rate())
        self.optimizer.zero_grad()
        total, parts, right = self.loss(batch)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.step += 1
        self.images += len(batch.inputs["input_ids"])
        keys = [f"{level}/{q.category}" for q in batch.questions]
        return parts, list(zip(keys, right, strict=True))

    def save_state(self, folder: Path) -> None:
        """Write all that a resumed run needs, so that a crash while writing leaves the older state whole."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "images": self.images,
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
        for key in ("seed", "model"):
            if state["recipe"][key] != getattr(self.recipe, key):
                raise ValueError(f"the state in {folder} has {key} {state['recipe'][key]!r}")
        self.step, self.images = state["step"], state["images"]
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])

    def export(self, folder: Path) -> None:
        """Write the checkpoint as it is now."""
        build.save_checkpoint(self.model, self.processor, folder)


def choose(questions: list[Question], count: int, rng: np.random.Generator) -> list[Question]:
    """At most `count` questions in random order: list, reading and motion always, one of each kind before
    seconds.
    """
    order = [questions[i] for i in rng.permutation(len(questions))]
    seen: dict[str, int] = defaultdict(int)
    ranked = []
    for number, question in enumerate(order):
        always = question.category in ("list", "reading", "motion")
        ranked.append((0 if always else 1 + seen[question.category] // 2, number, question))
        seen[question.category] += 1
    ranked.sort(key=lambda item: item[:2])
    return [question for _, _, question in sorted(ranked[:count], key=lambda item: item[1])]


def sitting(trainer: Trainer, out: Path, state: Path, minutes: float | None, log_every: int, save_every: int) -> None:
    """Train until the schedule ends or the minutes are over, with a line of progress now and then."""
    began, last_log, images_at_log = time.monotonic(), time.monotonic(), trainer.images
    sums: dict[str, list[float]] = defaultdict(list)
    tally: dict[str, list[bool]] = defaultdict(list)
    while trainer.images < trainer.recipe.images:
        parts, answered = trainer.train_step()
        for name, value in parts.items():
            sums[name].append(value)
        for key, right in answered:
            tally[key].append(right)
        if trainer.step % log_every == 0:
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
        if trainer.step % save_every == 0:
            trainer.save_state(state)
            trainer.export(out)
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            break
    trainer.save_state(state)
    trainer.export(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the checkpoint, rewritten as training goes on"
    )
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="folder of the resumable state")
    parser.add_argument("--images", type=int, default=Recipe.images, help="length of the schedule")
    parser.add_argument("--minutes", type=float, help="end this sitting after so many minutes")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--resume", action="store_true", help="continue from the state folder")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--log-every", type=int, default=50, help="steps between two lines of progress")
    parser.add_argument("--save-every", type=int, default=500, help="steps between two saves")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trainer = Trainer(Recipe(images=arguments.images, seed=arguments.seed))
    if arguments.resume:
        trainer.load_state(arguments.state)
    sitting(trainer, arguments.out, arguments.state, arguments.minutes, arguments.log_every, arguments.save_every)


if __name__ == "__main__":
    main()
