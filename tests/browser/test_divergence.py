"""The card that says where the answers part, in the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import actions
from tests.browser.conftest import Open

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "samples" / "scene_colour.png"
BARS = "#divergence-plot .js-plotly-plot"


@pytest.mark.browser
def test_divergence_is_measured_on_demand_and_goes_with_the_next_run(open_page: Open, screenshots: Path) -> None:
    page = open_page()
    page.click("#measure-divergence")
    expect(page.locator("#divergence-text")).to_contain_text("Run a comparison first")
    actions.shorten(page, 6)
    actions.upload(page, SAMPLE)
    actions.set_number(page, "#set-pruning-keep_ratio", 0.1)
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)
    page.click("#measure-divergence")
    page.wait_for_selector("#divergence-summary")
    page.wait_for_selector(f"{BARS} .bars path")
    tokens = page.evaluate(f"document.querySelector('{BARS}').data[0].y.length")
    assert 1 <= tokens <= 6
    page.locator("#divergence .inner > button").click()
    expect(page.locator("#divergence-table tr[data-token]")).to_have_count(tokens)
    page.wait_for_selector("#divergence-looked .js-plotly-plot")
    # Another token, by keyboard.
    page.locator("#divergence-token input").press("ArrowDown")
    page.get_by_role("option", name="1. ").first.click()
    expect(page.locator("#divergence-dropped")).to_have_attribute("data-share", re.compile(r"[0-9.e-]+"))
    page.locator("#divergence").screenshot(path=screenshots / "divergence_light.png")
    page.evaluate("document.body.classList.add('dark')")
    page.locator("#divergence").screenshot(path=screenshots / "divergence_dark.png")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#divergence").screenshot(path=screenshots / "divergence_phone.png")
    actions.ask(page, "Which colour is it?")
    expect(page.locator("#divergence-summary")).to_be_hidden()
    actions.wait_done(page)
