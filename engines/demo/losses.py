"""The losses of the demo's training beside the plain one on answer tokens, and the heads they need.

Answers alone teach the vision tower very slowly. Auxiliary losses tell it what lies under each visual token:
- quadrants: a linear head names colour, shape, character and so on under each of the token's four patches;
- words: the token should point in embedding space towards the words for what it shows ("red" in all its
  spellings), so that a question's word can find the visual token it is about, and towards the characters and
  bar values that it shows, so that to read them is little more than to copy;
- places: a linear head reads off where in its picture the token lies. Without it the tower forgets its own
  position embedding;
- pointing: a token that shows a thing should point in embedding space towards the words that say where the thing is
  and which way it moves, and any other token towards no such word. What only a head can read off, or what every
  token says of itself, a language model that looks at all of them at once was slow to find.
- moments: the same half way up the language model, for what no single frame pair shows: a token under which a thing
  has just come or gone points towards the second at which it did, and one of a moving thing towards its way.
The heads are thrown away after training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2Tokenizer
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import load_balancing_loss_func

from engines.demo.batches import NO_LABEL
from engines.demo.labels import KINDS
from engines.demo.scenes import LEVELS
from engines.demo.words import LANGUAGES, PLACES

NOTHING_WEIGHT = 0.15  # most tokens show background; without this they would drown the rest
_COSINE_SCALE = 12.0
WORD_KINDS = ("colour", "shape", "character", "value")  # what answers are made of
# Seconds that an event may fall on.
LONGEST_S = int(max(max(level.frames) * max(level.steps_s) for level in LEVELS))
# What is hard to see weighs more.
_KIND_WEIGHTS = {"shape": 2.0, "character": 4.0, "motion": 2.0}


class VisualHeads(nn.Module):
    """Auxiliary heads on the merged visual tokens (V, width)."""

    def __init__(self, width: int, tokenizer: Qwen2Tokenizer, quadrants: int = 4):
        super().__init__()
        self.names = KINDS
        self.quadrants = quadrants
        self.linear = nn.ModuleDict(
            {kind: nn.Linear(width, quadrants * (1 + len(names))) for kind, names in self.names.items()}
        )
        self.place = nn.Linear(width, 2)
        self.nothing = nn.ParameterDict({kind: nn.Parameter(torch.randn(width)) for kind in WORD_KINDS})
        self.spellings = {kind: _spellings(self.names[kind], tokenizer) for kind in self.nothing}
        self.place_answers = [_answer_ids(name, "position", tokenizer) for row in PLACES for name in row]
        self.second_answers = [torch.tensor(tokenizer(str(second)).input_ids) for second in range(LONGEST_S)]
        self.no_moment = nn.Parameter(torch.randn(width))
        self.motion_answers = [_answer_ids(name, "motion", tokenizer) for name in self.names["motion"]]

    def quadrant_loss(self, tokens: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Weighted mean cross entropy over kinds; labels int64 (V, quadrants) per kind, 0 = nothing."""
        losses = []
        for kind, head in self.linear.items():
            logits = head(tokens).view(-1, 1 + len(self.names[kind]))
            loss = F.cross_entropy(logits, labels[kind].reshape(-1), self._weights(kind, tokens))
            losses.append(_KIND_WEIGHTS.get(kind, 1.0) * loss)
        return torch.stack(losses).sum() / sum(_KIND_WEIGHTS.get(kind, 1.0) for kind in self.names)

    def place_loss(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Squared error of down and right, in units of a third of a side; places float (V, 2), 0-1."""
        return 9 * F.mse_loss(self.place(tokens), places)

    def pointing_loss(
        self, tokens: torch.Tensor, labels: dict[str, torch.Tensor], ninths: torch.Tensor, embedding: torch.Tensor
    ) -> torch.Tensor:
        """Cross entropy of cosines between visual tokens and the answers on place, and on motion where a thing moves.

        ninths int64 (V,): of the thing that a token shows, NO_LABEL where it shows none.
        """
        place = _cosines(tokens, self.place_answers, embedding)
        losses = [F.cross_entropy(place, ninths, ignore_index=NO_LABEL)] if (ninths != NO_LABEL).any() else []
        if (ninths == NO_LABEL).any():
            losses.append(-place[ninths == NO_LABEL].log_softmax(-1).mean())  # least where all are alike
        motion = labels["motion"].amax(1)
        if (motion > 0).any():
            cosines = _cosines(tokens[motion > 0], self.motion_answers, embedding)
            losses.append(F.cross_entropy(cosines, motion[motion > 0] - 1))
        return torch.stack(losses).sum()

    def moment_loss(
        self, states: torch.Tensor, labels: dict[str, torch.Tensor], seconds: torch.Tensor, embedding: torch.Tensor
    ) -> torch.Tensor:
        """Cross entropy of cosines between the language model's states at visual tokens (V, width) and its words.

        seconds int64 (V,): when a thing came or went under a token, NO_LABEL where none did.
        """
        rows = _cosines(states, self.second_answers, embedding)
        nothing = _COSINE_SCALE * F.normalize(states, dim=-1) @ F.normalize(self.no_moment, dim=-1)
        weights = states.new_ones(1 + len(self.second_answers))
        weights[0] = NOTHING_WEIGHT
        truth = torch.where(seconds == NO_LABEL, 0, 1 + seconds)
        losses = [F.cross_entropy(torch.cat([nothing[:, None], rows], 1), truth, weights)]
        motion = labels["motion"].amax(1)
        if (motion > 0).any():
            cosines = _cosines(states[motion > 0], self.motion_answers, embedding)
            losses.append(F.cross_entropy(cosines, motion[motion > 0] - 1))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def share_seen(self, tokens: torch.Tensor, labels: dict[str, torch.Tensor]) -> dict[str, float]:
        """Share of the patches that show something whose colour, shape or character is named right."""
        shares = {}
        for kind, head in self.linear.items():
            truth = labels[kind].reshape(-1)
            shown = truth > 0
            if shown.any():
                named = head(tokens).view(len(truth), -1).argmax(-1)
                shares[f"sees-{kind}"] = float((named == truth)[shown].float().mean())
        return shares

    def word_loss(self, tokens: torch.Tensor, labels: dict[str, torch.Tensor], embedding: torch.Tensor) -> torch.Tensor:
        """Cross entropy of cosines between visual tokens and word embeddings (vocabulary, width)."""
        losses = []
        for kind, spellings in self.spellings.items():
            words = torch.stack([embedding[ids].mean(0) for ids in spellings])
            rows = torch.cat([self.nothing[kind][None], words])
            logits = _COSINE_SCALE * F.normalize(tokens, dim=-1) @ F.normalize(rows, dim=-1).T
            # A token may show several: each counts by its share of the quadrants that show any.
            shown = F.one_hot(labels[kind], 1 + len(self.names[kind]))[..., 1:].sum(1).to(logits)
            any_shown = shown.sum(-1, keepdim=True)
            truth = torch.cat([(any_shown == 0).to(logits), shown / any_shown.clamp_min(1)], 1)
            weight = torch.where(any_shown[:, 0] > 0, 1.0, NOTHING_WEIGHT)
            losses.append((F.cross_entropy(logits, truth, reduction="none") * weight).sum() / weight.sum())
        return torch.stack(losses).mean()

    def _weights(self, kind: str, like: torch.Tensor) -> torch.Tensor:
        weights = like.new_ones(1 + len(self.names[kind]))
        weights[0] = NOTHING_WEIGHT
        return weights


def _cosines(tokens: torch.Tensor, answers: list[torch.Tensor], embedding: torch.Tensor) -> torch.Tensor:
    """Scaled cosines between tokens (V, width) and the mean embeddings of the answers: (V, answers)."""
    rows = torch.stack([embedding[ids].mean(0) for ids in answers])
    return _COSINE_SCALE * F.normalize(tokens, dim=-1) @ F.normalize(rows, dim=-1).T


def _answer_ids(name: str, category: str, tokenizer: Qwen2Tokenizer) -> torch.Tensor:
    """Ids of all tokens of an answer, in all languages."""
    return torch.tensor([i for language in LANGUAGES for i in tokenizer(language.answer(name, category)).input_ids])


def _spellings(names: tuple[str, ...], tokenizer: Qwen2Tokenizer) -> list[torch.Tensor]:
    """Per name the ids of its one-token spellings: bare, after a space, and in the other languages."""
    found = []
    for name in names:
        written = [name, f" {name}", *(language.word(name) for language in LANGUAGES)]
        ids = {tuple(tokenizer(text).input_ids) for text in written}
        found.append(torch.tensor(sorted(i[0] for i in ids if len(i) == 1)))
    return found


def balance_loss(router_logits: tuple[torch.Tensor, ...], experts: int, top_k: int) -> torch.Tensor:
    """Router balance, layer by layer: 1 when all experts are used alike. Logits (tokens, experts) per layer.

    Summed layer by layer because a layer that overuses an expert must not be excused by another that neglects
    it.
    """
    return torch.stack([load_balancing_loss_func((one,), experts, top_k) for one in router_logits]).mean() / top_k


def answer_loss(
    logits: torch.Tensor, targets: torch.Tensor, question: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss on answer tokens, and which questions were answered right (teacher forced).

    logits (N, vocabulary), targets and question (N,): only the places that carry a target. Returns the mean
    loss and a bool tensor (count,): all tokens of that question's answer are the most likely ones.
    """
    loss = F.cross_entropy(logits, targets)
    with torch.no_grad():
        wrong = (logits.argmax(-1) != targets).long()
        right = torch.zeros(count, dtype=torch.long).index_add_(0, question, wrong) == 0
    return loss, right
