"""Figures are pure functions of a result."""

from __future__ import annotations

import dataclasses
import json

import pytest

from app import plots
from app.plots.waterfall import MOST_TOKEN_BARS, ROWS, UNACCOUNTED, bars, gaps
from engines.reports import PairCounts
from engines.results import RunResult
from engines.trace import STAGES, Span, Trace
from tests.app import fake


@pytest.fixture
def both() -> dict:
    return {"full": fake.result(), "compressed": fake.result()}


def test_every_stage_has_a_row_and_the_bars_add_up(both: dict) -> None:
    figure = plots.waterfall(both)
    assert [text.lower() for text in figure.layout.yaxis.ticktext] == [*map(str.lower, STAGES), UNACCOUNTED]
    for side, result in both.items():
        drawn = [trace for trace in figure.data if trace.legendgroup == side]
        rows = dict.fromkeys(ROWS, 0.0)
        for trace in drawn:
            for length, custom in zip(trace.x, trace.customdata, strict=True):
                rows[custom[0]] += length
        for stage in STAGES:
            assert rows[stage] == pytest.approx(result.trace.stage_s(stage))
        assert rows[UNACCOUNTED] == pytest.approx(result.trace.unaccounted_s)
        assert sum(rows.values()) == pytest.approx(result.trace.total_s)


def test_bars_start_where_their_spans_start(both: dict) -> None:
    found = {bar.row: bar.start_s for bar in reversed(bars(both["full"].trace))}
    assert found["prefill"] == both["full"].trace.named("prefill")[0].start_s


def test_decode_is_one_bar_a_token() -> None:
    assert sum(bar.row == "decode" for bar in bars(fake.trace(steps=7))) == 7


def test_long_answers_are_grouped_and_still_add_up() -> None:
    trace = fake.trace(steps=1000)
    decode = [bar for bar in bars(trace) if bar.row == "decode"]
    assert len(decode) <= MOST_TOKEN_BARS
    assert sum(bar.duration_s for bar in decode) == pytest.approx(trace.stage_s("decode"))
    assert "tokens 1 to 5" in decode[0].hover


def test_gaps_are_the_time_between_top_level_spans() -> None:
    trace = Trace((Span("prefill", 0.1, 0.5), Span("inner", 0.2, 0.4, parent="prefill"), Span("decode", 0.6, 0.9)), 1.0)
    assert gaps(trace) == [(0.0, 0.1), (0.5, 0.6), (0.9, 1.0)]


def test_one_side_alone_can_be_drawn(both: dict) -> None:
    del both["compressed"]
    assert {trace.legendgroup for trace in plots.waterfall(both).data} == {"full"}
    assert "not run" not in plots.waterfall_table(both)


def test_waterfall_table_says_what_was_not_run() -> None:
    result = fake.result()
    shorter = Trace(tuple(span for span in result.trace.spans if span.name != "vision encode"), result.trace.total_s)
    table = plots.waterfall_table({"full": result, "compressed": RunResult(**{**vars(result), "trace": shorter})})
    row = table[table.index("vision encode") :].partition("</tr>")[0]
    assert "100 ms" in row
    assert "not run" in row


def test_text_from_a_span_is_escaped_in_hover_and_table() -> None:
    trace = Trace((Span("prefill", 0.0, 1.0, None, {"name": "<script>"}),), 1.0)
    assert "<script>" not in bars(trace)[0].hover
    result = RunResult(**{**vars(fake.result()), "trace": trace})
    assert "<script>" not in plots.waterfall_table({"full": result})


@pytest.mark.parametrize("view", ["score", "kept"])
@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("kept", [0, 2, 6])
def test_heatmap_counts_agree_with_the_report(view: str, scored: bool, kept: int) -> None:
    frame = fake.frame_pruning(kept=kept, scored=scored)
    figure = plots.heatmap(frame, "data:,", (96, 64), view, 0.5)  # type: ignore[arg-type]
    cells = [cell for row in figure.data[0].customdata for cell in row]
    assert len(cells) == 6
    assert sum(cell[3] == "Kept" for cell in cells) == kept == sum(frame.kept)
    crosses = figure.data[1]
    assert crosses.name == f"Dropped ({6 - kept})"
    assert sum(x is not None for x in crosses.x) == 6 - kept
    assert (cells[0][2] == "not given") is not scored


