"""The two answers, what differs between them, and what each cost."""

from __future__ import annotations

from dataclasses import dataclass

from app.controls import Control, summary
from app.session import Phase, Session, SideView
from app.words import MISSING, count, escape, megabytes, percent, plural, ratio, seconds
from engines.compare import SIDES, Comparison, Segment, Side
from engines.results import RunResult

TITLES = {"full": "Full model", "compressed": "Compressed model"}
CHIPS = {
    Phase.IDLE: "Ready",
    Phase.QUEUED: "Waiting",
    Phase.PREPARING: "Preparing",
    Phase.RUNNING: "Running",
    Phase.DONE: "Done",
    Phase.FAILED: "Failed",
    Phase.STOPPED: "Stopped",
    Phase.NOT_RUN: "Not run",
}
STAGE_WORDS = {"preparing weights": "Converting weights", "warming up": "Warming up", "decode": "Answering"}
FINISH = {"length": "Cut off at the longest answer", "cancelled": "Stopped before its end", "stop": ""}


def answers_html(session: Session, controls: tuple[Control, ...]) -> str:
    """Both answers and what was measured, for whatever state the visitor's run is in."""
    marked: dict[Side, tuple[Segment, ...]] = {}
    if session.comparison is not None:
        marked["full"], marked["compressed"] = session.comparison.segments()
    cards = "".join(_card(side, session, marked.get(side), controls) for side in SIDES)
    return f'<div class="pair">{cards}</div>{_measures(session)}'


def verdict_html(session: Session) -> str:
    """One line that says how things stand. Screen readers read it when it changes, so it is apart from the answers,
    which change with every token."""
    kind, text, legend = "", "", ""
    if session.error:
        kind, text = "wrong", escape(session.error)
    elif session.stopping:
        text = "Stopping after the step in progress."
    elif session.repeat:
        text = f"Repeating to measure: pair {session.repeat + 1} of {session.repeats}."
    elif session.comparison is not None:
        kind, text, legend = _difference(session)
    elif session.stopped:
        kept = any(view.text for view in session.sides.values())
        kind = "stopped"
        text = "Stopped. What was answered until then is kept below." if kept else "Stopped before there was an answer."
    elif session.sides["full"].phase == Phase.QUEUED:
        text = "Waiting for the engine: runs are taken one at a time."
    elif session.active:
        text = "Running: first the full model, then the compressed one, on the same pixels and the same prompt."
    else:
        kind = "idle"
        text = "Add an image or a video, ask a question and press Run. Or start from an example."
    stored = _stored(session)
    role = "alert" if kind == "wrong" else "status"
    return f'{stored}<p class="verdict {kind}" role="{role}" id="verdict">{text}{legend}</p>{_right_answer(session)}'


def wrong_html(sentence: str) -> str:
    """A sentence that must be seen; nothing where there is none."""
    return f'<p class="wrong" role="alert">{escape(sentence)}</p>' if sentence else ""


def _stored(session: Session) -> str:
    kept = session.stored
    if kept is None:
        return ""
    made = kept.made_at[:16].replace("T", " ")
    return (
        f'<p class="stored" role="status" id="stored"><b>Kept comparison of {escape(made)} UTC.</b> Answers and '
        f"figures are those of {escape(kept.model)} on {escape(kept.device)} at that time, pictures are thumbnails. To "
        "run it again, add its media.</p>"
    )


def _right_answer(session: Session) -> str:
    if session.right_answer is None or not session.right:
        return ""
    answer = f"Right answer: <b>{escape(session.right_answer)}</b>"
    return f'<p class="right-answer" role="status" id="right-answer">{answer}</p>'


def _difference(session: Session) -> tuple[str, str, str]:
    comparison = session.comparison
    assert comparison is not None
    first = comparison.first_difference
    if first is None:
        return "same", "Answers are identical, token for token.", ""
    if comparison.full.answer == comparison.compressed.answer:
        return "same", f"Answers read the same; the first token that differs is number {first + 1}.", ""
    legend = ' <span class="legend"><mark class="differs">underlined</mark> is not in the other answer</span>'
    return "different", f"Answers differ: first difference at token {first + 1}.", legend


def _card(side: Side, session: Session, marked: tuple[Segment, ...] | None, controls: tuple[Control, ...]) -> str:
    view = session.sides[side]
    right = session.right.get(side)
    return (
        f'<article class="answer {side}" id="answer-{side}" data-phase="{view.phase.value}">'
        f"<header><h2>{TITLES[side]}</h2>{_phase(view) if right is None else _mark(right)}</header>"
        f'<div class="text" tabindex="0">{_text(side, view, marked)}</div>'
        f"<footer>{_footer(side, view, controls)}</footer></article>"
    )


def _phase(view: SideView) -> str:
    return f'<span class="chip phase-{view.phase.value.replace(" ", "-")}">{CHIPS[view.phase]}</span>'


def _mark(right: bool) -> str:
    kind, icon, word = ("right", "✓", "Right") if right else ("wrong", "×", "Wrong")
    return f'<span class="chip {kind}"><span aria-hidden="true">{icon}</span> {word}</span>'


def _text(side: Side, view: SideView, marked: tuple[Segment, ...] | None) -> str:
    if marked is not None and view.text:
        return "".join(
            escape(piece.text) if piece.same else f'<mark class="differs">{escape(piece.text)}</mark>'
            for piece in marked
        )
    if view.text:
        caret = '<span class="caret" aria-hidden="true"></span>' if view.phase == Phase.RUNNING else ""
        return escape(view.text) + caret
    waiting = {
        Phase.IDLE: "The uncompressed answer appears here."
        if side == "full"
        else "The answer with the switches of the compressed side appears here.",
        Phase.QUEUED: "Waiting for its turn.",
        Phase.PREPARING: f"{STAGE_WORDS.get(view.stage, view.stage)}; not part of the measured time.",
        Phase.RUNNING: f"{STAGE_WORDS.get(view.stage, view.stage).capitalize()} …",
        Phase.DONE: "The model gave an empty answer.",
        Phase.FAILED: "No answer.",
        Phase.STOPPED: "Stopped before the first token.",
        Phase.NOT_RUN: "Not run.",
    }
    return f'<span class="placeholder">{escape(waiting[view.phase])}</span>'


