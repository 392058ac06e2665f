"""The page in a real browser: what a visitor does from the first upload to the last error."""

from __future__ import annotations

import re
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from engines.answers import matches
from engines.trace import STAGES
from tests.browser import actions
from tests.browser.conftest import Open

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    names = ("wide.png", "turned.jpg", "clip.mp4", "notes.mp4")
    made = {name.partition(".")[0]: folder / name for name in names}
    picture = np.full((256, 384, 3), 200, dtype=np.uint8)
    picture[60:160, 40:140], picture[120:220, 240:340] = (220, 30, 30), (30, 60, 220)
    Image.fromarray(picture).save(made["wide"])
    turned = Image.fromarray(picture)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(made["turned"], exif=exif)
    made["notes"].write_text("This is a text and not a film.")
    with av.open(str(made["clip"]), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv420p"
        for index in range(32):
            frame = np.full((128, 160, 3), 180, dtype=np.uint8)
            frame[40:80, index * 3 : index * 3 + 40] = (220, 30, 30)
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        container.mux(stream.encode())
    # Enough work that there is time to press Stop, and to wait behind it.
    noise = np.random.default_rng(0)
    for index in range(6):
        made[f"large{index}"] = folder / f"large{index}.png"
        Image.fromarray(noise.integers(0, 255, (704, 704, 3), dtype=np.uint8)).save(made[f"large{index}"])
    return made


def large(files: dict[str, Path]) -> list[Path]:
    return [path for name, path in files.items() if name.startswith("large")]


def test_image_then_another_keep_ratio_then_video(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.shorten(page)
    actions.upload(page, files["wide"])
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)

    for side in ("full", "compressed"):
        text = page.inner_text(f"#answer-{side} .text")
        assert text.strip()
        assert "…" not in text
    expect(page.locator("#verdict")).to_have_text(re.compile("identical|first difference at token|read the same"))
    for key in ("ttft", "tokens_per_s", "visual_tokens", "peak_memory", "weights"):
        expect(page.locator(f"tr[data-measure={key}] td")).to_have_count(2)
    expect(page.locator("tr[data-measure=ttft] .ratio")).to_have_text(re.compile(r"\d+\.\d\dx"))
    assert actions.waterfall_rows(page) == [*map(str.lower, STAGES), "unaccounted"]
    assert page.evaluate(f"document.querySelector('{actions.WATERFALL}').clientHeight") > 300

    kept, total = actions.reported(page)
    assert (kept, total) == (48, 96), "half of 8 x 12 tokens"
    actions.wait_kept(page, kept)
    page.get_by_label("Kept and dropped").check()
    page.wait_for_function(f"document.querySelector('{actions.HEATMAP}').data[0].showscale === false")
    assert actions.kept_cells(page) == kept
    assert actions.hits_of_run(page) == 0

    actions.set_number(page, "#set-pruning-keep_ratio", 0.25)
    expect(page.locator("#settings-summary")).to_contain_text("keeps 25 %")
    page.click("#run")
    actions.wait_kept(page, 24)
    assert actions.reported(page) == (24, 96)
    actions.wait_done(page)
    assert actions.hits_of_run(page) >= 1, "the picture was encoded in the first run"

    actions.upload(page, files["clip"])
    actions.ask(page, "What moves?")
    expect(page.locator("#heatmap-frame")).to_be_visible()
    shown, picture = page.inner_text("#heatmap-detail"), actions.picture_shown(page)
    assert "Frames 1 to 2" in shown
    actions.set_number(page, "#heatmap-frame", 3)
    expect(page.locator("#heatmap-detail")).to_contain_text("Frames 5 to 6")
    page.wait_for_function(
        "before => document.querySelector('#heatmap-plot .js-plotly-plot').layout.images[0].source !== before",
        arg=picture,
    )
    groups = int(page.locator("#heatmap-frame input[type=range]").get_attribute("max") or 0)
    kept, total = actions.reported(page)
    assert actions.kept_cells(page) * groups == kept
    assert total == groups * 20


def test_several_images_and_a_turned_one(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.shorten(page)
    actions.upload(page, files["turned"], files["wide"])
    sizes = page.evaluate("[...document.querySelectorAll('#preview img')].map(i => [i.naturalWidth, i.naturalHeight])")
    assert sizes[0][0] < sizes[0][1], "a photo lying on its side is shown upright"
    assert sizes[1][0] > sizes[1][1]
    actions.ask(page, "What is in the first picture?")
    actions.wait_done(page)
    expect(page.locator("#heatmap-item")).to_be_visible()
    expect(page.locator("#heatmap-detail")).to_contain_text("turned.jpg")
    page.click("#heatmap-item input")
    page.get_by_role("option", name="2. wide.png").click()
    expect(page.locator("#heatmap-detail")).to_contain_text("wide.png")


def test_uniform_says_that_it_gives_no_scores_and_full_that_pruning_is_off(
    open_page: Open, files: dict[str, Path]
) -> None:
    page = open_page()
    actions.shorten(page)
    actions.upload(page, files["wide"])
    expect(page.locator("#set-pruning-options-mmr-balance")).to_be_visible()
    page.click("#set-pruning-method input")
    page.get_by_role("option", name="Uniform grid").click()
    expect(page.locator("#set-pruning-options-mmr-balance")).to_be_hidden()
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)
    expect(page.locator("#heatmap-text")).to_contain_text("gives no scores")
    page.click("#reset")
    expect(page.locator("#settings-summary")).to_contain_text("All off")
    page.click("#run")
    expect(page.locator("#heatmap-text")).to_contain_text("Pruning is off")
    expect(page.locator("#verdict")).to_contain_text("identical")


def test_precision_and_experts_are_live(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.shorten(page)
    actions.upload(page, files["wide"])
    page.click("#set-precision-all input")
    page.get_by_role("option", name="int8").click()
    actions.set_number(page, "#set-experts-top_k", 2)
    expect(page.locator("#settings-summary")).to_contain_text("int8 throughout")
    expect(page.locator("#settings-summary")).to_contain_text("2 experts per token")
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)
    ratio = page.inner_text("tr[data-measure=weights] .ratio")
    assert float(ratio.partition("x")[0]) < 0.6, "eight bits instead of thirty-two, but for the embeddings"
    page.click("#recommended")
    expect(page.locator("#settings-summary")).not_to_contain_text("int8")
    page.click("#run")
    expect(page.locator("tr[data-measure=weights] .ratio")).to_contain_text("same")


def test_repeats_give_medians_and_ranges(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.shorten(page, 4)
    actions.set_number(page, "#repeats", 3)
    actions.upload(page, files["wide"])
    actions.ask(page, "What is in the picture?")
    actions.wait_done(page)
    expect(page.locator("#answers")).to_contain_text("Medians of 3 pairs of runs")
    expect(page.locator("tr[data-measure=ttft] .range")).to_have_text(re.compile(r"\d\.\d\d to \d+\.\d\dx"))


def test_sentences_for_what_cannot_be_run(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.shorten(page)
    page.click("#run")
    expect(page.locator("#verdict")).to_have_text("The question is empty; type one and run again.")
    actions.upload(page, files["notes"])
    expect(page.locator("#preview .tile.bad")).to_contain_text("notes.mp4")
    actions.ask(page, "What moves?")
    expect(page.locator("#verdict.wrong")).to_contain_text("notes.mp4")
    expect(page.locator("#answer-full")).to_have_attribute("data-phase", "failed")
    expect(page.locator("#run")).to_be_enabled()
    actions.upload(page, files["wide"])
    page.click("#run")
    actions.wait_done(page)
    expect(page.locator("#verdict.wrong")).to_have_count(0)


def test_a_new_scene_has_a_right_answer_and_a_changed_question_has_none(open_page: Open) -> None:
    page = open_page()
    page.click("#new-image")
    expect(page.locator("#preview .tile")).to_have_count(1)
    expect(page.locator("#question textarea")).not_to_have_value("")
    assert page.locator("#right-answer").count() == 0
    page.click("#run")
    actions.wait_done(page)
    right = page.inner_text("#right-answer b")
    for side in ("full", "compressed"):
        is_right = matches(page.inner_text(f"#answer-{side} .text"), right)
        expect(page.locator(f"#answer-{side} .chip")).to_have_text("✓ Right" if is_right else "× Wrong")

    page.fill("#question textarea", "What is in the picture?")
    page.click("#run")
    expect(page.locator("#right-answer")).to_have_count(0)
    actions.wait_done(page)
    expect(page.locator("#right-answer")).to_have_count(0)
    expect(page.locator("#answers .chip.right, #answers .chip.wrong")).to_have_count(0)


def test_a_new_clip_is_a_video_and_another_click_draws_another(open_page: Open) -> None:
    page = open_page()
    page.click("#new-video")
    expect(page.locator("#preview .tile.video")).to_have_count(1)
    name = page.inner_text("#preview figcaption b")
    page.click("#new-video")
    expect(page.locator("#preview figcaption b")).not_to_have_text(name)
    expect(page.locator("#preview .tile.video")).to_have_count(1)


def test_text_alone(open_page: Open) -> None:
    page = open_page()
    actions.shorten(page)
    actions.ask(page, "What is the capital of France?")
    actions.wait_done(page)
    expect(page.locator("#heatmap-text")).to_contain_text("no visual tokens")


def test_stop(open_page: Open, files: dict[str, Path]) -> None:
    page = open_page()
    actions.upload(page, *large(files))
    actions.ask(page, "Name every object in the pictures.")
    actions.wait_phase(page, "full", "preparing", "running")
    page.keyboard.press("Escape")
    actions.wait_phase(page, "full", "stopped", "done")
    expect(page.locator("#verdict")).to_contain_text("Stopped")
    expect(page.locator("#answer-compressed")).not_to_have_attribute("data-phase", "done")
    expect(page.locator("#run")).to_be_enabled()


def test_two_visitors_see_only_their_own(open_page: Open, files: dict[str, Path]) -> None:
    first, second = open_page(), open_page()
    actions.shorten(first)
    actions.shorten(second)
    actions.upload(first, *large(files))
    actions.upload(second, files["turned"])
    actions.ask(first, "Name every object in the pictures.")
    actions.wait_phase(first, "full", "preparing", "running")
    actions.ask(second, "What is in the picture?")
    expect(second.locator("#queue-status")).to_contain_text(re.compile(r"queue: 1/1"))
    line, text = (second.locator(f"#queue-status{part}").bounding_box() for part in ("", " .progress-text"))
    assert line is not None
    assert text is not None
    assert line["y"] - 1 <= text["y"] <= line["y"] + line["height"] / 2, "Gradio moves it out of sight by itself"
    expect(second.locator("#answer-full")).to_have_attribute("data-phase", "queued")
    expect(second.locator("#leave")).to_be_visible()
    actions.wait_done(first)
    actions.wait_done(second)
    expect(first.locator("#preview")).not_to_contain_text("turned.jpg")
    expect(first.locator("#heatmap-detail")).to_contain_text("large0.png")
    expect(second.locator("#heatmap-detail")).to_contain_text("turned.jpg")
    assert actions.reported(first)[1] > actions.reported(second)[1]


def test_leaving_the_queue(open_page: Open, files: dict[str, Path]) -> None:
    first, second = open_page(), open_page()
    actions.shorten(first)
    actions.shorten(second)
    actions.upload(first, *large(files))
    actions.ask(first, "Name every object in the pictures.")
    actions.wait_phase(first, "full", "preparing", "running")
    actions.ask(second, "Hello?")
    second.click("#leave")
    expect(second.locator("#verdict")).to_contain_text("Stopped before there was an answer")
    expect(second.locator("#run")).to_be_enabled()
    actions.wait_done(first)
    actions.ask(second, "Hello?")
    actions.wait_done(second)


def test_closing_the_page_frees_the_engine(open_page: Open, files: dict[str, Path]) -> None:
    first, second = open_page(), open_page()
    actions.shorten(second)
    actions.upload(first, *large(files))
    actions.ask(first, "Name every object in the pictures.")
    actions.wait_phase(first, "full", "preparing", "running")
    first.close()
    actions.ask(second, "Hello?")
    actions.wait_done(second)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_screenshots(open_page: Open, screenshots: Path, width: int, dark: bool) -> None:
    page = open_page(width, 900 if width > 900 else 844, dark)
    _picture(page, screenshots / f"{width}-{'dark' if dark else 'light'}-empty.png")
    page.click("#example-0")
    expect(page.locator("#preview .tile")).to_have_count(1)
    page.click("#run")
    actions.wait_done(page)
    page.wait_for_selector(actions.HEATMAP)
    _picture(page, screenshots / f"{width}-{'dark' if dark else 'light'}-done.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
    if width > 900:
        page.evaluate("window.scrollTo(0, 1200)")
        expect(page.locator("#set-pruning-keep_ratio")).to_be_in_viewport()
    else:
        expect(page.locator("#set-pruning-keep_ratio")).to_be_hidden()
        page.click("#settings > button")
        expect(page.locator("#set-pruning-keep_ratio")).to_be_visible()


def _picture(page: Page, path: Path) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(600)  # plots and fonts settle
    page.screenshot(path=path, full_page=True)
