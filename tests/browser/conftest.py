"""A real server in a process of its own, and a real browser."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
UP_WITHIN_S = 90


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = next((found for name in NAMES if (found := shutil.which(name))), None)
    if executable is None:
        reason = f"none of {', '.join(NAMES)} is installed"
        if os.environ.get("CI"):
            pytest.fail(f"The browser test cannot run: {reason}.")
        pytest.skip(f"No browser: {reason}.")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a workbench with the demo checkpoint, started as a user starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    output, history = folder / "output.txt", folder / "history.sqlite"
    address = f"http://127.0.0.1:{port}"
    with output.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "launch.py", "--no-open", "--port", str(port), "--history", str(history)],
            cwd=REPOSITORY,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        deadline_s = time.monotonic() + UP_WITHIN_S
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"The server did not come up:\n{output.read_text()}")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert "Traceback" not in output.read_text(), output.read_text()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, server: str) -> Iterator[Open]:
    """Open the page as a new visitor. Afterwards: no script failed, and nothing was asked of another host."""
    contexts, foreign, failures = [], [], []

    def note(request: Request) -> None:
        if not request.url.startswith((server, "data:", "blob:")):
            foreign.append(request.url)

    def opened(width: int = 1440, height: int = 900, dark: bool = False) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        context.on("request", note)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(f"{server}/?__theme={'dark' if dark else 'light'}")
        page.wait_for_selector("#run")
        page.wait_for_selector("#cache-table table")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert foreign == []
    assert failures == []


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the page go: the folder named by SCREENSHOTS, or a temporary one."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
