"""From the command to the page: how long `python launch.py` takes until the page answers.

python -m benchmarks.startup --runs 3
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.paired import print_json

ROOT = Path(__file__).resolve().parent.parent
_LIMIT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    seconds = [time_to_page_s() for _ in range(options.runs)]
    print(f"The page answers after {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f}).")
    print_json("startup", median_s=round(statistics.median(seconds), 2), runs=[round(value, 2) for value in seconds])


def time_to_page_s() -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), "--no-open", "--port", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        while time.perf_counter() - start_s < _LIMIT_S:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
                    response.read()
                    return time.perf_counter() - start_s
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise SystemExit(f"The page did not answer within {_LIMIT_S:.0f} s.")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
