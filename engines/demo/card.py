"""The model card of the demo checkpoint: `python -m engines.demo.card assets/demo --state DIR`.

Every figure in it is read from the training state or measured by this command; nothing is typed in.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin

from engines.demo.evaluate import Score, evaluate, table
from engines.demo.scenes import LEVELS
from engines.demo.train import CURRICULUM, DEFAULT_STATE
from engines.demo.words import CATEGORIES

CARD = """\
---
library_name: transformers
pipeline_tag: image-text-to-text
---

# Demo checkpoint of the compression workbench

A Qwen3-VL-MoE model of {parameters:.1f} million parameters, trained from scratch on scenes that a program
draws. It exists so that the workbench has something real to run, compress and measure where no weights can be
downloaded. **It is a demo: it knows generated scenes and nothing else.** Load a real Qwen3-VL-MoE checkpoint
for real pictures.

Architecture, tokenizer class, processor and file format are those of `transformers`
(`Qwen3VLMoeForConditionalGeneration`, `Qwen3VLProcessor`): {text_layers} text layers of width {width} with
{experts} experts (top {top_k}, width {expert_width}), {vision_layers} vision layers of width {vision_width},
deepstack from vision layers {deepstack}, interleaved M-RoPE, tied embeddings, patch 16, merge 2, temporal
patch 2, a vocabulary of {vocabulary} (byte-level BPE, all bytes included), weights in bfloat16.

## What it was trained on

Scenes from `engines/demo/`: 1-8 objects in 8 shapes, 8 colours and 3 sizes on plain, gradient, noisy and
textured backgrounds, signs of 1-4 characters, short clips with moving objects; questions in English and,
about one in seven, in Chinese on colour, shape, count, count by colour, position, relation, existence,
reading, listing all objects and, for clips, direction of motion. Splits have separate random streams; the
figures below are from the test split, which training never draws.

The vision tower first learned alone, for {tower:.0%} of the images, to name colour, shape and character under
each visual token; then all was trained together with the loss on answer tokens, the same two auxiliary losses
and the router's balance loss. Muon and AdamW in float32, learning rate {rate}, constant, over the last
{cooldown:.0%} falling to zero. Levels, as share of steps by progress:

{curriculum}

- images seen: {images:,} in {steps:,} steps, of a schedule of {schedule:,}
- seed: {seed}
- command: `{command}`

## Measured

First {scenes} test scenes of each level, all questions of a scene, greedy decoding by plain `transformers` in
{dtype}, one question a prompt, normalised exact match; a list counts only if it is right as a whole. The
blind guess sees no image but knows the most frequent training answer to each question. Measured with
transformers {transformers}, torch {torch}, {machine}, by

    python -m engines.demo.card {folder} --scenes {scenes}

{results}
## What it cannot do

- Photographs, drawings, diagrams, real text: it has never seen one. Its answers there mean nothing.
- Free conversation, several turns, several images: it was trained on one question about one image or clip.
- Anything outside the categories above, colour or shape names it does not know, signs longer than 4
  characters. Asked for what is not there, such as the text of a missing sign, it makes something up.
- Under half right in the tables above: {weak}.
- Where a row above is close to the blind guess, it is guessing.
- Scenes much larger or fuller than those of the levels above.
"""


def _measure(model: PreTrainedModel, processor: ProcessorMixin, scenes: int) -> dict[str, dict[str, Score]]:
    results = {}
    for level in LEVELS:
        began = time.monotonic()
        results[level.name] = evaluate(model, processor, level.name, scenes)
        accuracy = results[level.name]["all"].accuracy
        print(f"{level.name}: {accuracy:.3f} in {time.monotonic() - began:.0f} s", flush=True)
    return results


def _tables(results: dict[str, dict[str, Score]]) -> str:
    parts = []
    for level in LEVELS:
        low, high = level.things
        sides = "-".join(str(side) for side in sorted({level.sides[0], level.sides[-1]}))
        what = "clips" if max(level.frames) > 1 else "stills"
        title = f"### {level.name}: {what} of {sides} pixels, {low}-{high} objects"
        parts.append(f"{title}\n\n{table(results[level.name])}\n")
    return "\n".join(parts)


def _weak(results: dict[str, dict[str, Score]]) -> str:
    """Categories with fewer than half of the answers right, with the levels where that is so."""
    levels: dict[str, list[str]] = {}
    for level, scores in results.items():
        for category in CATEGORIES:
            if category in scores and scores[category].accuracy < 0.5:
                levels.setdefault(category, []).append(level)
    return "; ".join(f"{name} ({', '.join(where)})" for name, where in sorted(levels.items())) or "nothing"


def write_card(folder: Path, state_folder: Path, scenes: int) -> None:
    """Evaluate the checkpoint on every level and write README.md into its folder."""
    state = torch.load(state_folder / "state.pt", weights_only=True)
    recipe, seed = state["recipe"], state["recipe"]["seed"]
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    text, vision = model.config.text_config, model.config.vision_config
    mixes = "\n".join(
        f"- up to {min(until, 1.0):.0%}: " + ", ".join(f"{name} {share:.0%}" for name, share in mix.items())
        for until, mix in CURRICULUM
    )
    results = _measure(model, processor, scenes)
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()) / 1e6,
        text_layers=text.num_hidden_layers,
        width=text.hidden_size,
        experts=text.num_experts,
        top_k=text.num_experts_per_tok,
        expert_width=text.moe_intermediate_size,
        vision_layers=vision.depth,
        vision_width=vision.hidden_size,
        deepstack=" and ".join(str(i) for i in vision.deepstack_visual_indexes),
        vocabulary=text.vocab_size,
        curriculum=mixes,
        images=state["images"],
        steps=state["step"],
        schedule=recipe["images"],
        seed=seed,
        scenes=scenes,
        dtype="float32",
        tower=recipe["tower_share"],
        rate=recipe["learning_rate"],
        cooldown=recipe["cooldown"],
        folder=folder,
        command=f"python -m engines.demo.train --out {folder} --images {recipe['images']} --seed {seed}",
        transformers=transformers.__version__,
        torch=torch.__version__,
        machine=f"{platform.machine()} with {os.cpu_count()} cores",
        results=_tables(results),
        weak=_weak(results),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="state folder of the training")
    parser.add_argument("--scenes", type=int, default=100, help="test scenes a level")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    write_card(arguments.checkpoint, arguments.state, arguments.scenes)


if __name__ == "__main__":
    main()
