"""The engine: one method a stage, in the order in which a request passes them.

    media -> prompt -> prefix cache -> encoder cache -> vision -> pruning -> prefill -> decode -> result

Its stream of events is the interface; `answer` wraps it for callers who want only the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import psutil
import torch

from engines import checks, warm
from engines.attention.stage import AttentionStage
from engines.cache.content import are_bundled
from engines.cache.encoder import LEVEL, EncoderCache, Features
from engines.cache.prefix import LEVEL as PREFIX_LEVEL
from engines.cache.prefix import PrefixCache
from engines.cache.scope import GLOBAL, Owner
from engines.cache.stage import PrefixStage, refusal
from engines.cancel import Cancelled, cancellable
from engines.capabilities import describe_engine
from engines.checkpoint import Checkpoint, load_checkpoint
from engines.compare import SideEvent
from engines.config import CacheConfig, CompressionConfig
from engines.decoding import Decoder, Detokeniser, Sampler, stop_tokens
from engines.device.monitor import Monitor
from engines.device.placement import placement
from engines.device.report import DeviceReading, Placement
from engines.divergence import measure, most_tokens
from engines.divergence_report import DivergenceReport
from engines.encode import EncodeStage, Found
from engines.experts.calibration import load as load_calibration
from engines.experts.stage import ExpertStage
from engines.kv.stage import KVStage
from engines.media import Media, load_all
from engines.memory import PeakMeter
from engines.outcome import result_of
from engines.precision.collapse import measure_collapse
from engines.precision.pool import WeightPool
from engines.precision.statistics import load as load_statistics
from engines.prompt import Prompt, build_prompt, check_question
from engines.pruning.adaptive import DeviceReader, KeepRatioController, settled
from engines.pruning.stage import PruneStage
from engines.reports import CacheStats, CollapseReport
from engines.results import (
    Capabilities,
    EngineError,
    Event,
    Finished,
    MediaReady,
    RunRequest,
    RunResult,
    StageEnded,
    StageStarted,
    TokenReady,
)
from engines.run import Run
from engines.sequence import Sequence, build_sequence, embed_question
from engines.settings import fingerprint
from engines.structure import synchronise
from engines.tokens.build import positions_of, registry_of, rows_visual
from engines.trace import Tracer
from engines.vision import report as vision_report

ENCODER_CACHE_BYTES = 512 << 20
PREFIX_CACHE_BYTES = 1 << 30
# How long a reading of the device is waited for; the first one opens the reader.
READING_S, FIRST_READING_S = 0.5, 3.0


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
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ) -> None:
        self.checkpoint = checkpoint
        self._structure = checkpoint.structure
        self._cache = EncoderCache(encoder_cache_bytes)
        self._prefixes = PrefixCache(prefix_cache_bytes)
        native = str(checkpoint.dtype).removeprefix("torch.")
        native = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(native, native)
        if weight_pool_bytes is None:
            # The checkpoint's own weights are there already, and half of what is still free may go to others.
            own = sum(parameter.nbytes for parameter in checkpoint.model.parameters())
            on_gpu = checkpoint.device.type == "cuda"
            free = torch.cuda.mem_get_info(checkpoint.device)[0] if on_gpu else psutil.virtual_memory().available
            weight_pool_bytes = own + free // 2
        self._pool = WeightPool(
            self._structure,
            checkpoint.device,
            native,
            weight_pool_bytes,
            checkpoint.folder,
            load_statistics(checkpoint.digest),
        )
        self._monitor = Monitor.of(checkpoint.device)
        self._calibration = load_calibration(checkpoint.digest, len(self._structure.moe_layers))
        self._adapted = KeepRatioController(DeviceReader(checkpoint.device, self._cache, self._monitor))
        self._lock = threading.Lock()
        self._warm = warm.WarmShapes()
        self._stop = stop_tokens(checkpoint.model, checkpoint.tokenizer)
        self._temporal_patch = int(self._structure.config.vision_config.temporal_patch_size)
        self._encoding = EncodeStage(checkpoint, self._cache, self._temporal_patch)

    def capabilities(self) -> Capabilities:
        return describe_engine(self.checkpoint, self.read_device(FIRST_READING_S), self._calibration)

    def placement(self) -> Placement:
        """Where the weights lie now."""
        return placement(self._structure)

    def read_device(self, timeout_s: float = READING_S) -> DeviceReading:
        """What the device says now, or why it says nothing; never waits for longer, nor for a run."""
        return self._monitor.fresh(timeout_s)

    def cache_totals(self) -> dict[str, CacheStats]:
        """Counters since the engine started, per level."""
        return {LEVEL: self._cache.stats(), PREFIX_LEVEL: self._prefixes.stats()}

    def clear_caches(self, level: str | None = None, tenant: str | None = None, scope: str | None = None) -> None:
        """Forget the entries of a level, or of all, that one tenant owns, or all do, and that were shared at one scope,
        or at any; waits for a run in progress.
        """
        with self._lock:
            if level in (None, LEVEL):
                self._cache.clear(tenant, scope)
            if level in (None, PREFIX_LEVEL):
                self._prefixes.clear(tenant, scope)

    def close(self) -> None:
        with self._lock:
            self._cache.clear()
            self._prefixes.clear()
            self._pool.clear()

    def answer(self, request: RunRequest, config: CompressionConfig) -> RunResult:
        """Run to the end and hand back the result."""
        for event in self.run(request, config):
            if isinstance(event, Finished):
                return event.result
        raise EngineError("The run ended without a result.")

    def check_fp16(self, request: RunRequest) -> CollapseReport:
        """Answer the request at full precision and count, by layer, the values that fp16 would lose.

        Raises EngineError, MediaError or ValueError with one sentence for the person who asked. Setting
        `request.cancel` ends it as EngineError.
        """
        check_question(request, self.checkpoint.tokenizer)
        full = CompressionConfig.full().precision
        with self._lock, cancellable(self._structure, request.cancel):
            self._pool.prepare(full)
            try:
                return measure_collapse(self.checkpoint, request)
            except Cancelled:
                raise EngineError("Stopped before every layer was seen.") from None

    def divergence(
        self, request: RunRequest, config: CompressionConfig, answer: tuple[int, ...] = ()
    ) -> Iterator[SideEvent | DivergenceReport]:
        """How far the compressed model's predictions are from the full one's along the full one's answer.

        `answer` are its tokens, if they are known. Yields the events of both runs and ends with the report; without
        it where `request.cancel` was set. Raises as `run` does.
        """
        tokenizer = self.checkpoint.tokenizer
        most = most_tokens(int(self._structure.text_config.vocab_size))
        yield from measure(self, request, config, answer=answer, most=most, text_of=lambda one: tokenizer.decode([one]))

    def check(self, config: CompressionConfig) -> None:
        """Raise ValueError or EngineError for settings that this checkpoint or device cannot do."""
        checks.check(config, self._structure, self._calibration, self.checkpoint.device)

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
        attention = AttentionStage(self._structure, config.attention)
        stack.enter_context(attention.applied())
        kv = KVStage(self._structure, config.kv, request.sampling.seed)
        stack.enter_context(kv.applied())
        stack.enter_context(cancellable(self._structure, request.cancel))
        adaptation = self._adapted.step(config.pruning.keep_ratio) if config.pruning.adaptive else None
        # After Cancelled the stages below see the same flag, and end with what there is.
        if request.warm_up:
            with suppress(Cancelled):
                yield from self._warm_up(request, settled(config, adaptation), experts, attention, kv)
        if request.watch is not None:
            stack.enter_context(request.watch.applied(self._structure))
        prepare_s = time.perf_counter() - start_s

        stack.enter_context(experts.counting())
        self._pool.start_counting()
        recording = stack.enter_context(self._monitor.recording())
        meter = PeakMeter(self.checkpoint.device)
        meter.start()
        run = Run(request, config, experts, attention, kv, Tracer(lambda: synchronise(self.checkpoint.device)))
        run.adaptation = adaptation
        run.warnings += [*experts.notes, *kv.notes]
        stack.enter_context(run.held)
        with suppress(Cancelled):
            yield from self._stages(run)
        trace = run.tracer.finish()
        result = result_of(
            run,
            trace,
            meter,
            self.checkpoint,
            self._pool,
            stop=self._stop,
            totals=self.cache_totals(),
            prepare_s=prepare_s,
            device=recording.report(len(run.tokens)),
        )
        if config.vision.active and config.vision.measure_fidelity and run.vision is not None:
            yield StageStarted("measuring fidelity")
            with suppress(Cancelled), torch.inference_mode():
                fidelity = vision_report.measure(self._structure, run.encoded, self._temporal_patch)
                result = replace(result, vision_report=replace(run.vision, fidelity=fidelity))
        yield Finished(result)

    def _stages(self, run: Run) -> Iterator[Event]:
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
        yield from stage("prefix-cache lookup", lambda span: self._find_prefix(run, prompt, span))
        sequence: Sequence | None = None
        if run.planned is None:
            yield from stage("encoder-cache lookup", lambda span: self._encoding.look_up(run, prompt, span))
            found: Found = outcome[0]
            if run.cancelled:
                return
            yield from stage("vision encode", lambda span: self._encoding.encode(run, prompt, found, span))
            features: dict[int, Features] = outcome[0]
            yield from stage("prune", lambda span: self._prune(run, prompt, features, span))
            sequence = outcome[0]
            if run.prefix is not None and not run.prefix.settled:
                yield from stage("prefix-cache lookup", lambda span: self._find_pruned_prefix(run, span))
        if run.cancelled:
            return
        sampler = Sampler(run.request.sampling)
        yield from stage("prefill", lambda span: self._prefill(run, sequence, sampler, span))
        token: int = outcome[0]
        if run.config.kv.active:
            yield from stage("compress KV", lambda span: self._compress_kv(run, span))
        yield from self._decode(run, token, sampler)
        self._keep_prefix(run)

    def _decode_media(self, run: Run, span: dict[str, Any]) -> None:
        request, modality = run.request, run.config.modality
        run.media = load_all(request.media, limits=request.limits, sampling=request.frames)
        if request.alter is not None:
            run.media = [request.alter(item) for item in run.media]
        for kind, used in (("image", modality.image), ("video", modality.video)):
            dropped = [item for item in run.media if item.kind == kind and not used]
            if dropped:
                run.media = [item for item in run.media if item.kind != kind]
                run.warnings.append(f"{len(dropped)} {kind}{'s' * (len(dropped) > 1)} left out of the prompt.")
        run.warnings += [f"{item.name}: {note}" for item in run.media for note in item.notes]
        run.owner = self._owner(run)
        span["items"] = len(run.media)
        span["frames"] = sum(item.n_frames for item in run.media)

    def _preprocess(self, run: Run, span: dict[str, Any]) -> Prompt:
        prompt = self._build_prompt(run.request, run.media)
        limit = getattr(self._structure.text_config, "max_position_embeddings", None)
        if limit is not None and prompt.length + run.request.sampling.max_new_tokens > limit:
            raise EngineError(
                f"The prompt has {prompt.length} tokens and the answer may have "
                f"{run.request.sampling.max_new_tokens}; this checkpoint takes {limit} together. "
                "Use fewer or smaller media, or fewer frames."
            )
        run.prompt_tokens = prompt.length
        run.registry = registry_of(self._structure, prompt, self._temporal_patch)
        span["prompt_tokens"] = prompt.length
        span["patches"] = sum(item.pixels.shape[0] for item in prompt.in_prompt_order())
        return prompt

    def _build_prompt(self, request: RunRequest, media: list[Media]) -> Prompt:
        return build_prompt(request, media, self.checkpoint.processor, self.checkpoint.device)

    def _owner(self, run: Run) -> Owner | None:
        """Who owns what this run leaves in the caches and may find there."""
        cache = run.config.cache
        if not (cache.encoder or cache.prefix):
            return None
        public = cache.scope == GLOBAL and are_bundled(run.request.media)
        if cache.scope == GLOBAL and not public:
            run.warnings.append("cache.scope=global is for bundled samples alone: the tenant's own caches were used.")
        resource = fingerprint([item.digest for item in run.media])
        owner = run.request.scope.owner(cache.scope, resource, public=public)
        if owner is None:
            run.warnings.append(f"Nothing was cached: cache.scope={cache.scope}, but the request names none.")
        return owner

    def _find_prefix(self, run: Run, prompt: Prompt, span: dict[str, Any]) -> None:
        """Look for the beginning of the prompt in the prefix cache, before its media are encoded."""
        run.prefix = self._prefix_stage(run, prompt)
        span["enabled"] = run.prefix is not None
        if run.prefix is not None:
            run.held.callback(run.prefix.close)
            run.planned = run.prefix.look_up(span)
        if run.planned is not None:
            assert run.registry is not None
            run.registry = run.registry.pruned(run.planned.cells)

    def _prefix_stage(self, run: Run, prompt: Prompt) -> PrefixStage | None:
        """The prefix cache for this prompt; None where it is off."""
        if not run.config.cache.prefix:
            return None
        assert run.registry is not None
        refused = refusal(run.config)
        run.warnings += [refused] if refused else []
        if refused or run.owner is None:
            return None
        return PrefixStage(
            self._prefixes,
            self._structure,
            run.config,
            run.owner,
            f"{self.checkpoint.digest}:{self.checkpoint.dtype}:{self.checkpoint.device}",
            prompt,
            run.registry,
            seed=run.request.sampling.seed,
            temporal_patch=self._temporal_patch,
            # What becomes of the KV cache may go by the attention of the prompt's last rows, which must then be run.
            least_rows=run.kv.queries_read,
        )

    def _find_pruned_prefix(self, run: Run, span: dict[str, Any]) -> None:
        """Look for the beginning of the prompt once it is known what is kept of its media."""
        assert run.prefix is not None
        assert run.pruning is not None
        assert run.pruning.report is not None
        run.prefix.look_again(run.pruning.report, span)

    def _keep_prefix(self, run: Run) -> None:
        """Leave the prompt and its answer in the prefix cache."""
        if run.prefix is None or run.decoder is None:
            return
        tracer = run.tracer
        encode_s, prefill_s = tracer.seconds("vision encode", "prune"), tracer.seconds("prefill")
        with tracer.span("prefix-cache store") as span, torch.inference_mode():
            # The last token was never run.
            run.prefix.keep(run.decoder, run.tokens[:-1], span, prefill_s=prefill_s, encode_s=encode_s)

    def _prune(self, run: Run, prompt: Prompt, features: dict[int, Features], span: dict[str, Any]) -> Sequence:
        assert run.registry is not None
        sequence = build_sequence(
            self._structure,
            prompt,
            [features[item.index] for item in prompt.images],
            [features[item.index] for item in prompt.videos],
            positions_of(run.registry, self.checkpoint.device),
        )
        run.pruning = PruneStage(
            self._structure,
            run.config.pruning,
            sequence,
            [(item, features[item.index]) for item in prompt.in_prompt_order()],
            temporal_patch=self._temporal_patch,
            seed=run.request.sampling.seed,
            text=embed_question(self._structure, prompt),
            adaptation=run.adaptation,
        )
        entering = run.pruning.enter()
        if run.pruning.report is not None:
            run.registry = run.registry.pruned(run.pruning.report.cells)
        span |= run.pruning.attributes()
        return entering

    def _prefill(self, run: Run, sequence: Sequence | None, sampler: Sampler, span: dict[str, Any]) -> int:
        """Run the prompt, or what the prefix cache did not have of it; `sequence` is None if nothing was encoded."""
        run.decoder = Decoder(self._structure, run.pruning.cut(run.narrow) if run.pruning else None)
        if run.prefix is not None:
            run.prefix.resume(run.decoder)
            sequence = run.prefix.tail(sequence)
            span["cached_tokens"] = run.prefix.stats.tokens
        assert sequence is not None
        span["tokens"] = sequence.length
        span["visual_tokens"] = sequence.visual_tokens
        run.experts.begin(sequence.visual[0])
        run.attention.begin(sequence.visual[0])
        # Compression looks at every row of the cache, those found in the prefix cache too.
        assert run.registry is not None
        run.kv.begin(rows_visual(run.registry, sequence.visual.device))
        if run.request.watch is not None:
            run.request.watch.begin(sequence.visual[0])
        logits = run.decoder.prefill(sequence)
        if run.pruning is not None and run.pruning.layer is not None and run.pruning.report is not None:
            run.registry = run.registry.pruned(run.pruning.report.cells, run.pruning.layer)
        if run.prefix is not None:
            run.prefix.prefilled(run.decoder)
        span |= (run.pruning.inside_attributes() if run.pruning else {}) | run.attention.attributes()
        return sampler.draw(logits)

    def _compress_kv(self, run: Run, span: dict[str, Any]) -> None:
        assert run.decoder is not None
        span |= run.kv.compress(run.decoder.cache)

    def _decode(self, run: Run, token: int, sampler: Sampler) -> Iterator[Event]:
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

    def _warm_up(
        self,
        request: RunRequest,
        config: CompressionConfig,
        experts: ExpertStage,
        attention: AttentionStage,
        kv: KVStage,
    ) -> Iterator[Event]:
        """Run shapes that this engine has not yet seen once, untimed, touching no cache and no counter."""
        plain = replace(config, cache=CacheConfig())
        asked = warm.request_key(request, plain)
        if asked in self._warm:
            return
        run = Run(request, plain, experts, attention, kv, Tracer(lambda: None))
        with torch.inference_mode():
            self._decode_media(run, {})
            prompt = self._preprocess(run, {})
        shape = warm.shape_key(prompt, plain)
        if shape in self._warm:
            self._warm.add(asked)
            return
        if config.cache.prefix:
            # The whole prompt's shapes are not what will run, and would take as long as the cache saves.
            ahead = replace(run, config=config, owner=self._owner(replace(run, config=config)))
            if (cached := self._prefix_stage(ahead, prompt)) is not None and cached.has_media():
                return
        yield StageStarted("warming up")
        with torch.inference_mode():
            features = self._encoding.encode(run, prompt, Found({}, {}, False), {})
            token = self._prefill(run, self._prune(run, prompt, features, {}), Sampler(request.sampling), {})
            assert run.decoder is not None
            if config.kv.active:
                self._compress_kv(run, {})
            run.decoder.step(token)
        self._warm.add(asked, shape)
