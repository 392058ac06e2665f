"""The model card of the demo checkpoint: `python -m engines.demo.card assets/demo`.

Every figure in it is read from the history that training left beside the checkpoint or measured by this command;
nothing is typed in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

import torch
import transformers
from tqdm import tqdm

from engines.config import CacheConfig, CompressionConfig
from engines.demo import benchmark
from engines.demo.curriculum import CURRICULUM
from engines.demo.train import HISTORY
from engines.engine import Engine, load_engine
from engines.evaluation import Judged, Report, Score, evaluate, report

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

Scenes from `engines/demo/`: 1-8 objects in 8 shapes, 8 colours and 3 sizes on plain, gradient, noisy, textured
and faded photographic backgrounds, signs of 1-4 characters in three faces, bar charts, clips of 4-16 frames with
things that move, appear and disappear. Questions in English and, one in four, in Chinese, on colour, shape, count,
count by colour, position, relation, existence, reading, chart value, a list of all objects and a one-sentence
description; for clips on direction of motion, time of an event and order of two events. Splits have separate random
streams; the figures below are from the test split, which training never draws.

The vision tower learned alone, for {tower:,} steps and again later, to name what lies under each visual token
(colour, shape, character and its place in the sign, bar value, motion, centre of a thing) and where in the picture
the token is. Else all was trained together with the loss on answer tokens, the same auxiliary losses, the router's
balance loss, and one that lets the language model's middle layer name the second at which a thing came or went.
Muon and AdamW in float32, in the last sitting with a learning rate of {rate} that fell to zero over the last
{cooldown:.0%} of the schedule. Levels, as share of steps:

{curriculum}

- scenes seen: {images:,} in {steps:,} steps
- seed: {seed}
- command: {command}
{notes}
## Measured

The bundled benchmark (`python launch.py eval`): 1,200 questions on test scenes of 224 to 672 pixels and 300 on
clips, greedy decoding in {dtype}, one question a prompt, normalised exact match; a list or a description counts
only if it is right as a whole. Intervals are 95 % Wilson intervals. The blind guess sees no image but knows the most
frequent training answer to each question; "swapped" is the model with the image of another scene. Measured with
transformers {transformers}, torch {torch}, {machine}, by

    python -m engines.demo.card {folder}

{results}
## What it cannot do

- Photographs, drawings, diagrams, real text: it has never been asked about one. Its answers there mean nothing.
- Free conversation, several turns, several images: it was trained on one question about one image or clip.
- Anything outside the categories above, colour or shape names it does not know, signs longer than 4
  characters. Asked for what is not there, such as the text of a missing sign, it makes something up.
- Under 85 % right in the tables above: {weak}.
- Where a row above is close to the blind guess, it is guessing.
- Scenes much larger or fuller than those of the benchmark.
"""

WEAK = 0.85


def _run(engine: Engine, items: list, what: str) -> list[Judged]:
    # The cache saves encoding a scene anew for each of its questions; what it returns is what the tower would.
    config = CompressionConfig(cache=CacheConfig(encoder=True))
    return list(tqdm(evaluate(engine, items, config), total=len(items), desc=what, unit="question"))


def _table(kind: str, found: Report, swapped: Report, blind: dict[str, Score]) -> str:
    """One kind of group as a Markdown table."""
    lines = [
        f"| {kind} | questions | accuracy | 95 % interval | swapped | blind guess |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for name, score in {**found.groups[kind], "all": found.overall}.items():
        other = swapped.overall if name == "all" else swapped.groups[kind][name]
        guess = f"{blind[name].accuracy:.1%}" if name in blind else ""
        interval = f"{score.low:.1%} to {score.high:.1%}"
        lines.append(f"| {name} | {score.asked} | {score.accuracy:.1%} | {interval} | {other.accuracy:.1%} | {guess} |")
    return "\n".join(lines) + "\n"


def _weak(found: Report) -> str:
    names = [
        f"{name} ({score.accuracy:.0%})"
        for name, score in found.groups["category"].items()
        if score.accuracy is not None and score.accuracy < WEAK
    ]
    return ", ".join(names) or "nothing"


def _command(folder: Path, recipe: dict, started: list[int]) -> str:
    command = f"python -m engines.demo.train --out {folder} --steps {recipe['steps']} --seed {recipe['seed']}"
    stops = ", ".join(f"{step:,}" for step in started[1:])
    sittings = f", stopped at steps {stops} and each time gone on with `--start-from`" if stops else ""
    return f"`{command} --workers {recipe['workers']} --learning-rate {recipe['learning_rate']}`{sittings}"


def write_card(folder: Path) -> None:
    """Evaluate the checkpoint on the benchmark and write README.md into its folder."""
    history = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
    recipe = history["recipe"]
    engine = load_engine(str(folder), "cpu", "fp32")
    model = engine.checkpoint.model
    text, vision = model.config.text_config, model.config.vision_config
    begun = [0, *(phase.until for phase in CURRICULUM)]
    phases = "\n".join(
        f"- from step {start:,}{', the tower alone' if phase.tower_alone else ''}: "
        + ", ".join(f"{name} {share:.0%}" for name, share in phase.levels.items())
        for start, phase in zip(begun, CURRICULUM, strict=False)
    )
    with tempfile.TemporaryDirectory() as media:
        items = list(benchmark.items("all", Path(media)))
        found = report(_run(engine, items, "benchmark"))
        swapped = report(_run(engine, benchmark.swapped(items), "swapped images"))
    blind = benchmark.blind_scores("all")
    blind["all"] = Score(sum(s.asked for s in blind.values()), sum(s.right for s in blind.values()))
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
        curriculum=phases,
        images=history["images"],
        steps=history["step"],
        seed=recipe["seed"],
        dtype="float32",
        tower=recipe["tower_steps"],
        rate=recipe["learning_rate"],
        cooldown=recipe["cooldown"],
        folder=folder,
        command=_command(folder, recipe, history["started"]),
        notes="".join(f"- {note}\n" for note in history["notes"]),
        transformers=transformers.__version__,
        torch=torch.__version__,
        machine=f"{platform.machine()} with {os.cpu_count()} cores",
        results="\n".join(_table(kind, found, swapped, blind) for kind in ("category", "size", "language")),
        weak=_weak(found),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    write_card(arguments.checkpoint)


if __name__ == "__main__":
    main()
