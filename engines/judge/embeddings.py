"""Embeddings of answers and of visual tokens: the checkpoint's own, or those of a CLIP folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engines.media import Media
from engines.results import RunResult
from engines.structure import Structure

Vector = npt.NDArray[np.float64]
# Rows of the embedding table that are added up at a time.
_PIECE = 4096
# Frames of one clip that CLIP is shown, spread evenly.
_MOST_FRAMES = 8


class OwnEmbeddings:
    """A request's `watch` that reads the visual tokens of each run; and the embeddings of answers.

    A run's visual embedding is the mean of its visual tokens as they entered the language model, of those that were
    not dropped. An answer's is the mean of the checkpoint's input embeddings of its tokens, less the mean of the
    whole table, which all texts share (Mu and Viswanath, ICLR 2018). It does not see the order of words.
    """

    words = (
        "the checkpoint's own embeddings: answers by its input embeddings, media by the visual tokens that the "
        "language model saw"
    )

    def __init__(self) -> None:
        self._structure: Structure | None = None
        self._centre: Tensor | None = None
        self._flags: Tensor | None = None
        self._rows: Tensor | None = None

    @contextmanager
    def applied(self, structure: Structure) -> Iterator[None]:
        if structure is not self._structure:
            self._structure, self._centre = structure, _table_mean(structure)
        self._flags = self._rows = None
        handle = structure.language_model.register_forward_pre_hook(self._look, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def begin(self, visual: Tensor) -> None:
        self._flags, self._rows = visual, None

    def narrow(self, keep: Tensor) -> None:
        if self._flags is not None and self._rows is not None:
            self._rows, self._flags = self._rows[keep[self._flags]], self._flags[keep]

    def _look(self, _module: Any, _inputs: Any, named: dict[str, Any]) -> None:
        if self._rows is None and self._flags is not None:
            self._rows = named["inputs_embeds"][0][self._flags].float()

    def visual(self) -> Vector | None:
        """(hidden,) of the last run; None where it had no visual token."""
        if self._rows is None or not len(self._rows):
            return None
        return self._rows.mean(dim=0).double().cpu().numpy()

    def answer(self, result: RunResult) -> Vector | None:
        """(hidden,); None of an empty answer, or before any run."""
        ended = result.finish_reason == "stop"
        tokens = result.tokens[: len(result.tokens) - ended]
        if self._structure is None or self._centre is None or not tokens:
            return None
        with torch.inference_mode():
            rows = self._structure.core.get_input_embeddings()(torch.tensor(tokens, device=self._centre.device))
            return (rows.float().mean(dim=0) - self._centre).double().cpu().numpy()


class ClipEmbeddings:
    """A CLIP model from a local folder, on the CPU."""

    def __init__(self, folder: Path) -> None:
        """ValueError, with one sentence, for a folder that holds no such model."""
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        if not folder.is_dir():
            raise ValueError(f"--clip {folder} is not a folder; name one with a CLIP model in transformers' format.")
        try:
            self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._pictures = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"--clip {folder} cannot be read as a CLIP model: {reason}") from error
        if not all(hasattr(self._model, name) for name in ("get_text_features", "get_image_features")):
            raise ValueError(f"--clip {folder} holds a {type(self._model).__name__}, which embeds no texts and images.")
        text = getattr(self._model.config, "text_config", self._model.config)
        self._longest = int(text.max_position_embeddings)
        self.words = f"CLIP from {folder.name}"

    def answer(self, result: RunResult) -> Vector | None:
        """(size,); None of an empty answer. Longer answers than CLIP reads are cut."""
        if not result.answer.strip():
            return None
        inputs = self._tokenizer([result.answer], truncation=True, max_length=self._longest, return_tensors="pt")
        with torch.inference_mode():
            found = self._model.get_text_features(inputs["input_ids"], attention_mask=inputs["attention_mask"])
        return _features(found)

    def media(self, media: Sequence[Media]) -> Vector | None:
        """(size,): the mean over the pictures, and over the frames of a clip; None without media."""
        frames = [
            item.frames[index]
            for item in media
            for index in np.unique(np.linspace(0, item.n_frames - 1, _MOST_FRAMES).round().astype(int))
        ]
        if not frames:
            return None
        inputs = self._pictures(images=frames, return_tensors="pt")
        with torch.inference_mode():
            return _features(self._model.get_image_features(inputs["pixel_values"]))


def cosine(one: Vector | None, other: Vector | None) -> float:
    """Of two embeddings, -1 to 1. Nothing is the same as nothing and unlike everything else."""
    if one is None or other is None:
        return float(one is other)
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    if lengths == 0:
        return float(not one.any() and not other.any())
    # Equal vectors are exactly alike, whatever rounding makes of the quotient.
    return 1.0 if np.array_equal(one, other) else float(np.clip(one @ other / lengths, -1.0, 1.0))


def unit(vector: Vector | None, size: int) -> Vector:
    """Of length 1; zeros of that size for nothing."""
    length = 0.0 if vector is None else float(np.linalg.norm(vector))
    return np.zeros(size) if vector is None or length == 0 else vector / length


def _features(found: Any) -> Vector:
    rows = getattr(found, "pooler_output", found)
    return torch.nn.functional.normalize(rows.float(), dim=-1).mean(dim=0).double().numpy()


def _table_mean(structure: Structure) -> Tensor:
    """(hidden,) float32. Asked through the module, which may keep its weights elsewhere."""
    table = structure.core.get_input_embeddings()
    total: Any = 0
    with torch.inference_mode():
        for start in range(0, table.num_embeddings, _PIECE):
            ids = torch.arange(start, min(start + _PIECE, table.num_embeddings), device=table.weight.device)
            total = total + table(ids).float().sum(dim=0)
    return total / table.num_embeddings
