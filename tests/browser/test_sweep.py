"""A sweep in the page: begun, drawn, found again after a reload, and a point of it loaded into the switches."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import actions
from tests.browser.conftest import Open

FRONT = "#sweep-plot .js-plotly-plot"


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


@pytest.mark.browser
def test_a_sweep_is_drawn_kept_and_loaded_into_the_switches(open_page: Open, screenshots: Path) -> None:
    page = open_page()
    tab(page, "Sweep")
    actions.set_number(page, "#sweep-every", 500)
    page.locator("#sweep .inner > button", has_text="Timing and divergence").click()
    page.wait_for_timeout(500)
    actions.set_number(page, "#sweep-timed", 1)
    actions.set_number(page, "#sweep-repeats", 1)
    page.fill("#sweep-values-1 textarea, #sweep-values-1 input", "1, 0.5")
    page.fill("#sweep-values-2 textarea, #sweep-values-2 input", "2")
    page.screenshot(path=screenshots / "sweep_form.png", full_page=True)
    page.click("#sweep-start")
    expect(page.locator("#sweep-text")).to_contain_text(
        "Done: 2 points and the full model on the benchmark, 3 questions", timeout=240_000
    )
    page.wait_for_selector(f"{FRONT} .scatterlayer .point")
    page.locator("#sweep-results .inner > button", has_text="As a table").click()
    expect(page.locator("#sweep-table tr[data-front]")).to_have_count(3)
    page.screenshot(path=screenshots / "sweep_light.png", full_page=True)
    page.reload()
    page.wait_for_selector("#cache-table table")
    tab(page, "Sweep")
    expect(page.locator("#sweep-text")).to_contain_text("Done: 2 points")
    page.locator("#sweep-front input[type=radio]").first.check()
    page.evaluate("document.body.classList.add('dark')")
    page.screenshot(path=screenshots / "sweep_dark.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.screenshot(path=screenshots / "sweep_phone.png", full_page=True)
    page.click("#sweep-load")
    expect(page.locator("#settings-summary")).to_be_visible()
    tab(page, "Sweep")
    page.click("#sweep-delete")
    expect(page.locator("#sweep-results")).to_be_hidden()
