"""Measure how much each MoE layer matters, and find the two thresholds of `modality` that suit a checkpoint.

As in MoDES (arXiv 2511.15690): importances first, then a walk along the frontier of thresholds. Nothing is learnt
from labels: what is to be kept is the full model's own next-token distribution after each calibration prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.checkpoint import Checkpoint
from engines.config import ExpertConfig
from engines.decoding import Decoder
from engines.experts.base import Routing, Skipper, keep_first
from engines.experts.calibration import Calibration
from engines.experts.frontier import Point, best_of, frontier, spread
from engines.experts.modality import ModalityThresholds
from engines.experts.stage import ExpertStage
from engines.media import load_all
from engines.prompt import build_prompt
from engines.results import RunRequest
from engines.sequence import Sequence as PromptSequence
from engines.sequence import build_sequence
from engines.vision.torch_tower import encode_items

# Thresholds are whole thousandths, as the page and the command line write them.
THRESHOLDS = 1001
# Points of the frontier that are tried; a longer frontier is sampled evenly.
MOST_TRIALS = 12

Progress = Callable[[str, int, int], None]
"""Called with what is being measured, how many of its rounds over the prompts are done, and how many there are."""


def calibrate(
    checkpoint: Checkpoint, requests: Iterable[RunRequest], target: float, progress: Progress = lambda *_: None
) -> Calibration:
    """`target` is the share of all (token, expert) pairs to skip. ValueError where it is out of reach."""
    layers = len(checkpoint.structure.moe_layers)
    if not layers:
        raise ValueError("This checkpoint is dense: it has no experts to calibrate.")
    with torch.inference_mode():
        trials = Trials(checkpoint, [_prepare(checkpoint, request) for request in requests])
        importances = layer_importances(trials, layers, progress)
        probe = _Probe()
        trials.run(probe, importances)
        points = spread(frontier(probe.below[True], probe.below[False], probe.pairs, target), MOST_TRIALS)
        skipped: dict[Point, float] = {}

        def damage(point: Point) -> float:
            method = ModalityThresholds(point[0] / 1000, point[1] / 1000)
            divergence, skipped[point] = trials.damage(method, importances)
            progress("thresholds", len(skipped), len(points))
            return divergence

        chosen, divergence = best_of(points, damage)
    return Calibration(
        digest=checkpoint.digest,
        importances=importances,
        options={ModalityThresholds.name: {"visual_threshold": chosen[0] / 1000, "text_threshold": chosen[1] / 1000}},
        target=target,
        skipped=skipped[chosen],
        divergence=divergence,
        prompts=trials.prompts,
    )


def layer_importances(trials: Trials, layers: int, progress: Progress = lambda *_: None) -> tuple[float, ...]:
    """The damage when one layer uses a single expert a token, layer by layer, divided by its mean over the layers."""
    damages = []
    for layer in range(layers):
        damages.append(trials.damage(_OneExpert(layer))[0])
        progress("layer importances", layer + 1, layers)
    mean = sum(damages) / layers
    return tuple(damage / mean if mean else 1.0 for damage in damages)


class Trials:
    """Runs the calibration prompts with one method after the other and compares with the full model."""

    def __init__(self, checkpoint: Checkpoint, sequences: Sequence[PromptSequence]) -> None:
        if not sequences:
            raise ValueError("There is no prompt to calibrate on.")
        self._structure = checkpoint.structure
        self._sequences = sequences
        self._full, _ = self.run(None)

    @property
    def prompts(self) -> int:
        return len(self._sequences)

    def run(self, method: Skipper | None, importances: tuple[float, ...] | None = None) -> tuple[list[Tensor], float]:
        """For every prompt the log-probabilities of the answer's first token, (vocabulary,), and the skipped share."""
        stage = ExpertStage(self._structure, ExpertConfig(), method, importances)
        found = []
        with stage.applied(), stage.counting():
            for sequence in self._sequences:
                stage.begin(sequence.visual[0])
                logits = Decoder(self._structure).prefill(sequence)[0]
                found.append(logits.cpu().double().log_softmax(dim=-1))
        report = stage.report()
        return found, (report.skipped_share if report is not None else None) or 0.0

    def damage(self, method: Skipper, importances: tuple[float, ...] | None = None) -> tuple[float, float]:
        """Mean Kullback-Leibler divergence from the full model in nats, and the share of the pairs skipped."""
        found, skipped = self.run(method, importances)
        divergences = [
            float((full.exp() * (full - other)).sum()) for full, other in zip(self._full, found, strict=True)
        ]
        # Rounding can leave the divergence of equal distributions a hair below 0.
        return max(0.0, sum(divergences) / len(divergences)), skipped


@dataclass(frozen=True)
class _OneExpert(Skipper):
    """One expert a token in one layer."""

    name = "one expert in a layer"

    layer: int

    def keep(self, routing: Routing) -> Tensor:
        tokens, k = routing.weights.shape
        counts = torch.full((tokens,), 1 if routing.layer == self.layer else k, device=routing.weights.device)
        return keep_first(counts, k)


@dataclass(frozen=True)
class _Probe(Skipper):
    """Skips nothing and counts how many pairs each threshold would skip, for visual (True) and text tokens (False)."""

    name = "probe"

    below: dict[bool, list[int]] = field(default_factory=lambda: {kind: [0] * THRESHOLDS for kind in (True, False)})
    sizes: list[int] = field(default_factory=list)

    def keep(self, routing: Routing) -> Tensor:
        scores = routing.weights * routing.importance
        thresholds = torch.arange(THRESHOLDS, dtype=torch.float64).div(1000).to(scores)
        for kind, counts in self.below.items():
            # A token's best expert is kept whatever its score.
            others = scores[routing.tokens.visual == kind][:, 1:].flatten().sort().values
            found = torch.searchsorted(others, thresholds).tolist()
            counts[:] = [before + now for before, now in zip(counts, found, strict=True)]
        self.sizes.append(scores.numel())
        return torch.ones_like(scores, dtype=torch.bool)

    @property
    def pairs(self) -> int:
        return sum(self.sizes)


def _prepare(checkpoint: Checkpoint, request: RunRequest) -> PromptSequence:
    """What enters the language model for a request, nothing pruned."""
    structure = checkpoint.structure
    media = load_all(request.media, limits=request.limits, sampling=request.frames)
    prompt = build_prompt(request, media, checkpoint.processor, checkpoint.device)
    images, videos = (encode_items(structure, items) if items else [] for items in (prompt.images, prompt.videos))
    return build_sequence(structure, prompt, images, videos)
