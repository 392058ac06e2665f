"""The engine: one method a stage, in the order in which a request passes them.

    media -> prompt -> encoder cache -> vision -> pruning -> prefill -> decode -> result

Its stream of events is the interface; `answer` wraps it for callers who want only the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from engines import precision
from engines.cache.encoder import LEVEL, EncoderCache, Features
from engines.cancel import Cancelled, cancellable
from engines.capabilities import describe_device, describe_engine
from engines.checkpoint import Checkpoint, load_checkpoint
from engines.config import CacheConfig, CompressionConfig
from engines.decoding import Decoder, Detokeniser, Sampler, stop_tokens
from engines.experts import create as create_skipper
from engines.experts.calibration import load as load_calibration
from engines.experts.stage import ExpertStage
from engines.media import Media, load_all
from engines.memory import PeakMeter, cache_bytes
from engines.precision.pool import WeightPool
from engines.prompt import Prompt, VisualItem, build_prompt, check_question
from engines.pruning import create
from engines.pruning.inside import check as check_inside
from engines.pruning.stage import PruneStage
from engines.results import (
    CacheReport,
    CacheStats,
    Capabilities,
    EngineError,
    Event,
    Finished,
    MediaReady,
    MemoryReport,
    PruneReport,
    RunRequest,
    RunResult,
    StageEnded,
    StageStarted,
    TokenReady,
)
from engines.sequence import Sequence, build_sequence, embed_question
from engines.structure import synchronise
from engines.trace import Tracer
from engines.vision.torch_tower import encode_groups, encode_items, join

ENCODER_CACHE_BYTES = 512 << 20
# How many kinds of shapes the engine remembers having warmed up for.
_WARM_SHAPES = 256


@dataclass
class _Run:
    """What one run gathers on its way."""

    request: RunRequest
    config: CompressionConfig
    experts: ExpertStage
    tracer: Tracer
    warnings: list[str] = field(default_factory=list)
    cache: CacheStats = field(default_factory=CacheStats)
    media: list[Media] = field(default_factory=list)
    prompt_tokens: int = 0
    pruning: PruneStage | None = None
    decoder: Decoder | None = None
    tokens: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: str = "cancelled"

    @property
    def cancelled(self) -> bool:
        return self.request.cancel is not None and self.request.cancel.is_set()


def load_engine(model: str = "demo", device: str = "auto", dtype: str = "auto") -> Engine:
    """Load a checkpoint and put an engine around it. Raises CheckpointError with one sentence when it can't."""
    return Engine(load_checkpoint(model, device, dtype))


