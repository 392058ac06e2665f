"""What is written into the page: every state, every number, and nothing unescaped."""

from __future__ import annotations

import dataclasses
import re

import pytest

from app import words
from app.panels.answers import MEASURES, answers_html, verdict_html
from app.panels.ask import media_tile
from app.panels.caches import caches_html, scopes_html
from app.panels.experts import DENSE, EMPTY, ExpertsPanel, experts_html
from app.panels.header import header_html
from app.panels.heatmap import count_html, detail_html
from app.session import Phase, Session
from engines.compare import Comparison
from engines.config import CompressionConfig
from engines.reports import CacheStats, PruneReport
from tests.app import fake
from tests.app.test_controls import CONTROLS


def page_of(session: Session) -> str:
    return verdict_html(session) + answers_html(session, CONTROLS)


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", " ", html)


def finished(full: str = "A red circle", compressed: str = "A blue circle") -> Session:
    session = Session()
    session.begin(1)
    for side, answer in (("full", full), ("compressed", compressed)):
        view = session.sides[side]  # type: ignore[index]
        view.phase, view.text, view.result = Phase.DONE, answer, fake.result(answer=answer)
    one, other = session.sides["full"].result, session.sides["compressed"].result
    assert one is not None
    assert other is not None
    other = dataclasses.replace(other, ttft_s=0.26, tokens=tuple(ord(letter) for letter in compressed))
    one = dataclasses.replace(one, tokens=tuple(ord(letter) for letter in full))
    session.sides["full"].result, session.sides["compressed"].result = one, other
    session.comparison = Comparison(one, other)
    return session


def test_the_models_text_is_escaped() -> None:
    html = page_of(finished("<script>alert(1)</script>", '<img src=x onerror="1"> ${1+1} {{value}}'))
    assert "<script>" not in html
    assert "<img" not in html
    assert "<i>turned</i>" not in html
    session = Session(error="<b>bad</b>")
    assert "<b>bad</b>" not in page_of(session)


def test_differences_are_marked_and_counted() -> None:
    html = page_of(finished())
    assert '<mark class="differs">red</mark>' in html
    assert '<mark class="differs">blue</mark>' in html
    assert "first difference at token 3" in html
    assert "Answers are identical" in page_of(finished("same", "same"))


def test_each_answer_is_marked_against_the_right_one_once_the_run_has_ended() -> None:
    session = finished("A red circle.", "A blue circle")
    assert "Right answer" not in page_of(session)
    session.right_answer = "a red circle"
    full, compressed = answers_html(session, CONTROLS).split("</article>")[:2]
    assert "✓</span> Right" in full
    assert "×</span> Wrong" in compressed
    assert text_of(verdict_html(session)).count("Right answer:  a red circle") == 1
    session.comparison = None
    assert session.right_answer not in page_of(session), "between two pairs of runs"


def test_the_right_answer_is_escaped() -> None:
    session = finished()
    session.right_answer = "<b>&"
    assert "<b>&lt;b&gt;&amp;</b>" in verdict_html(session)


def test_an_answer_that_was_stopped_is_not_judged() -> None:
    session = finished()
    session.right_answer, session.comparison = "A red circle", None
    session.sides["compressed"].phase = Phase.RUNNING
    session.stop()
    assert session.right == {"full": True}
    session.sides["full"].phase = Phase.STOPPED
    assert "Right" not in page_of(session)


def test_every_figure_stands_under_both_answers_with_its_ratio() -> None:
    html = page_of(finished())
    for measure in MEASURES:
        row = html[html.index(f'data-measure="{measure.key}"') :].partition("</tr>")[0]
        assert measure.name in row
        assert row.count('class="value') == 2
    assert "0.52x" in html
    assert "Peak memory" in html
    assert "not available here" in html
    assert "No reader on this platform" in html
    assert "decoding the media included" in html


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_words(phase: Phase) -> None:
    session = Session()
    for view in session.sides.values():
        view.phase, view.stage = phase, "prefill"
    html = page_of(session)
    assert f'data-phase="{phase.value}"' in html
    assert text_of(html).strip()


def test_a_failed_run_says_why_and_a_stopped_one_keeps_its_text() -> None:
    session = Session()
    session.begin(1)
    session.sides["full"].phase, session.sides["full"].text = Phase.RUNNING, "A red"
    session.stop()
    html = page_of(session)
    assert "Stopped" in html
    assert "A red" in html
    session.begin(2)
    session.sides["full"].phase = Phase.RUNNING
    session.fail("clip.mp4 is a text.")
    html = page_of(session)
    assert 'role="alert"' in html
    assert "clip.mp4 is a text." in html
    assert [view.phase for view in session.sides.values()] == [Phase.FAILED, Phase.NOT_RUN]


