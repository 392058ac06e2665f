"""The bundled checkpoint loads with plain transformers and answers better than a blind guess."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.answers import matches
from engines.config import CompressionConfig
from engines.demo.benchmark import items
from engines.demo.blind import BlindGuess
from engines.demo.questions import Question, ask
from engines.demo.scenes import make_scene
from engines.engine import load_engine
from engines.evaluation import evaluate, report

ASSETS = Path(__file__).parents[3] / "assets"
DEMO, SAMPLES = ASSETS / "demo", ASSETS / "samples"

# Runs outside this project: no import of ours, no network.
PLAIN = """
import sys, torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
folder, picture = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")
image, text = Image.open(picture), "How many objects are there?"
parts = [{"type": "image", "image": image}, {"type": "text", "text": text}]
inputs = processor.apply_chat_template(
    [{"role": "user", "content": parts}], tokenize=True, add_generation_prompt=True, return_dict=True,
    return_tensors="pt",
)
tokens = model.generate(**inputs, max_new_tokens=8)
assert "engines" not in sys.modules
print(type(model).__name__, type(processor).__name__, model.dtype, model.config.tie_word_embeddings)
print(processor.decode(tokens[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
"""


def test_loads_with_plain_transformers_alone(tmp_path: Path) -> None:
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PLAIN, str(DEMO), str(SAMPLES / "scene_list.png")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    what, said = run.stdout.splitlines()[:2]
    assert what == "Qwen3VLMoeForConditionalGeneration Qwen3VLProcessor torch.bfloat16 True"
    assert said.isdigit()


def test_is_small_enough_and_complete() -> None:
    weights = list(DEMO.glob("*.safetensors"))
    assert 0 < sum(path.stat().st_size for path in weights) <= 40_000_000
    assert (DEMO / "README.md").read_text(encoding="utf-8").count("| all |") > 0


def test_answers_held_out_questions_better_than_a_blind_guess(tmp_path: Path) -> None:
    asked = list(items("stills", tmp_path, every=15))
    found = report(evaluate(load_engine(), asked, CompressionConfig.full()))
    blind = BlindGuess(make_scene("train", seed, "medium") for seed in range(300))
    guessed = [matches(blind.best.get(item.question, ""), item.answer) for item in asked]
    assert found.overall.low > sum(guessed) / len(guessed)


def test_the_samples_are_what_the_list_says() -> None:
    entries = json.loads((SAMPLES / "samples.json").read_text(encoding="utf-8"))
    licences = (SAMPLES / "LICENSES.md").read_text(encoding="utf-8")
    assert {"reading", "motion", None} <= {entry["category"] for entry in entries}
    for entry in entries:
        file = SAMPLES / entry["file"]
        assert file.stat().st_size <= 400_000
        assert entry["question"]
        assert (entry["answer"] is None) == (entry["category"] is None)
        assert file.name in licences or file.name.startswith("scene_")


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("Red.", "red", True),
        (" red  circle, blue star", "red circle, blue star", True),
        ("红色。", "红色", True),
        ("AB7", "ab7", True),
        ("red circle", "red", False),
        ("", "red", False),
    ],
)
def test_the_matching_rule(answer: str, expected: str, right: bool) -> None:
    assert matches(answer, expected) is right


def test_the_blind_guess_knows_the_training_answers_only() -> None:
    scenes = [make_scene("train", seed, "small") for seed in range(50)]
    blind = BlindGuess(scenes)
    asked = [q for scene in scenes for q in ask(scene) if q.category == "count"]
    assert blind(asked[0]) in {q.answer for q in asked}
    assert blind(Question("new", "Why?", "", "en", "new/en/0")) == ""
