"""Many clients at once against a real server: no error but 429, no leak, and the answers of a quiet server.

    python -m benchmarks.serving_load --seconds 120 --clients 8

Starts `launch.py` on a loopback port and speaks to it with OpenAI's own client. First every request of a fixed list is
asked alone, which gives the answers to compare with; then all clients stream at once for as long as was asked, some
leaving in mid-stream and some sending bodies that are too large; then every request is asked alone again.

Memory is the server's resident set (RSS, its child processes included), the median of ten readings while nothing runs
or waits. The level after warm-up is read after the quiet round and a first spell under the same load.
Exit code 1 if any check fails.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from benchmarks.paired import print_json
from benchmarks.server import Server

SAMPLES = Path(__file__).resolve().parent.parent / "assets" / "samples"
MOST_GROWTH = 0.05
# Of the requests under load.
LEAVING, TOO_LARGE = 0.2, 0.05
UPLOAD_MB = 4
MAX_TOKENS = 24


@dataclass(frozen=True)
class Asked:
    """One request of the list."""

    kind: str
    messages: list[dict[str, Any]]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a request. Times are the client's, from sending it."""

    kind: str
    how: str
    """answered, left, refused (413, as it should be), waited (429), wrong (another answer), or an error's words."""
    first_s: float | None = None
    whole_s: float | None = None


def requests() -> list[Asked]:
    """Text, images, clips and a conversation, full and compressed, with caches and without."""
    found = [Asked("text", [_said("What is two and two?")]), Asked("text", [_said("Name a colour.")])]
    samples = json.loads((SAMPLES / "samples.json").read_text(encoding="utf-8"))
    for sample in samples:
        path = SAMPLES / sample["file"]
        kind = "video" if path.suffix == ".mp4" else "image"
        if path.stat().st_size > 200_000:
            continue
        asked = [_said(sample["question"], kind, path)]
        found.append(Asked(kind, asked))
        found.append(Asked(f"{kind}, pruned", asked, ("pruning.keep_ratio=0.5",)))
        found.append(Asked(f"{kind}, cached", asked, ("cache.prefix=true", "cache.encoder=true")))
        turns = [*asked, {"role": "assistant", "content": "Let me see."}, _said("And what else is there?")]
        found.append(Asked(f"{kind}, second turn", turns, ("cache.prefix=true",)))
    return found


