"""Scenes to tensors: all questions of a scene share one picture in one sequence, and none sees another.

A row is   prefix (turn start and visual tokens) | question 1, answer 1 | question 2, answer 2 | ...
where every question attends to the prefix and to itself only, and its positions start right behind the
prefix. Each one is therefore computed exactly as a prompt with a single question, at a fraction of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3VLMoeForConditionalGeneration, Qwen3VLProcessor

from engines.demo.labels import FIRST_BAR, KINDS, TARGET
from engines.demo.questions import Question, event_second
from engines.demo.scenes import Scene

NO_LABEL = -100


@dataclass
class Batch:
    """One training step's input. B rows, L tokens a row, V visual tokens in all.

    inputs: keyword arguments of the model's forward pass, a custom mask (B, 1, L, L) and positions (3, B, L)
    included targets: int64 (B, L), the token that each place should predict, NO_LABEL where nothing is asked
    question: int64 (B, L), the running number of the question a target belongs to, -1 elsewhere
    questions: the questions by that number
    quadrants: per kind of engines.demo.labels.KINDS int64 (V, 4), labels of the patches under a visual token
    ninths: int64 (V,), in which ninth of its picture the thing lies that a visual token shows, or NO_LABEL
    seconds: int64 (V,), the second at which, in this token's frames and under it, a thing came or went, or NO_LABEL
    places: float (V, 2), how far down and how far right in its picture a visual token lies, 0-1
    """

    inputs: dict[str, torch.Tensor]
    targets: torch.Tensor
    question: torch.Tensor
    questions: list[Question]
    quadrants: dict[str, torch.Tensor]
    ninths: torch.Tensor
    seconds: torch.Tensor
    places: torch.Tensor


def media_message(scene: Scene, text: str) -> list[dict]:
    """One user turn, as a workbench would send it. The pixels are handed to the processor separately."""
    kind = "video" if scene.is_clip else "image"
    return [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": text}]}]


def encode_prompt(processor: Qwen3VLProcessor, scene: Scene, text: str) -> dict[str, torch.Tensor]:
    """What the processor and the chat template make of one question about a scene."""
    prompt = processor.apply_chat_template(media_message(scene, text), add_generation_prompt=True)
    if not scene.is_clip:
        return dict(processor(text=[prompt], images=[scene.image], return_tensors="pt"))
    times = {
        "fps": 1 / scene.step_s,
        "total_num_frames": len(scene.frames),
        "frames_indices": list(range(len(scene.frames))),
    }
    return dict(
        processor(
            text=[prompt],
            videos=[scene.frames],
            return_tensors="pt",
            videos_kwargs={"do_sample_frames": False, "video_metadata": [times]},
        )
    )


def quadrant_labels(scene: Scene, merge: int, temporal: int) -> dict[str, np.ndarray]:
    """Labels in the order of the visual tokens, int64 (tokens, merge * merge) per kind. A frame pair takes
    its first.
    """
    arranged = {}
    for kind in (*KINDS, TARGET):
        grid = scene.labels[kind][::temporal]
        frames, rows, columns = grid.shape
        blocks = grid.reshape(frames, rows // merge, merge, columns // merge, merge)
        arranged[kind] = blocks.transpose(0, 1, 3, 2, 4).reshape(-1, merge * merge)
    return arranged


def thing_ninths(scene: Scene, targets: np.ndarray) -> np.ndarray:
    """Of the thing under each visual token, where its centre starts out: int64 (tokens,), row by row of ninths."""
    height, width = scene.image.shape[:2]
    ninths = [int(3 * t.y / height) * 3 + int(3 * t.x / width) for t in scene.things]
    of_target = np.array([NO_LABEL, *ninths])
    shown = targets.max(1)
    shown[shown >= FIRST_BAR] = 0
    return of_target[shown]


def event_seconds(scene: Scene, targets: np.ndarray, temporal: int) -> np.ndarray:
    """When a thing came or went, on the tokens where it is seen to have: int64 (tokens,), NO_LABEL elsewhere.

    These are the tokens of the first frame pair of the new state that show the thing, or showed it until then.
    """
    cells = targets.reshape(-(-len(scene.frames) // temporal), -1, targets.shape[-1])
    seconds = np.full(cells.shape[:2], NO_LABEL)
    for number, thing in enumerate(scene.things, start=1):
        if thing.event:
            shown = (cells == number).any((0, 2))
            seconds[thing.event.frame // temporal, shown] = event_second(scene, thing.event)
    return seconds.reshape(-1)


def token_places(scene: Scene, token_px: int, temporal: int) -> np.ndarray:
    """Centre of every visual token as a share of height and width, float32 (tokens, 2)."""
    height, width = scene.image.shape[:2]
    down = (np.arange(height // token_px) + 0.5) * token_px / height
    right = (np.arange(width // token_px) + 0.5) * token_px / width
    one = np.stack(np.meshgrid(down, right, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.tile(one, (-(-len(scene.frames) // temporal), 1)).astype(np.float32)


class Packer:
    """Makes batches with one processor; remembers the constant parts of the prompts."""

    def __init__(self, processor: Qwen3VLProcessor, model: Qwen3VLMoeForConditionalGeneration):
        self.processor = processor
        self.positions_of = model.model.get_rope_index
        tokenizer = processor.tokenizer
        # The text after a question, and its ids: taken from the chat template so that they cannot drift from
        # it.
        asked = processor.apply_chat_template([{"role": "user", "content": "?"}], add_generation_prompt=True)
        self.after_question = tokenizer(asked.split("?", 1)[1]).input_ids
        self.end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.pad = tokenizer.pad_token_id
        self._ids: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Token ids of a short text, remembered."""
        if text not in self._ids:
            if len(self._ids) > 200_000:
                self._ids.clear()
            self._ids[text] = self.processor.tokenizer(text).input_ids
        return self._ids[text]

    def _prefix(self, scenes: list[Scene]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Pixel tensors of all scenes, and the ids (P,) of the prompt up to the question (alike for all of
        them).
        """
        first = encode_prompt(self.processor, scenes[0], "")
        prompt = first["input_ids"][0]
        prefix = prompt[: len(prompt) - len(self.after_question)]
        if scenes[0].is_clip:
            pixels = self.processor.video_processor(
                videos=[s.frames for s in scenes], do_sample_frames=False, return_tensors="pt"
            )
            keys = ("pixel_values_videos", "video_grid_thw")
        else:
            pixels = self.processor.image_processor(images=[s.image for s in scenes], return_tensors="pt")
            keys = ("pixel_values", "image_grid_thw")
        media = {key: pixels[key] for key in keys}
        kind = first["mm_token_type_ids"][:, : len(prefix)]
        grid = {keys[1]: media[keys[1]][:1]}
        positions, _ = self.positions_of(prefix[None], kind, **grid)
        return {**media, "positions": positions[:, 0]}, prefix

    def pack(self, scenes: list[Scene], asked: list[list[Question]]) -> Batch:
        """Pack scenes of one size and frame count with their questions."""
        if len({s.frames.shape for s in scenes}) != 1:
            raise ValueError("scenes of one batch must have one size and one number of frames")
        media, prefix = self._prefix(scenes)
        prefix_positions = media.pop("positions")
        start = int(prefix_positions.max()) + 1
        rows = []
        for questions in asked:
            rows.append(
                [(self.ids(q.text) + self.after_question, [*self.ids(q.answer), self.end_of_turn]) for q in questions]
            )
        length = len(prefix) + max(sum(len(p) + len(a) for p, a in row) for row in rows)  # no question: prefix
        # Round up: fewer distinct lengths let the allocator and the matrix kernels reuse what they have.
        length = -(-length // 16) * 16
        size = (len(scenes), length)
        ids = torch.full(size, self.pad)
        targets, number = torch.full(size, NO_LABEL), torch.full(size, -1)
        positions = torch.zeros(3, *size, dtype=torch.long)
        segment = torch.full(size, -1)  # -1 padding, 0 prefix, 1... questions
        flat: list[Question] = []
        for r, (row, questions) in enumerate(zip(rows, asked, strict=True)):
            ids[r, : len(prefix)] = prefix
            positions[:, r, : len(prefix)] = prefix_positions
            segment[r, : len(prefix)] = 0
            at = len(prefix)
            for s, ((prompt, answer), question) in enumerate(zip(row, questions, strict=True), start=1):
                tokens = torch.tensor(prompt + answer)
                end, answer_at = at + len(tokens), at + len(prompt)
                ids[r, at:end] = tokens
                positions[:, r, at:end] = torch.arange(start, start + len(tokens))
                segment[r, at:end] = s
                targets[r, answer_at - 1 : end - 1] = tokens[len(prompt) :]
                number[r, answer_at - 1 : end - 1] = len(flat)
                flat.append(question)
                at = end
        same = segment[:, :, None] == segment[:, None, :]
        mask = (same | (segment[:, None, :] == 0)).tril()
        sizes = self.processor.image_processor
        merge, temporal = sizes.merge_size, sizes.temporal_patch_size
        labels = [quadrant_labels(scene, merge, temporal) for scene in scenes]
        quadrants = {k: torch.from_numpy(np.concatenate([part[k] for part in labels])) for k in labels[0]}
        ninths = np.concatenate([thing_ninths(s, found[TARGET]) for s, found in zip(scenes, labels, strict=True)])
        seconds = np.concatenate(
            [event_seconds(s, found[TARGET], temporal) for s, found in zip(scenes, labels, strict=True)]
        )
        places = np.concatenate([token_places(scene, sizes.patch_size * merge, temporal) for scene in scenes])
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask[:, None], **media}
        told = (torch.from_numpy(array) for array in (ninths, seconds, places))
        return Batch(inputs, targets, number, flat, quadrants, *told)
