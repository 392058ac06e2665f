"""Tokenizer, chat template, and that training sees the very prompts that inference sees."""

from __future__ import annotations

import pytest
import torch

from engines.demo import build, draw
from engines.demo.batches import NO_LABEL, Packer, encode_prompt, event_seconds, quadrant_labels
from engines.demo.experts import use_sorted_experts
from engines.demo.questions import ask
from engines.demo.scenes import make_scene
from engines.demo.words import LANGUAGES

TINY = {"width": 96, "text_layers": 2, "vision_layers": 1, "experts": 4, "expert_width": 16}


@pytest.fixture(scope="module")
def processor():
    return build.build_processor()


@pytest.fixture(scope="module")
def model(processor):
    return build.build_model(processor.tokenizer, **TINY).eval()


@pytest.mark.parametrize(
    "text",
    [
        "What color is the circle?",
        "红色物体是什么形状？",
        "naïve café — “quotes”",
        "😀👩‍👩‍👧🇩🇪",
        "  two  spaces\n\n\tand tab ",
        "x=3.14;",
    ],
)
def test_text_round_trips(processor, text: str) -> None:
    ids = processor.tokenizer(text).input_ids
    assert processor.tokenizer.decode(ids) == text


def test_names_are_one_token(processor) -> None:
    tokenizer = processor.tokenizer
    for name in (*draw.COLOURS, *draw.SHAPES, "yes", "no"):
        for written in (name, f" {name}", *(language.word(name) for language in LANGUAGES)):
            assert len(tokenizer(written).input_ids) == 1, written


def test_template_takes_strings_and_parts(processor) -> None:
    parts = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "Hi"}]
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n"
        "<|vision_start|><|image_pad|><|vision_end|><|video_pad|>Hi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("level", ["small", "clip"])
def test_packed_questions_equal_single_prompts(processor, model, level: str) -> None:
    """Ids, positions and logits of every packed question are those of the prompt with that question alone."""
    scene = make_scene("train", 3, level)
    questions = ask(scene, chinese_share=0.5)[:5]
    batch = Packer(processor, model).pack([scene], [questions])
    with torch.no_grad():
        packed = model.lm_head(model.model(**batch.inputs, use_cache=False).last_hidden_state)[0]
        for number, question in enumerate(questions):
            alone = encode_prompt(processor, scene, question.text)
            logits = model(**alone).logits[0, -1]
            first = int((batch.question[0] == number).nonzero()[0])
            prompt = alone["input_ids"][0]
            prefix = int((prompt == processor.tokenizer.convert_tokens_to_ids("<|vision_end|>")).nonzero()[-1]) + 1
            own = len(prompt) - prefix
            ids = batch.inputs["input_ids"][0]
            assert torch.equal(torch.cat([ids[:prefix], ids[first + 1 - own : first + 1]]), prompt)
            assert torch.allclose(packed[first], logits, atol=1e-4)
            target = batch.targets[0][batch.question[0] == number]
            assert processor.tokenizer.decode(target) == question.answer + "<|im_end|>"


def test_the_second_of_an_event_lies_where_and_when_it_is_seen() -> None:
    """On the tokens of the frame pair in which a thing comes or goes, under the thing, and nowhere else."""
    scenes = (make_scene("train", seed, "clip", (128, 160)) for seed in range(20))
    for scene in (scene for scene in scenes if any(thing.event for thing in scene.things)):
        seconds = event_seconds(scene, quadrant_labels(scene, 2, 2)["target"], 2).reshape(-1, 4, 5)
        expected = torch.full(seconds.shape, NO_LABEL)
        for thing in scene.things:
            if thing.event:
                pair, shown = thing.event.frame // 2, next(f for f in range(len(scene.frames)) if thing.visible(f))
                column, row = (middle // 32 for middle in (thing.x, thing.y))
                assert scene.labels["target"][shown, thing.y // 16, thing.x // 16] > 0
                expected[pair, row, column] = seconds[pair, row, column]
                assert seconds[pair, row, column] == int(thing.event.frame * scene.step_s)
        pairs = {thing.event.frame // 2 for thing in scene.things if thing.event}
        assert {pair for pair in range(len(seconds)) if (seconds[pair] != NO_LABEL).any()} == pairs
        assert (seconds == NO_LABEL).sum() <= (expected == NO_LABEL).sum()


def test_sorted_experts_equal_the_plain_loop(processor) -> None:
    model = build.build_model(processor.tokenizer, seed=1, **TINY)
    ids = torch.arange(40)[None] % 50 + 10
    model.set_experts_implementation("eager")
    plain = model(input_ids=ids).logits
    plain.square().mean().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if "experts" in n}
    model.zero_grad()
    use_sorted_experts(model)
    ours = model(input_ids=ids).logits
    ours.square().mean().backward()
    assert torch.allclose(ours, plain, atol=1e-5)
    for name, parameter in model.named_parameters():
        if "experts" in name:
            assert torch.allclose(parameter.grad, expected[name], atol=1e-5), name
