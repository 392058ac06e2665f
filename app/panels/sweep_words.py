"""A sweep in words: how far it is, how it stands, what was found and what was left out."""

from __future__ import annotations

from app.panels.sweep_view import SweepView
from app.plots.sweep import settings_words
from app.words import count, escape, plural, seconds
from engines.sweep.find import Found
from engines.sweep.runner import SweepProgress
from engines.sweep.space import Point

MOST_PROBLEMS = 20
BUNDLED = {"all": "the benchmark", "stills": "the benchmark's stills", "clips": "the benchmark's clips"}
SAME_QUESTIONS = "It was chosen on the same questions that judged it; on others it is likely a little lower."


def standing(view: SweepView) -> str:
    set_name = BUNDLED.get(view.set_name, view.set_name)
    asked = f"{plural(len(view.plan.points) - 1, 'point')} and the full model on {set_name}"
    if view.complete:
        return f"Done: {asked}, {plural(view.plan.items, 'question')}, {plural(view.plan.runs, 'run')}."
    return f"Stopped after {count(view.done)} of {plural(view.plan.runs, 'run')}: {asked}. Go on when you like."


def progress(step: SweepProgress) -> str:
    left = "" if step.left_s is None else f", about {seconds(step.left_s)} left"
    return f"{count(step.done)} of {plural(step.total, 'run')}{left}."


def line(said: str, busy: bool) -> str:
    return f'<p data-busy="{str(busy).lower()}" role="status">{escape(said)}</p>'


def found_words(found: Found, chosen: Point | None, floor: float) -> str:
    tried = f"{plural(len(found.tried), 'value')} tried. {found.note}"
    keeping = f"{floor * 100:g} % of the full model's quality"
    if chosen is None:
        return f"No value keeps {keeping}. {tried}"
    return f"Fastest with {keeping}: {settings_words(chosen)}. {tried} {SAME_QUESTIONS}"


def problems(view: SweepView) -> str:
    """Rows of the set that were left out, and what to know of how it is judged."""
    note = f'<p class="hint">{escape(view.note)}</p>' if view.note else ""
    if not view.problems:
        return note
    shown = view.problems[:MOST_PROBLEMS]
    rows = "".join(f"<li>{escape(one.row)}: {escape(one.reason)}</li>" for one in shown)
    rest = len(view.problems) - len(shown)
    more = f"<li>and {count(rest)} more</li>" if rest else ""
    return (
        f'<p class="hint" data-left-out="{len(view.problems)}">{plural(len(view.problems), "row")} of the set left out:'
        f'</p><ul class="hint">{rows}{more}</ul>{note}'
    )