class Engine:
    """One loaded checkpoint. Runs are taken one at a time; each may have its own settings."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        encoder_cache_bytes: int = ENCODER_CACHE_BYTES,
        weight_pool_bytes: int | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self._structure = checkpoint.structure
        self._cache = EncoderCache(encoder_cache_bytes)
        native = str(checkpoint.dtype).removeprefix("torch.")
        native = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(native, native)
        if weight_pool_bytes is None:
            weight_pool_bytes = psutil.virtual_memory().available // 2
        self._pool = WeightPool(self._structure, checkpoint.device, native, weight_pool_bytes)
        self._calibration = load_calibration(checkpoint.digest, len(self._structure.moe_layers))
        self._lock = threading.Lock()
        self._warm: set[tuple[Any, ...]] = set()
        self._stop = stop_tokens(checkpoint.model, checkpoint.tokenizer)
        self._temporal_patch = int(self._structure.config.vision_config.temporal_patch_size)

    def capabilities(self) -> Capabilities:
        return describe_engine(self.checkpoint, self._calibration)

    def cache_totals(self) -> dict[str, CacheStats]:
        """Counters since the engine started, per level."""
        return {LEVEL: self._cache.stats()}

    def clear_caches(self) -> None:
        """Forget every cached entry; waits for a run in progress."""
        with self._lock:
            self._cache.clear()

    def close(self) -> None:
        with self._lock:
            self._cache.clear()
            self._pool.clear()

    def answer(self, request: RunRequest, config: CompressionConfig) -> RunResult:
        """Run to the end and hand back the result."""
        for event in self.run(request, config):
            if isinstance(event, Finished):
                return event.result
        raise EngineError("The run ended without a result.")

    def check(self, config: CompressionConfig) -> None:
        """Raise ValueError or EngineError for settings that this checkpoint or device cannot do."""
        create(config.pruning.method, config.pruning.options)
        check_inside(config.pruning, self._structure)
        create_skipper(config.experts.method, config.experts.options, self._calibration)
        own = self._structure.own_top_k
        if config.experts.top_k is not None:
            if own is None:
                raise EngineError("experts.top_k has no meaning here: this checkpoint is dense and has no experts.")
            if config.experts.top_k > own:
                raise ValueError(
                    f"experts.top_k is {config.experts.top_k}; this checkpoint uses {own} experts a token, "
                    f"so it must be at least 1 and at most {own}."
                )
        if config.experts.skipping and own is None:
            raise EngineError("experts.method has no meaning here: this checkpoint is dense and has no experts.")
        for part, chosen in vars(config.precision).items():
            method = precision.METHODS.get(chosen)
            reason = method.unavailable(self.checkpoint.device) if method else ""
            if reason:
                raise EngineError(f"precision.{part}={chosen} is not available: {reason}")

    def run(self, request: RunRequest, config: CompressionConfig) -> Generator[Event, None, None]:
        """Answer the question and say what happens on the way, ending with Finished.

        Raises EngineError, MediaError or ValueError with one sentence for the person who asked. Closing the
        iterator ends the run at the next token, setting `request.cancel` at the next layer.
        """
        self.check(config)
        check_question(request, self.checkpoint.tokenizer)
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            try:
                yield from self._run(request, config, stack)
            except torch.OutOfMemoryError as error:
                raise EngineError(
                    "The device ran out of memory; use fewer or smaller media, fewer frames, or a lower precision."
                ) from error

    def _run(self, request: RunRequest, config: CompressionConfig, stack: ExitStack) -> Iterator[Event]:
        start_s = time.perf_counter()
        if self._pool.missing(config.precision):
            yield StageStarted("preparing weights")
        self._pool.prepare(config.precision)
        stack.enter_context(self._pool.applied(config.precision))
        experts = ExpertStage.of(self._structure, config.experts, self._calibration)
        stack.enter_context(experts.applied())
        stack.enter_context(cancellable(self._structure, request.cancel))
        # After Cancelled the stages below see the same flag, and end with what there is.
        if request.warm_up:
            with suppress(Cancelled):
                yield from self._warm_up(request, config, experts)
        prepare_s = time.perf_counter() - start_s

        stack.enter_context(experts.counting())
        meter = PeakMeter(self.checkpoint.device)
        meter.start()
        run = _Run(request, config, experts, Tracer(lambda: synchronise(self.checkpoint.device)))
        run.warnings += experts.notes
        with suppress(Cancelled):
            yield from self._stages(run)
        trace = run.tracer.finish()
        yield Finished(self._result(run, trace, meter, prepare_s))

    def _stages(self, run: _Run) -> Iterator[Event]:
        """The stages, each timed by a span. The clock stands still while the reader holds an event."""
        tracer = run.tracer

        def stage(name: str, work: Callable[[dict[str, Any]], Any]) -> Iterator[Event]:
            with tracer.paused():
                yield StageStarted(name)
            with tracer.span(name) as attributes, torch.inference_mode():
                outcome[0] = work(attributes)
            with tracer.paused():
                yield StageEnded(tracer.last)

        outcome: list[Any] = [None]
        yield from stage("decode media", lambda span: self._decode_media(run, span))
        with tracer.paused():
            yield MediaReady(tuple(run.media))
        if run.cancelled:
            return
        yield from stage("preprocess", lambda span: self._preprocess(run, span))
        prompt: Prompt = outcome[0]
        yield from stage("encoder-cache lookup", lambda span: self._look_up(run, prompt, span))
        found: _Found = outcome[0]
        if run.cancelled:
            return
        yield from stage("vision encode", lambda span: self._encode(prompt, found, span))
        features: dict[int, Features] = outcome[0]
        yield from stage("prune", lambda span: self._prune(run, prompt, features, span))
        sequence: Sequence = outcome[0]
        if run.cancelled:
            return
        sampler = Sampler(run.request.sampling)
        yield from stage("prefill", lambda span: self._prefill(run, sequence, sampler, span))
        yield from self._decode(run, outcome[0], sampler)

    def _decode_media(self, run: _Run, span: dict[str, Any]) -> None:
        request, modality = run.request, run.config.modality
        run.media = load_all(request.media, limits=request.limits, sampling=request.frames)
        for kind, used in (("image", modality.image), ("video", modality.video)):
            dropped = [item for item in run.media if item.kind == kind and not used]
            if dropped:
                run.media = [item for item in run.media if item.kind != kind]
                run.warnings.append(f"{len(dropped)} {kind}{'s' * (len(dropped) > 1)} left out of the prompt.")
        run.warnings += [f"{item.name}: {note}" for item in run.media for note in item.notes]
        span["items"] = len(run.media)
        span["frames"] = sum(item.n_frames for item in run.media)

    def _preprocess(self, run: _Run, span: dict[str, Any]) -> Prompt:
        prompt = self._build_prompt(run.request, run.media)
        limit = getattr(self._structure.text_config, "max_position_embeddings", None)
        if limit is not None and prompt.length + run.request.sampling.max_new_tokens > limit:
            raise EngineError(
                f"The prompt has {prompt.length} tokens and the answer may have "
                f"{run.request.sampling.max_new_tokens}; this checkpoint takes {limit} together. "
                "Use fewer or smaller media, or fewer frames."
            )
        run.prompt_tokens = prompt.length
        span["prompt_tokens"] = prompt.length
        span["patches"] = sum(item.pixels.shape[0] for item in prompt.in_prompt_order())
        return prompt

    def _build_prompt(self, request: RunRequest, media: list[Media]) -> Prompt:
        return build_prompt(request, media, self.checkpoint.processor, self.checkpoint.device)

    def _look_up(self, run: _Run, prompt: Prompt, span: dict[str, Any]) -> _Found:
        """Find each image and frame group of the prompt in the encoder cache."""
        span["enabled"] = run.config.cache.encoder
        if not run.config.cache.encoder:
            return _Found({}, {}, False)
        config = run.config.precision
        setting = f"{self.checkpoint.digest}:{self.checkpoint.dtype}:{config.vision}:{config.projector}"
        found = _Found({}, {}, True)
        hits, reused_bytes, saved_s = 0, 0, 0.0
        for item in prompt.in_prompt_order():
            for group in range(item.groups):
                key = EncoderCache.key(item.group_pixels(group), (1, *item.grid[1:]), setting)
                found.keys[item.index, group] = key
                entry = self._cache.get(key)
                if entry is not None:
                    found.features[item.index, group] = entry[0]
                    hits += 1
                    reused_bytes += entry[0].nbytes
                    saved_s += entry[1]
        run.cache = CacheStats(queries=len(found.keys), hits=hits, bytes=reused_bytes, saved_s=saved_s)
        span["queries"], span["hits"] = run.cache.queries, hits
        return found

    def _encode(self, prompt: Prompt, found: _Found, span: dict[str, Any]) -> dict[int, Features]:
        """Features of every item by its index. What was found is reused, the rest goes through the tower."""
        features: dict[int, Features] = {}
        encoded_patches = 0
        if not found.enabled:
            # All images in one call and all videos in another, exactly as transformers' forward pass does.
            for items in (prompt.images, prompt.videos):
                if items:
                    for item, encoded in zip(items, encode_items(self._structure, items), strict=True):
                        features[item.index] = encoded
                        encoded_patches += item.pixels.shape[0]
        else:
            for item in prompt.in_prompt_order():
                encoded_patches += self._encode_missing(item, found)
                features[item.index] = join([found.features[item.index, group] for group in range(item.groups)])
        span["encoded_patches"] = encoded_patches
        span["visual_tokens"] = sum(item.pooled.shape[0] for item in features.values())
        return features

    def _encode_missing(self, item: VisualItem, found: _Found) -> int:
        """Encode the groups of one item that the cache did not have, equal ones once; returns patches encoded."""
        first_of_key: dict[str, int] = {}
        for group in range(item.groups):
            if (item.index, group) not in found.features:
                first_of_key.setdefault(found.keys[item.index, group], group)
        if not first_of_key:
            return 0
        start_s = time.perf_counter()
        encoded = encode_groups(self._structure, item, list(first_of_key.values()))
        synchronise(self.checkpoint.device)
        cost_s = (time.perf_counter() - start_s) / len(encoded)
        by_key = dict(zip(first_of_key, encoded, strict=True))
        for key, features in by_key.items():
            self._cache.put(key, features, cost_s)
        for group in range(item.groups):
            if (item.index, group) not in found.features:
                found.features[item.index, group] = by_key[found.keys[item.index, group]]
        return len(encoded) * item.grid[1] * item.grid[2]

    def _prune(self, run: _Run, prompt: Prompt, features: dict[int, Features], span: dict[str, Any]) -> Sequence:
        sequence = build_sequence(
            self._structure,
            prompt,
            [features[item.index] for item in prompt.images],
            [features[item.index] for item in prompt.videos],
        )
        run.pruning = PruneStage(
            self._structure,
            run.config.pruning,
            sequence,
            [(item, features[item.index]) for item in prompt.in_prompt_order()],
            temporal_patch=self._temporal_patch,
            seed=run.request.sampling.seed,
            text=embed_question(self._structure, prompt),
        )
        entering = run.pruning.enter()
        span |= run.pruning.attributes()
        return entering

    def _prefill(self, run: _Run, sequence: Sequence, sampler: Sampler, span: dict[str, Any]) -> int:
        assert run.pruning is not None
        run.decoder = Decoder(self._structure, run.pruning.cut(run.experts.narrow))
        span["tokens"] = sequence.length
        span["visual_tokens"] = sequence.visual_tokens
        run.experts.begin(sequence.visual[0])
        logits = run.decoder.prefill(sequence)
        span |= run.pruning.inside_attributes()
        return sampler.draw(logits)

    def _decode(self, run: _Run, token: int, sampler: Sampler) -> Iterator[Event]:
        """From the first token on: detokenise, hand it out, run the model for the next, until the answer ends."""
        assert run.decoder is not None
        tracer, detokeniser = run.tracer, Detokeniser(self.checkpoint.tokenizer)
        while True:
            run.tokens.append(token)
            with tracer.span("detokenise", token=len(run.tokens)):
                text = detokeniser.add(token)
            run.token_times_s.append(tracer.last.end_s)
            if token in self._stop:
                run.finish_reason = "stop"
            elif len(run.tokens) >= run.request.sampling.max_new_tokens:
                run.finish_reason = "length"
            ended = run.finish_reason != "cancelled"
            if ended:
                with tracer.span("detokenise", token=len(run.tokens)):
                    text += detokeniser.finish()
            with tracer.paused():
                yield TokenReady(len(run.tokens) - 1, token, text, run.token_times_s[-1])
            if ended or run.cancelled:
                return
            with tracer.span("decode", token=len(run.tokens) + 1), torch.inference_mode():
                token = sampler.draw(run.decoder.step(token))

    def _warm_up(self, request: RunRequest, config: CompressionConfig, experts: ExpertStage) -> Iterator[Event]:
        """Run shapes that this engine has not yet seen once, untimed, touching no cache and no counter."""
        plain = replace(config, cache=CacheConfig())
        # The same request again has the same shapes: no need to decode its media once more to find that out.
        asked = (
            plain.fingerprint(),
            request.question,
            request.history,
            request.frames,
            *map(_file_state, request.media),
        )
        if asked in self._warm:
            return
        run = _Run(request, plain, experts, Tracer(lambda: None))
        with torch.inference_mode():
            self._decode_media(run, {})
            prompt = self._preprocess(run, {})
        signature = (plain.fingerprint(), *prompt.shape_signature())
        if signature in self._warm:
            self._remember(asked)
            return
        yield StageStarted("warming up")
        with torch.inference_mode():
            features = self._encode(prompt, _Found({}, {}, False), {})
            token = self._prefill(run, self._prune(run, prompt, features, {}), Sampler(request.sampling), {})
            assert run.decoder is not None
            run.decoder.step(token)
        self._remember(asked)
        self._remember(signature)

    def _remember(self, key: tuple[Any, ...]) -> None:
        if len(self._warm) >= _WARM_SHAPES:
            self._warm.clear()
        self._warm.add(key)

    def _result(self, run: _Run, trace: Any, meter: PeakMeter, prepare_s: float) -> RunResult:
        peak_bytes = meter.peak_bytes()
        tokens = run.tokens
        times_s = run.token_times_s
        answer_tokens = [token for token in tokens if token not in self._stop]
        pruned = run.pruning.report if run.pruning else None
        report = pruned or PruneReport(None, run.config.pruning.keep_ratio, 0, 0)
        return RunResult(
            answer=str(self.checkpoint.tokenizer.decode(answer_tokens, skip_special_tokens=True)),
            tokens=tuple(tokens),
            finish_reason=run.finish_reason,
            prompt_tokens=run.prompt_tokens,
            visual_tokens=report.tokens_after,
            ttft_s=times_s[0] if times_s else None,
            tpot_s=(times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None,
            trace=trace,
            prune_report=report,
            cache_stats=CacheReport(run={LEVEL: run.cache}, total=self.cache_totals()),
            expert_report=run.experts.report(),
            memory=MemoryReport(
                peak_bytes=peak_bytes,
                peak_source=meter.source,
                weights=self._pool.weights(run.config.precision),
                kv_cache_bytes=cache_bytes(run.decoder.cache) if run.decoder else 0,
            ),
            warnings=(*run.warnings, *report.notes),
            config=run.config,
            model=self.checkpoint.name,
            device=describe_device(self.checkpoint.device),
            prepare_s=prepare_s,
        )


def _file_state(path: Path) -> tuple[str, int, int]:
    """Changes when the file does; a file that is not there is left for the decoder to speak of."""
    try:
        state = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), state.st_mtime_ns, state.st_size


@dataclass
class _Found:
    """What the encoder cache had, by (item, frame group)."""

    features: dict[tuple[int, int], Features]
    keys: dict[tuple[int, int], str]
    enabled: bool
