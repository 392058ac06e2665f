"""The workbench as a process of its own on a loopback port, and what it holds while nothing runs."""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
START_S, IDLE_S = 300, 120
READINGS, READ_EVERY_S = 10, 0.2


@dataclass(frozen=True)
class AtRest:
    """Of the process and its children: medians over some readings."""

    rss_bytes: int
    threads: int
    files: int


class Server:
    """`launch.py` with these options; a context manager that ends it. `scratch` is its folder for temporary files."""

    def __init__(self, *options: str, scratch: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.model = ""
        self._command = [sys.executable, str(ROOT / "launch.py"), "--port", str(port), "--no-open", *options]
        self._environment = {**os.environ, "TMPDIR": str(scratch)}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        end_s = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self._process.kill()
                raise RuntimeError(f"The server did not start: {self._process.communicate()[1][-2000:]}")
            time.sleep(0.2)
        with urllib.request.urlopen(f"{self.address}/v1/models") as response:
            self.model = re.search(r'"id":"([^"]+)"', response.read().decode())[1]  # type: ignore[index]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/ready", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        with urllib.request.urlopen(f"{self.address}/metrics") as response:
            text = response.read().decode()
        found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (.*)$", text, re.MULTILINE)
        return len(found) == 2 and not any(float(value) for value in found)

    def at_rest(self) -> AtRest:
        """Wait until nothing runs, then read."""
        end_s = time.monotonic() + IDLE_S
        while not self.idle():
            if time.monotonic() > end_s:
                raise RuntimeError(f"The server is still busy after {IDLE_S} s without a request.")
            time.sleep(READ_EVERY_S)
        readings = []
        for _ in range(READINGS):
            time.sleep(READ_EVERY_S)
            readings.append(self._read())
        rss, threads, files = (round(statistics.median(values)) for values in zip(*readings, strict=True))
        return AtRest(rss, threads, files)

    def _read(self) -> tuple[int, int, int]:
        own = psutil.Process(self._process.pid)
        family = [own, *own.children(recursive=True)]
        return (
            sum(process.memory_info().rss for process in family),
            sum(process.num_threads() for process in family),
            sum(process.num_fds() for process in family),
        )
