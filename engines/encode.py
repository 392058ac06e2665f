"""From pixels to visual tokens: what the encoder cache has is reused, the rest goes through the vision tower."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from engines.cache.content import group_contents
from engines.cache.encoder import NOBODY, EncoderCache, Features
from engines.cache.scope import Owner
from engines.checkpoint import Checkpoint
from engines.config import VisionConfig
from engines.prompt import Prompt, VisualItem
from engines.reports import CacheStats
from engines.run import Run
from engines.structure import synchronise
from engines.vision import report as vision_report
from engines.vision.torch_tower import encode_groups, encode_items, join


@dataclass
class Found:
    """What the encoder cache had, by (item, frame group)."""

    features: dict[tuple[int, int], Features]
    keys: dict[tuple[int, int], str]
    enabled: bool
    owner: Owner = NOBODY


class EncodeStage:
    """The vision tower of one checkpoint behind the encoder cache."""

    def __init__(self, checkpoint: Checkpoint, cache: EncoderCache, temporal_patch: int) -> None:
        self._structure, self._device = checkpoint.structure, checkpoint.device
        self._weights = f"{checkpoint.digest}:{checkpoint.dtype}"
        self._cache = cache
        self._temporal_patch = temporal_patch

    def look_up(self, run: Run, prompt: Prompt, span: dict[str, Any]) -> Found:
        """Find each image and frame group of the prompt in the encoder cache."""
        span["enabled"] = run.config.cache.encoder and run.owner is not None
        if not run.config.cache.encoder or run.owner is None:
            return Found({}, {}, False)
        config = run.config.precision
        reduction = run.config.vision.features_key()
        formats = (str(config.details(part)) for part in ("vision", "projector"))
        setting = run.owner.below(self._weights, *formats, reduction)
        found = Found({}, {}, True, run.owner)
        hits, reused_bytes, tokens, saved_s = 0, 0, 0, 0.0
        for item in prompt.in_prompt_order():
            for group, content in enumerate(group_contents(item, self._temporal_patch)):
                key = f"{setting}:{content}"
                found.keys[item.index, group] = key
                entry = self._cache.get(key, run.owner)
                if entry is not None:
                    found.features[item.index, group] = entry[0]
                    hits += 1
                    reused_bytes += entry[0].nbytes
                    tokens += len(entry[0].pooled)
                    saved_s += entry[1]
        run.cache = CacheStats(len(found.keys), hits, reused_bytes, saved_s=saved_s, tokens=tokens)
        span["queries"], span["hits"] = run.cache.queries, hits
        return found

    def encode(self, run: Run, prompt: Prompt, found: Found, span: dict[str, Any]) -> dict[int, Features]:
        """Features of every item by its index. What was found is reused, the rest goes through the tower."""
        features: dict[int, Features] = {}
        encoded_patches = 0
        if not found.enabled:
            # All images in one call and all videos in another, exactly as transformers' forward pass does.
            for items in (prompt.images, prompt.videos):
                if items:
                    encoded_items = encode_items(self._structure, items, run.config.vision)
                    for item, encoded in zip(items, encoded_items, strict=True):
                        features[item.index] = encoded
                        encoded_patches += item.pixels.shape[0]
        else:
            before = self._cache.evictions
            for item in prompt.in_prompt_order():
                encoded_patches += self._encode_missing(item, found, run.config.vision)
                features[item.index] = join([found.features[item.index, group] for group in range(item.groups)])
            run.cache = replace(run.cache, evictions=self._cache.evictions - before)
        span["encoded_patches"] = encoded_patches
        span["visual_tokens"] = sum(item.pooled.shape[0] for item in features.values())
        run.encoded = [(item, features[item.index]) for item in prompt.in_prompt_order()]
        if run.encoded:
            run.vision = vision_report.describe(run.config.vision, self._structure, [item for item, _ in run.encoded])
            if run.config.vision.active:
                span |= {"reduced_after_layer": run.vision.after_layer, "units_after": run.vision.units_after}
        return features

    def _encode_missing(self, item: VisualItem, found: Found, reduction: VisionConfig) -> int:
        """Encode the groups of one item that the cache did not have, equal ones once; returns patches encoded."""
        first_of_key: dict[str, int] = {}
        for group in range(item.groups):
            if (item.index, group) not in found.features:
                first_of_key.setdefault(found.keys[item.index, group], group)
        if not first_of_key:
            return 0
        start_s = time.perf_counter()
        encoded = encode_groups(self._structure, item, list(first_of_key.values()), reduction)
        synchronise(self._device)
        cost_s = (time.perf_counter() - start_s) / len(encoded)
        by_key = dict(zip(first_of_key, encoded, strict=True))
        for key, features in by_key.items():
            self._cache.put(key, features, cost_s, found.owner)
        for group in range(item.groups):
            if (item.index, group) not in found.features:
                found.features[item.index, group] = by_key[found.keys[item.index, group]]
        return len(encoded) * item.grid[1] * item.grid[2]
