"""From decoded media and a question to the tensors that the model takes, by the checkpoint's own processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.video_utils import VideoMetadata

from engines.media import Media
from engines.results import EngineError, RunRequest
from engines.tokens.group import FrameGroup

# Timestamps are handed over as frame indices of a clip with this rate, so that they are exact to a millisecond
# for clips of any frame rate, variable ones included.
_TICKS_PER_S = 1000


@dataclass(frozen=True)
class VisualItem:
    """One image or video of the prompt. The grid is (frame groups, rows, columns) in patches."""

    index: int
    """Position in the request's media."""
    media: Media
    grid: tuple[int, int, int]
    pixels: Tensor
    """(patches, channels x temporal patch x patch x patch)."""

    @property
    def groups(self) -> int:
        return self.grid[0]

    def group_pixels(self, group: int) -> Tensor:
        patches = self.grid[1] * self.grid[2]
        return self.pixels[group * patches : (group + 1) * patches]


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt. Visual items are in the order in which their tokens appear, per kind."""

    input_ids: Tensor
    """(1, length)."""
    inputs: dict[str, Tensor]
    """Everything the processor made, on the device: what transformers' own forward pass takes."""
    images: tuple[VisualItem, ...]
    videos: tuple[VisualItem, ...]
    question_ids: Tensor
    """(1, n): the last question by itself, without template and media. Where the prompt joins the question's first
    characters with what stands before them into one token, it has that token instead."""

    @property
    def length(self) -> int:
        return self.input_ids.shape[1]

    def in_prompt_order(self) -> list[VisualItem]:
        return sorted((*self.images, *self.videos), key=lambda item: item.index)

    def shape_signature(self) -> tuple[Any, ...]:
        """Equal for prompts that run through kernels of the same sizes."""
        return (self.length, *(item.grid for item in self.in_prompt_order()))


def build_messages(request: RunRequest, media: Sequence[Media]) -> list[dict[str, Any]]:
    """Chat messages: all media first, in the order given, in the first turn of the user."""
    parts: list[dict[str, Any]] = [{"type": item.kind} for item in media]
    questions = [*(turn.question for turn in request.history), request.question]
    messages: list[dict[str, Any]] = []
    for position, question in enumerate(questions):
        text = {"type": "text", "text": question}
        messages.append({"role": "user", "content": [*parts, text] if position == 0 else [text]})
        if position < len(request.history):
            answer = request.history[position].answer
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return messages


def check_question(request: RunRequest, tokenizer: Any) -> None:
    """Refuse an empty question and one that holds the model's control words, which would forge turns or media."""
    if not request.question.strip():
        raise EngineError("The question is empty; write what you want to know.")
    reserved = [token for token in tokenizer.get_added_vocab() if token.startswith("<")]
    for text in (request.question, *(part for turn in request.history for part in (turn.question, turn.answer))):
        found = next((token for token in reserved if token in text), None)
        if found:
            raise EngineError(f"The question holds {found}, which is reserved by the model; leave it out.")


def build_prompt(request: RunRequest, media: Sequence[Media], processor: Any, device: torch.device) -> Prompt:
    """Run the checkpoint's chat template and processor on the CPU and move the result to the device."""
    text = processor.apply_chat_template(build_messages(request, media), tokenize=False, add_generation_prompt=True)
    images = [(index, item) for index, item in enumerate(media) if item.kind == "image"]
    videos = [(index, item) for index, item in enumerate(media) if item.kind == "video"]
    arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
    if images:
        arguments["images"] = [_as_tensor(item)[0] for _, item in images]
    if videos:
        arguments["videos"] = [_as_tensor(item) for _, item in videos]
        arguments["video_metadata"] = [_metadata(item) for _, item in videos]
        # The frames were sampled by us, from real timestamps.
        arguments["do_sample_frames"] = False
    encoded = processor(**arguments)
    question = processor.tokenizer(request.question, add_special_tokens=False, return_tensors="pt")
    inputs = {name: value.to(device) for name, value in encoded.items() if isinstance(value, Tensor)}
    return Prompt(
        input_ids=inputs["input_ids"],
        inputs=inputs,
        images=_items(images, inputs.get("pixel_values"), inputs.get("image_grid_thw")),
        videos=_items(videos, inputs.get("pixel_values_videos"), inputs.get("video_grid_thw")),
        question_ids=question["input_ids"].to(device),
    )


def _items(media: list[tuple[int, Media]], pixels: Tensor | None, grids: Tensor | None) -> tuple[VisualItem, ...]:
    items = []
    start = 0
    for (index, item), grid in zip(media, [] if grids is None else grids.tolist(), strict=True):
        patches = grid[0] * grid[1] * grid[2]
        items.append(VisualItem(index, item, tuple(grid), pixels[start : start + patches]))  # type: ignore[index]
        start += patches
    return tuple(items)


def padded_frames(item: Media) -> tuple[np.ndarray, tuple[float, ...]]:
    """A video's frames and timestamps; a single frame is doubled, since the tower takes frames in pairs."""
    if item.kind == "video" and item.n_frames == 1:
        return np.repeat(item.frames, 2, axis=0), item.timestamps_s * 2
    return item.frames, item.timestamps_s


def _as_tensor(item: Media) -> Tensor:
    """(frames, channels, height, width) uint8."""
    frames, _ = padded_frames(item)
    return torch.from_numpy(frames.transpose(0, 3, 1, 2).copy())


def _metadata(item: Media) -> VideoMetadata:
    ticks = [round(time_s * _TICKS_PER_S) for time_s in padded_frames(item)[1]]
    return VideoMetadata(
        total_num_frames=ticks[-1] + 1,
        fps=float(_TICKS_PER_S),
        duration=item.duration_s,
        frames_indices=ticks,
        height=item.height,
        width=item.width,
    )


def frame_groups(item: VisualItem, temporal_patch: int) -> list[tuple[tuple[int, ...], float | None]]:
    """For each frame group of an item: which sampled frames it holds, and its timestamp as the prompt states it."""
    if item.media.kind == "image":
        return [((0,), None)]
    times = list(padded_frames(item.media)[1])
    times += times[-1:] * (-len(times) % temporal_patch)
    last = item.media.n_frames - 1
    groups: list[tuple[tuple[int, ...], float | None]] = []
    for start in range(0, item.groups * temporal_patch, temporal_patch):
        frames = sorted({min(index, last) for index in range(start, start + temporal_patch)})
        groups.append((tuple(frames), (times[start] + times[start + temporal_patch - 1]) / 2))
    return groups


def visual_groups(items: Sequence[VisualItem], merge: int, temporal_patch: int) -> tuple[FrameGroup, ...]:
    """The images and frame groups of these items, in their order."""
    return tuple(
        FrameGroup(
            item=item.index,
            name=item.media.name,
            kind=item.media.kind,
            frames=shown,
            timestamp_s=timestamp_s,
            rows=item.grid[1] // merge,
            columns=item.grid[2] // merge,
        )
        for item in items
        for shown, timestamp_s in frame_groups(item, temporal_patch)
    )