def _footer(side: Side, view: SideView, controls: tuple[Control, ...]) -> str:
    result = view.result
    if result is None:
        return plural(view.tokens, "token") if view.tokens else ""
    parts = [f"{plural(len(result.tokens), 'token')} in {seconds(result.trace.total_s)}"]
    if FINISH.get(result.finish_reason):
        parts.append(FINISH[result.finish_reason])
    if side == "compressed":
        parts.append(", ".join(summary(result.config, controls)) or "all switches off")
    # Notes on the media are the same on both sides and stand under the upload as well.
    warnings = "".join(f'<span class="warning">{escape(text)}</span>' for text in result.warnings)
    return escape(" · ".join(parts)) + warnings


@dataclass(frozen=True)
class Measure:
    """A row of the figures. `less` and `more` are the words for a ratio below and above 1."""

    key: str
    name: str
    help: str
    less: str
    more: str
    better: str


MEASURES = (
    Measure(
        "ttft",
        "Time to first token",
        "From the start of the run, decoding the media included, until the first token is there.",
        "sooner", "later", "sooner",
    ),
    Measure("tokens_per_s", "Tokens per second", "Tokens after the first, per second.", "slower", "faster", "faster"),
    Measure(
        "visual_tokens",
        "Visual tokens",
        "Image and video tokens that the language model saw.",
        "fewer", "more", "fewer",
    ),
    Measure("peak_memory", "Peak memory", "", "less", "more", "less"),
    Measure("weights", "Weights", "Bytes of all weight tensors in use.", "smaller", "larger", "smaller"),
)  # fmt: skip


def _measures(session: Session) -> str:
    results = session.results
    if not results:
        return ""
    comparison = session.comparison
    ratios = comparison.ratios() if comparison is not None else {}
    ranges = comparison.ranges() if comparison is not None and comparison.later else {}
    rows = []
    for measure in MEASURES:
        medians = {side: comparison.medians(side)[measure.key] for side in SIDES} if comparison is not None else {}
        values = [_value(measure, results[side], medians.get(side)) if side in results else MISSING for side in SIDES]
        help_text = measure.help or next(iter(results.values())).memory.peak_source
        rows.append(
            f'<tr data-measure="{measure.key}"><td class="value full">{values[0]}</td>'
            f'<th scope="row">{measure.name}{_ratio_chip(measure, ratios, ranges)}'
            f"<small>{escape(help_text)}</small></th>"
            f'<td class="value compressed">{values[1]}</td></tr>'
        )
    note = f'<p class="hint">{_how_measured(comparison, session)}</p>' if comparison is not None else ""
    return (
        '<table class="measures"><colgroup><col class="side"><col><col class="side"></colgroup>'
        '<thead><tr><th scope="col">Full</th><th scope="col">Measured</th>'
        f'<th scope="col">Compressed</th></tr></thead><tbody>{"".join(rows)}</tbody></table>{note}'
    )


def _how_measured(comparison: Comparison, session: Session) -> str:
    if not comparison.later:
        few = " The repeats were stopped." if session.repeats > 1 else ""
        return f"Ratios are compressed / full. One run each: set Repeats under Sampling to see how far runs vary.{few}"
    return (
        f"Medians of {len(comparison.pairs)} pairs of runs in alternating order. Ratios are compressed / full, median "
        "over the pairs, with the lowest and the highest. Waterfall and heatmap show the first pair."
    )


def _ratio_chip(
    measure: Measure, ratios: dict[str, float | None], ranges: dict[str, tuple[float, float] | None]
) -> str:
    value = ratios.get(measure.key)
    if value is None:
        return ""
    if f"{value:.2f}" == "1.00":
        return f'<span class="ratio">{ratio(value)} <i>same</i></span>{_range(ranges.get(measure.key))}'
    word = measure.less if value < 1 else measure.more
    kind = "better" if word == measure.better else "worse"
    return f'<span class="ratio {kind}">{ratio(value)} <i>{word}</i></span>{_range(ranges.get(measure.key))}'


def _range(limits: tuple[float, float] | None) -> str:
    if limits is None or f"{limits[0]:.2f}" == f"{limits[1]:.2f}":
        return ""
    return f'<span class="range">{limits[0]:.2f} to {ratio(limits[1])}</span>'


def _value(measure: Measure, result: RunResult, median: float | None) -> str:
    """A figure of one side; times are medians over its runs where there is more than one."""
    if measure.key == "ttft":
        return seconds(result.ttft_s if median is None else median)
    if measure.key == "tokens_per_s":
        speed = result.tokens_per_s if median is None else median
        return f"{speed:.1f}" if speed is not None else "<small>needs two tokens</small>"
    if measure.key == "visual_tokens":
        report = result.prune_report
        if not report.tokens_before:
            return "<small>no media</small>"
        share = percent(report.achieved_keep_ratio)
        return f"{count(report.tokens_after)} <small>of {count(report.tokens_before)} <span>({share})</span></small>"
    if measure.key == "peak_memory":
        if result.memory.peak_bytes is None:
            return "<small>not available here</small>"
        return megabytes(result.memory.peak_bytes)
    return megabytes(result.memory.weight_bytes)
