"""What a visitor does, and what the page then shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

expect.set_options(timeout=60_000)

HEATMAP = "#heatmap-plot .js-plotly-plot"
WATERFALL = "#waterfall-plot .js-plotly-plot"


def upload(page: Page, *files: Path) -> None:
    """Replace what was added by these files and wait until each has its tile."""
    clear = page.locator("#files button[aria-label='Clear']")
    if clear.count():
        clear.click()
        page.wait_for_selector("#preview .empty")
    page.set_input_files("#files input[type=file]", list(files))
    expect(page.locator("#preview .tile")).to_have_count(len(files))


def ask(page: Page, question: str) -> None:
    page.fill("#question textarea", question)
    page.press("#question textarea", "Enter")


def shorten(page: Page, tokens: int = 12) -> None:
    """Ask for short answers, so that the tests are quick even while the machine is busy."""
    page.click("#sampling > button")
    # What lies in an accordion is made when it first opens; a value typed in that instant would be lost.
    page.wait_for_timeout(500)
    set_number(page, "#set-max-new-tokens", tokens)


def wait_done(page: Page) -> None:
    """Both answers are there and so are the panels drawn from them."""
    page.wait_for_selector("#answer-full[data-phase=done]")
    page.wait_for_selector("#answer-compressed[data-phase=done]")
    page.wait_for_selector("#run:not([disabled])")
    page.wait_for_selector(WATERFALL)


def wait_phase(page: Page, side: str, *phases: str) -> None:
    page.wait_for_selector(", ".join(f"#answer-{side}[data-phase='{phase}']" for phase in phases))


def set_number(page: Page, selector: str, value: float) -> None:
    field = page.locator(f"{selector} input[type=number]")
    field.fill(str(value))
    field.press("Tab")


def reported(page: Page) -> tuple[int, int]:
    """(kept, total) as the page says."""
    count = page.locator("#kept-count")
    return int(count.get_attribute("data-kept") or 0), int(count.get_attribute("data-total") or 0)


def kept_cells(page: Page) -> int:
    """Cells that the drawn figure shows as kept."""
    return int(
        page.evaluate(
            f"document.querySelector('{HEATMAP}').data[0].customdata.flat(1).filter(c => c[3] === 'Kept').length"
        )
    )


def wait_kept(page: Page, kept: int) -> None:
    page.wait_for_function(
        f"""() => {{ const plot = document.querySelector('{HEATMAP}');
        return plot && plot.data
            && plot.data[0].customdata.flat(1).filter(c => c[3] === 'Kept').length === {kept}; }}"""
    )


def picture_shown(page: Page) -> str:
    return str(page.evaluate(f"document.querySelector('{HEATMAP}').layout.images[0].source"))


def waterfall_rows(page: Page) -> list[str]:
    texts: list[Any] = page.locator(f"{WATERFALL} .ytick text").all_text_contents()
    return [str(text).lower() for text in texts]


def hits_of_run(page: Page) -> int:
    """Hits of the compressed run in the encoder cache."""
    return int(
        page.locator("#cache-table tr[data-level=encoder][data-scope=compressed]").get_attribute("data-hits") or 0
    )
