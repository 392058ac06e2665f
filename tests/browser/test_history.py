"""A finished comparison is kept for its visitor, opens again, and leaves the page as a file that needs no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import actions
from tests.browser.conftest import Open

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "samples" / "scene_colour.png"


def history(page: Page) -> None:
    page.get_by_role("tab", name="History").click()


@pytest.mark.browser
def test_a_comparison_is_kept_opened_again_and_taken_away(
    open_page: Open, browser: Browser, tmp_path: Path, screenshots: Path
) -> None:
    page = open_page()
    actions.shorten(page, 4)
    actions.upload(page, SAMPLE)
    actions.ask(page, "Which colour has that star?")
    actions.wait_done(page)
    with page.expect_download() as download:
        page.click("#export-html")
    file = tmp_path / "report.html"
    download.value.save_as(file)
    # All who use this machine's own server are one person, so it is there after a reload.
    page.reload()
    page.wait_for_selector("#cache-table table")
    history(page)
    page.wait_for_selector("#history-text [data-entries]")
    sought = page.locator("#history-search textarea")
    sought.press_sequentially("no such words")
    expect(page.locator("#history-text")).to_contain_text("No kept comparison")
    sought.clear()
    sought.press_sequentially("THAT star")
    expect(page.locator("#history-text")).not_to_contain_text("No kept comparison")
    expect(page.locator("#history-list input[type=checkbox]")).to_have_count(1)
    page.locator("#history-list input[type=checkbox]").check()
    expect(page.locator("#history-shown")).to_contain_text("Which colour has that star?")
    page.screenshot(path=screenshots / "history.png", full_page=True)
    page.click("#history-open")
    expect(page.locator("#question textarea")).to_have_value("Which colour has that star?")
    page.wait_for_selector(actions.WATERFALL)
    history(page)
    page.click("#history-delete-all")
    page.click("#history-sure")
    expect(page.locator("#history-text")).to_contain_text("Nothing is kept yet")
    # The report draws itself without a network.
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    report = context.new_page()
    failures: list[str] = []
    report.on("pageerror", lambda error: failures.append(str(error)))
    report.goto(file.as_uri())
    report.wait_for_selector("html[data-drawn=true]")
    assert report.locator(".plot .main-svg").count() > 0
    expect(report.locator("body")).to_contain_text("Which colour has that star?")
    report.screenshot(path=screenshots / "report.png", full_page=True)
    context.close()
    assert failures == []