def _said(text: str, kind: str = "", path: Path | None = None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if path is not None:
        data = base64.b64encode(path.read_bytes()).decode()
        media = "video/mp4" if kind == "video" else "image/png"
        parts.insert(0, {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{media};base64,{data}"}})
    return {"role": "user", "content": parts}


class Client:
    """Asks, and says what came back."""

    def __init__(self, address: str, model: str, answers: dict[int, str]) -> None:
        self._api = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300)
        self._model, self._answers = model, answers

    def close(self) -> None:
        self._api.close()

    def stream(self, asked: Asked) -> Any:
        return self._api.chat.completions.create(
            model=self._model, messages=asked.messages, stream=True, max_tokens=MAX_TOKENS, temperature=0,
            extra_body={"compression": {"settings": list(asked.settings)}},
        )  # type: ignore[call-overload]  # fmt: skip

    def answer(self, asked: Asked) -> str:
        with self.stream(asked) as pieces:
            return "".join(_text(piece) for piece in pieces)

    def ask(self, number: int, asked: Asked, leave_after: int | None) -> Outcome:
        """One request to its end, or until so many pieces of its answer have come."""
        start_s = time.perf_counter()
        first_s, said, pieces = None, "", 0
        try:
            with self.stream(asked) as stream:
                for piece in stream:
                    first_s = first_s or time.perf_counter() - start_s
                    said += _text(piece)
                    pieces += 1
                    if pieces == leave_after:
                        same = self._answers[number].startswith(said)
                        return Outcome(asked.kind, "left" if same else "wrong", first_s)
        except openai.RateLimitError:
            return Outcome(asked.kind, "waited")
        except openai.OpenAIError as error:
            return Outcome(asked.kind, f"{type(error).__name__}: {error}")
        same = said == self._answers[number]
        return Outcome(asked.kind, "answered" if same else "wrong", first_s, time.perf_counter() - start_s)

    def send_too_much(self) -> Outcome:
        """A body beyond the server's limit, which must be refused in so many words."""
        url = "data:image/png;base64," + "A" * (UPLOAD_MB * 2 << 20)
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is shown?"}]
        try:
            self.answer(Asked("too large", [{"role": "user", "content": content}]))
        except openai.APIStatusError as error:
            said = error.status_code == 413 and "larger than" in error.message
            return Outcome("too large", "refused" if said else f"{error.status_code}: {error.message}")
        except openai.OpenAIError as error:
            return Outcome("too large", f"{type(error).__name__}: {error}")
        return Outcome("too large", "wrong")


def _text(piece: Any) -> str:
    return (piece.choices[0].delta.content or "") if piece.choices else ""


def load(
    address: str, model: str, listed: list[Asked], answers: dict[int, str], clients: int, seconds: float, seed: int
) -> list[Outcome]:
    """All clients at once, each with requests drawn from the list, until the time is up."""
    end_s = time.monotonic() + seconds
    outcomes: list[Outcome] = []

    def work(number: int) -> None:
        draw, client = random.Random(f"{seed} {number}"), Client(address, model, answers)
        while time.monotonic() < end_s:
            if draw.random() < TOO_LARGE:
                outcomes.append(client.send_too_much())
                continue
            place = draw.randrange(len(listed))
            leave = draw.randrange(1, 5) if draw.random() < LEAVING else None
            outcomes.append(client.ask(place, listed[place], leave))
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def show(outcomes: list[Outcome]) -> None:
    print(f"{'kind':<22}{'asked':>7}{'answered':>10}{'left':>6}{'413':>5}{'429':>5}{'first s':>9}{'whole s':>9}")
    for kind in [*sorted({outcome.kind for outcome in outcomes}), "all"]:
        mine = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        how = Counter(outcome.how for outcome in mine)
        first = [outcome.first_s for outcome in mine if outcome.first_s is not None]
        whole = [outcome.whole_s for outcome in mine if outcome.whole_s is not None]
        figures = [f"{statistics.median(values):.2f}" if values else "-" for values in (first, whole)]
        print(
            f"{kind:<22}{len(mine):>7}{how['answered']:>10}{how['left']:>6}{how['refused']:>5}{how['waited']:>5}"
            f"{figures[0]:>9}{figures[1]:>9}"
        )
    print("Seconds are medians over the clients' requests, with the wait for a turn in them.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of the load that is checked")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds of load before memory is first read")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, help="only the first so many of the list")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="demo")
    options = parser.parse_args(arguments)
    listed = requests()[: options.requests]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Server("--model", options.model, "--max-upload-mb", str(UPLOAD_MB), scratch=Path(scratch)) as server,
    ):
        one = Client(server.address, server.model, {})
        answers = {number: one.answer(asked) for number, asked in enumerate(listed)}
        loaded = (server.address, server.model, listed, answers, options.clients)
        warming = load(*loaded, options.warm_up, options.seed + 1)
        before = server.at_rest()
        outcomes = load(*loaded, options.seconds, options.seed)
        after = server.at_rest()
        again = {number: one.answer(asked) for number, asked in enumerate(listed)}
        one.close()
        left_over = [path.name for path in Path(scratch).iterdir() if path.name.startswith("workbench-api-")]
    show(outcomes)
    growth = after.rss_bytes / before.rss_bytes - 1
    print(
        f"Resident memory: {before.rss_bytes / 1e6:.0f} MB after warm-up, {after.rss_bytes / 1e6:.0f} MB after the "
        f"load ({growth:+.1%}); threads {before.threads} and {after.threads}, open files {before.files} and "
        f"{after.files}."
    )
    how = Counter(outcome.how for outcome in warming + outcomes)
    errors = {words: times for words, times in how.items() if words not in ("answered", "left", "refused", "waited")}
    for words, times in errors.items():
        print(f"{times} x {words}")
    checks = {
        "no_error_but_429": not errors,
        "clients_left_in_mid_stream": how["left"] > 0,
        "too_large_bodies_refused": how["refused"] > 0,
        "memory_back": growth <= MOST_GROWTH,
        "threads_and_files_back": after.threads <= before.threads + 2 and after.files <= before.files + 2,
        "no_file_left": not left_over,
        "same_answers_afterwards": again == answers,
    }
    for name, met in checks.items():
        print(f"{'met ' if met else 'NOT '} {name.replace('_', ' ')}")
    print_json(
        "serving_load", model=server.model, seconds=options.seconds, clients=options.clients, asked=len(outcomes),
        **{word: sum(outcome.how == word for outcome in outcomes)
           for word in ("answered", "left", "refused", "waited", "wrong")},
        rss_before_bytes=before.rss_bytes, rss_after_bytes=after.rss_bytes, growth=round(growth, 4), level=MOST_GROWTH,
        checks=checks, reached=all(checks.values()),
    )  # fmt: skip
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