def test_kept_count() -> None:
    report = PruneReport("uniform", 0.5, 121, 61, (fake.frame_pruning(scored=False),))
    text = text_of(count_html(report))
    assert "Kept 61 of 121 visual tokens (50 %)" in " ".join(text.split())
    assert "gives no scores" in text
    off = PruneReport(None, 1.0, 6, 6, (fake.frame_pruning(kept=6, scored=False),))
    assert "Pruning is off" in count_html(off)
    assert "gives no scores" not in count_html(off)
    inside = PruneReport("attention", 0.5, 6, 3, (fake.frame_pruning(),), layer=4)
    assert "Pruned after layer 4 of the language model" in count_html(inside)
    assert "Pruned after layer" not in text


def test_a_frame_group_says_which_frames_and_when() -> None:
    text = detail_html(fake.frame_pruning(frames=(4, 5)))
    assert "Frames 5 to 6" in text
    assert "2.00 s" in text
    assert "3 of 6 cells kept" in text


def test_caches_show_this_run_and_the_total() -> None:
    html = caches_html(finished(), fake.FakeEngine().cache_totals())
    assert html.count("<tr data-level=") == 6, "two runs of one level, and of each level the session and the total"
    assert 'data-level="encoder" data-scope="compressed" data-hits="1"' in html
    assert 'data-level="prefix" data-scope="total" data-hits="60"' in html
    assert "25 %" in html
    assert "500 ms" in html
    by_scope = scopes_html(finished(), fake.FakeEngine().cache_totals())
    assert 'data-level="encoder" data-scope="tenant total" data-hits="1"' in by_scope
    assert 'data-level="prefix" data-scope="user total" data-hits="60"' in by_scope
    assert "they are off" in scopes_html(finished(), {"encoder": CacheStats()})


def test_header_tells_a_demo_from_a_real_model() -> None:
    assert "python launch.py --model" in header_html(fake.capabilities())
    assert "python launch.py --model" not in header_html(fake.capabilities(is_demo=False))
    assert "<script>" not in header_html(fake.capabilities(model="<script>"))


def test_media_tile_escapes_the_name_and_says_what_was_sampled() -> None:
    html = media_tile(fake.media_of("<b>.png"))
    assert "<b>.png" not in html
    assert "96 x 64" in html
    clip = media_tile(fake.media_of("clip.mp4", frames=8))
    assert "8 frames sampled" in clip
    assert clip.count("<img") == 4


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "—"),
        (0.0, "0.0 ms"),
        (0.000_02, "20 µs"),
        (0.0012, "1.2 ms"),
        (0.84, "840 ms"),
        (0.9996, "1.00 s"),
        (1.239, "1.24 s"),
    ],
)
def test_seconds(value: float | None, said: str) -> None:
    assert words.seconds(value) == said


@pytest.mark.parametrize(("value", "said"), [(None, "—"), (12, "12 B"), (2048, "2.0 KiB"), (3 << 30, "3.0 GiB")])
def test_megabytes(value: int | None, said: str) -> None:
    assert words.megabytes(value) == said


def test_full_configuration_is_named_in_words() -> None:
    session = finished()
    result = session.sides["compressed"].result
    assert result is not None
    assert result.config == CompressionConfig.full()
    assert "all switches off" in page_of(session)


def test_expert_shares_of_both_runs() -> None:
    modality = fake.expert_report("modality")
    html = experts_html({"full": fake.expert_report(), "compressed": dataclasses.replace(modality, top_k=1)})
    full, compressed = (" ".join(text_of(row).split()) for row in html.partition("<tbody>")[2].split("</tr>")[:2])
    assert full == "Full 24 of 24 0 % 0 % 0 % 2 of 3 experts a token"
    assert compressed.startswith("Compressed 15 of 24 38 % 50 % 12 %")
    assert compressed.endswith("1 of 3 experts a token instead of 2, then the method modality, not calibrated")
    assert "<b>" not in experts_html({"full": dataclasses.replace(modality, method="<b>")})


def test_the_experts_panel_shows_either_run_or_says_why_not() -> None:
    session = finished()
    text, body, _, side, plot, table = ExpertsPanel.update(session)
    assert "24 of 24" in text
    assert body["visible"]
    assert side["value"] == "compressed"
    assert plot.type == "plotly"
    assert "<table" in table
    session.sides["compressed"].result = None
    assert ExpertsPanel.update(session)[3]["value"] == "full"
    full = session.sides["full"].result
    assert full is not None
    session.sides["full"].result = dataclasses.replace(full, expert_report=None)
    assert ExpertsPanel.update(session)[0] == DENSE
    assert ExpertsPanel.update(Session())[0] == EMPTY
