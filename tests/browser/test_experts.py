"""Expert skipping on the page: its switches, and the panel that shows what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import actions
from tests.browser.conftest import Open

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "samples" / "scene_colour.png"
PLOT = "#experts-plot .js-plotly-plot"


def loads(page: Page) -> int:
    """All pairs in the cells of the drawn heatmap."""
    return int(page.evaluate(f"document.querySelector('{PLOT}').data[0].z.flat().reduce((a, b) => a + b, 0)"))


@pytest.mark.browser
def test_skipped_pairs_are_counted_and_drawn_for_both_runs(open_page: Open, screenshots: Path) -> None:
    page = open_page()
    actions.shorten(page, 4)
    actions.upload(page, SAMPLE)
    expect(page.locator("#set-experts-options-alignment-kappa")).to_be_hidden()
    page.click("#set-experts-method input")
    page.get_by_role("option", name="Alignment confidence").click()
    expect(page.locator("#set-experts-options-alignment-kappa")).to_be_visible()
    expect(page.locator("#set-experts-options-entropy-temperature")).to_be_hidden()
    expect(page.locator("#set-pruning-options-mmr-balance")).to_be_visible()
    expect(page.locator("#settings-summary")).to_contain_text("skips experts: Alignment confidence")
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)
    page.wait_for_selector(f"{PLOT} .bars path")
    row = page.locator("#experts-text tr[data-side=compressed]")
    computed = int(row.get_attribute("data-computed") or 0)
    assert 0 < computed < int(row.get_attribute("data-full") or 0)
    assert loads(page) == computed
    page.locator("#experts").screenshot(path=screenshots / "experts_light.png")
    page.evaluate("document.body.classList.add('dark')")
    page.locator("#experts").screenshot(path=screenshots / "experts_dark.png")
    page.get_by_label("Full", exact=True).check()
    full = int(page.locator("#experts-text tr[data-side=full]").get_attribute("data-computed") or 0)
    page.wait_for_function(f"document.querySelector('{PLOT}').data[0].z.flat().reduce((a, b) => a + b, 0) === {full}")
    expect(page.locator(f"{PLOT} .bars path")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#experts").screenshot(path=screenshots / "experts_phone.png")
