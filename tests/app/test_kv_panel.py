"""The KV panel says what was measured, or that there is nothing to say; its switches are named in the summary."""

from __future__ import annotations

import dataclasses

from app import controls
from app.panels.kv import EMPTY, PLAIN, KVPanel, kv_html, kv_table
from app.session import Session
from engines.config import CompressionConfig
from engines.reports import KVLayer, KVReport
from engines.results import Capability
from tests.app import fake
from tests.app.test_controls import CONTROLS, METHODS
from tests.app.test_html import finished, text_of

REPORT = KVReport(
    bits=4,
    block_tokens=64,
    layers=(
        KVLayer(2, 200, 50, 160, 16, blocks=1, blocks_released=2, plain_bytes=4096, bytes=512),
        KVLayer(4, 200, 60, 160, 32, blocks=2, blocks_released=0, plain_bytes=4096, bytes=1024),
    ),
    zero_share=None,
)


def test_the_panel_says_when_there_is_nothing() -> None:
    assert KVPanel.update(Session())[0] == EMPTY
    assert KVPanel.update(finished())[0] == PLAIN


def test_totals_and_layers_are_those_of_the_report() -> None:
    session = finished()
    view = session.sides["compressed"]
    assert view.result is not None
    view.result = dataclasses.replace(view.result, kv_report=REPORT)
    text, fold, table = KVPanel.update(session)
    assert fold["visible"]
    words = text_of(text)
    for said in ("1.5 KiB instead of 8.0 KiB (19 %)", "110 of 400 tokens", "48 of 320 visual", "2 blocks were"):
        assert said in words
    assert "exactly 0" not in words
    rows = [row.split() for row in text_of(table).split("\n")]
    assert table.count("<tr>") == 3
    assert "16 of 160" in text_of(table)
    assert "150" in rows[0], "dropped tokens of the first layer"


def test_the_share_of_zeros_is_shown_where_there_is_a_threshold() -> None:
    assert "25 % of the values" in text_of(kv_html(dataclasses.replace(REPORT, zero_share=0.25, bits=0)))
    assert "the model's own number format" in kv_html(dataclasses.replace(REPORT, bits=0))
    assert kv_table(dataclasses.replace(REPORT, layers=())).count("<tr>") == 1


def test_the_summary_names_what_is_on() -> None:
    chosen = [
        "kv.bits=4",
        "kv.visual_keep_ratio=0.1",
        "kv.text_window=512",
        "kv.min_live_tokens=8",
        "kv.norm_floor=0.92",
    ]
    words = controls.summary(CompressionConfig().with_settings([*chosen, "kv.sparsity_threshold=0.05"]), CONTROLS)
    assert words == [
        "KV cache in 4 bits",
        "KV of 10 % of visual tokens",
        "KV of the newest 512 text tokens",
        "KV blocks released under 8 live tokens",
        "KV blocks released below 0.92 of their norm",
        "KV values below 0.05 dropped",
    ]
    assert controls.summary(CompressionConfig().with_settings(["kv.block_tokens=16"]), CONTROLS) == []


def test_every_switch_is_off_with_the_reason_where_no_layer_has_a_cache() -> None:
    refused = fake.capabilities(others=(Capability("KV compression", False, "no layer of full attention."),))
    own = [control for control in controls.make_controls(refused, METHODS) if control.path[0] == "kv"]
    assert len(own) == 10
    assert all(control.why_not.endswith("no layer of full attention.") for control in own)