def test_cells_cover_the_picture_exactly() -> None:
    figure = plots.heatmap(fake.frame_pruning(), "data:,", (90, 64), "score", 0.5)
    image, cells = figure.layout.images[0], figure.data[0]
    assert (image.x, image.y, image.sizex, image.sizey) == (0, 0, 90, 64)
    assert cells.x0 - cells.dx / 2 == 0
    assert cells.x0 - cells.dx / 2 + 3 * cells.dx == pytest.approx(90)
    assert cells.y0 - cells.dy / 2 == 0
    assert cells.y0 - cells.dy / 2 + 2 * cells.dy == pytest.approx(64)
    assert tuple(figure.layout.xaxis.range) == (0, 90)
    assert tuple(figure.layout.yaxis.range) == (64, 0)


def test_opacity_and_view_reach_the_figure() -> None:
    frame = fake.frame_pruning()
    assert plots.heatmap(frame, None, (96, 64), "score", 0.3).data[0].opacity == 0.3
    assert plots.heatmap(frame, None, (96, 64), "score", 0.3).data[0].showscale is not False
    assert plots.heatmap(frame, None, (96, 64), "kept", 0.3).data[0].showscale is False


def test_every_figure_has_an_explicit_height(both: dict) -> None:
    for figure in (
        plots.waterfall(both),
        plots.heatmap(fake.frame_pruning(), None, (96, 64), "kept", 1.0),
        plots.expert_load(fake.expert_report(), 8),
    ):
        assert figure.layout.height > 100
        sent = json.loads(plots.as_plot(figure).plot)
        assert sent["layout"]["height"] == figure.layout.height
        assert sent["config"]["displayModeBar"] is False


def test_heatmap_table_marks_what_was_dropped() -> None:
    table = plots.heatmap_table(fake.frame_pruning(kept=2)).partition("<table")[2]
    assert table.count("✓ ") == 2
    assert table.count("× ") == 4
    assert "×" in plots.heatmap_table(fake.frame_pruning(kept=2, scored=False))


def test_expert_load_has_a_cell_for_every_layer_and_expert() -> None:
    report = fake.expert_report()
    figure = plots.expert_load(report, 12)
    (heat,) = figure.data
    assert [list(row) for row in heat.z] == [[8, 4, 0], [6, 6, 0]]
    assert (list(heat.x), list(heat.y)) == ([1, 2, 3], [1, 2])
    assert (heat.zmin, heat.zmax) == (0, 12)
    assert heat.customdata[0][0] == "67 %"
    assert tuple(figure.layout.yaxis.range) == (2.5, 0.5)
    assert figure.layout.xaxis.domain[1] == 1


def test_skipped_shares_stand_beside_the_layers() -> None:
    heat, visual, text = plots.expert_load(fake.expert_report("alignment"), 8).data
    assert sum(map(sum, heat.z)) == 15
    assert list(visual.x) == [0.5, 0.5]
    assert list(text.x) == [0, 0.25]
    assert visual.marker.pattern.shape != text.marker.pattern.shape


def test_a_run_without_text_or_cancelled_before_the_model_can_be_drawn() -> None:
    report = fake.expert_report("alignment")
    none = PairCounts((0, 0), (0, 0))
    assert list(plots.expert_load(dataclasses.replace(report, text=none), 8).data[2].x) == [None, None]
    empty = dataclasses.replace(report, text=none, visual=none, pairs_computed=0, pairs_full=0, layers=((0, 0, 0),) * 2)
    assert len(plots.expert_load(empty, 0).data) == 1
    assert plots.expert_table(empty).count("<tr>") == 3


def test_expert_table_holds_the_same_numbers() -> None:
    table = plots.expert_table(fake.expert_report("alignment"))
    row = table[table.index('<th scope="row">2</th>') :].partition("</tr>")[0]
    assert "<td>50 %</td><td>25 %</td><td>7</td><td>4</td><td>3</td><td>0</td>" in row
