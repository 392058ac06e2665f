"""Examples and new scenes: to which question the right answer is known, by whom, and when it is shown."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.panels.examples import NEW_KINDS, read_examples
from app.session import Session
from app.workbench import SAMPLES, Workbench
from engines.media import MediaLimits, load_media
from tests.app.fake import FakeEngine
from tests.app.test_runs import ask, visitor

EXAMPLES = read_examples(SAMPLES)
SCENE = next(example for example in EXAMPLES if example.answer is not None)
PHOTOGRAPH = next(example for example in EXAMPLES if example.answer is None)


@pytest.fixture
def make_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workbench]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))

    def made(is_demo: bool = True) -> Workbench:
        workbench = Workbench(FakeEngine(is_demo=is_demo), MediaLimits())
        with gr.Blocks():
            workbench.draw()
        return workbench

    return made


@pytest.fixture
def page(make_page: Callable[..., Workbench]) -> Workbench:
    return make_page()


def run(page: Workbench, session: Session, files: list[str], question: str) -> str:
    """Verdict and answers after a run; until then they give nothing away."""
    number = ask(page, session, question, files)[page.ticket]
    shown: dict[Any, Any] = {}
    for update in page.run(session, number, "score", 0.5, visitor()):
        shown |= update
        if not session.ended:
            assert "Right answer" not in shown[page.verdict]
            assert not session.right
    return f"{shown[page.verdict]}{shown[page.answers]}"


def test_no_samples_means_no_examples(tmp_path: Path) -> None:
    assert read_examples(tmp_path) == []
    (tmp_path / "samples.json").write_text('[{"file": "gone.png", "question": "?", "answer": null}]')
    assert read_examples(tmp_path) == []


def test_the_right_answer_is_known_to_exactly_the_example(page: Workbench) -> None:
    session = Session()
    files, question = page.ask.examples.take(SCENE, session)
    right = f"Right answer: <b>{SCENE.answer}</b>"
    assert right in run(page, session, files, f" {question} ")
    assert "Right answer" not in run(page, session, files, question + "?")
    assert "Right answer" not in run(page, session, [*files, *files], question)
    assert "Right answer" not in run(page, session, [str(PHOTOGRAPH.path)], question)
    assert "Right answer" not in run(page, session, [], question)
    assert right in run(page, session, files, question)


def test_taking_another_example_does_not_touch_the_run_under_way(page: Workbench) -> None:
    session = Session()
    files, question = page.ask.examples.take(SCENE, session)
    ask(page, session, question, files)
    page.ask.examples.take(PHOTOGRAPH, session)
    assert session.right_answer == SCENE.answer


def test_a_photograph_has_a_hint_and_no_right_answer(page: Workbench) -> None:
    session = Session()
    files, question = page.ask.examples.take(PHOTOGRAPH, session)
    frames = [component.value for component in page.ask.frames]
    assert "Filmed or photographed" in page.ask.show_preview(session, files, *frames)
    assert "Filmed or photographed" not in page.ask.show_preview(session, [*files, *files], *frames)
    assert "Filmed or photographed" not in page.ask.show_preview(Session(), files, *frames)
    assert "Right answer" not in run(page, session, files, question)


@pytest.mark.parametrize("kind", NEW_KINDS)
def test_a_new_scene_is_one_visitors_own_and_lies_where_old_files_are_deleted(
    page: Workbench, tmp_path: Path, kind: str
) -> None:
    start = Session()
    one, other = copy.deepcopy(start), copy.deepcopy(start)  # as Gradio makes them
    panel = page.ask.examples
    (first, question), (second, _) = panel.draw(kind, one), panel.draw(kind, other)
    assert first != second
    assert load_media(first[0]).kind == kind
    assert set(first + second) <= panel.files.temp_files
    assert {Path(file) for file in first + second} == {p for p in tmp_path.rglob("scene_*") if p.is_file()}
    assert one.example is not None
    assert f"Right answer: <b>{one.example.answer}</b>" in run(page, one, first, question)
    assert "Right answer" not in run(page, other, first, question)


def test_only_the_demo_model_has_new_scenes_and_right_answers(make_page: Callable[..., Workbench]) -> None:
    demo, real = make_page(), make_page(is_demo=False)
    assert labels(demo) - labels(real) == set(NEW_KINDS.values())
    assert {example.question for example in EXAMPLES} <= labels(real)
    session = Session()
    files, question = real.ask.examples.take(SCENE, session)
    assert "Right answer" not in run(real, session, files, question)
    files, _ = real.ask.examples.take(PHOTOGRAPH, session)
    frames = [component.value for component in real.ask.frames]
    assert "Filmed or photographed" not in real.ask.show_preview(session, files, *frames)


def labels(page: Workbench) -> set[str]:
    """What stands on the buttons."""
    blocks = page.session.parent.blocks.values()
    return {str(block.value) for block in blocks if isinstance(block, gr.Button)}
