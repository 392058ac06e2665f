"""The result of a run, put together from what its stages measured."""

from __future__ import annotations

from collections.abc import Collection

from engines.cache.encoder import LEVEL
from engines.cache.prefix import LEVEL as PREFIX_LEVEL
from engines.capabilities import describe_device
from engines.checkpoint import Checkpoint
from engines.device.report import DeviceReport
from engines.memory import PeakMeter, cache_bytes
from engines.precision.pool import WeightPool
from engines.reports import CacheReport, CacheStats, MemoryReport, PruneReport
from engines.results import RunResult
from engines.run import Run
from engines.trace import Trace


def result_of(
    run: Run,
    trace: Trace,
    meter: PeakMeter,
    checkpoint: Checkpoint,
    pool: WeightPool,
    *,
    stop: Collection[int],
    totals: dict[str, CacheStats],
    prepare_s: float,
    device: DeviceReport,
) -> RunResult:
    """`stop` are the tokens that end an answer, `totals` the counters of the caches since the engine started."""
    peak_bytes = meter.peak_bytes()
    tokens = run.tokens
    times_s = run.token_times_s
    answer_tokens = [token for token in tokens if token not in stop]
    pruned = run.pruning.report if run.pruning else run.planned
    report = pruned or PruneReport(None, run.config.pruning.keep_ratio, 0, 0)
    return RunResult(
        answer=str(checkpoint.tokenizer.decode(answer_tokens, skip_special_tokens=True)),
        tokens=tuple(tokens),
        finish_reason=run.finish_reason,
        prompt_tokens=run.prompt_tokens,
        visual_tokens=report.tokens_after,
        ttft_s=times_s[0] if times_s else None,
        tpot_s=(times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None,
        trace=trace,
        prune_report=report,
        cache_stats=CacheReport(
            run={
                level: stats.within(run.owner.scope) if run.owner is not None and stats.queries else stats
                for level, stats in (
                    (LEVEL, run.cache),
                    (PREFIX_LEVEL, run.prefix.stats if run.prefix else CacheStats()),
                )
            },
            total=totals,
        ),
        expert_report=run.experts.report(),
        memory=MemoryReport(
            peak_bytes=peak_bytes,
            peak_source=meter.source,
            weights=pool.weights(run.config.precision),
            kv_cache_bytes=cache_bytes(run.decoder.cache) if run.decoder else 0,
        ),
        warnings=(*run.warnings, *report.notes),
        config=run.config,
        model=checkpoint.name,
        device=describe_device(checkpoint.device),
        prepare_s=prepare_s,
        device_report=device,
        vision_report=run.vision,
        attention_report=run.attention.report(),
        kv_report=run.kv.report(run.decoder.cache) if run.decoder else None,
        precision_report=pool.report(run.config.precision),
        registry=run.registry.evicted(run.kv.rows_held(run.decoder.cache))
        if run.registry is not None and run.decoder is not None
        else run.registry,
    )
