"""The endpoint around a real, tiny checkpoint: the same answers as the engine's own, media and settings included."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import RunRequest, Turn
from tests.app.serving import ask, dial, send, serving, until, waiting

ROOT = Path(__file__).resolve().parents[2]
HALF = ["pruning.keep_ratio=0.5", "experts.top_k=2"]


@pytest.fixture(scope="module")
def address(engines: dict[str, Engine]) -> Iterator[str]:
    with serving(engines["qwen3_vl_moe"]) as found:
        yield found


def part(kind: str, path: Path) -> dict[str, Any]:
    data = base64.b64encode(path.read_bytes()).decode()
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:application/octet-stream;base64,{data}"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "name"), [("image", "wide"), ("video", "clip")])
def test_the_same_answer_as_the_engines_own(
    address: str, moe: Engine, media_files: dict[str, Path], kind: str, name: str, stream: bool
) -> None:
    path = media_files[name]
    content = [part(kind, path), {"type": "text", "text": "What is shown?"}]
    options = {"stream_options": {"include_usage": True}} if stream else {}
    extra = {"compression": {"settings": HALF}, "return_trace": True}
    answer = ask(address, content, max_tokens=5, stream=stream, extra_body=extra, **options)
    request = RunRequest("What is shown?", (path,), sampling=SamplingConfig(5), warm_up=False)
    own = moe.answer(request, CompressionConfig.full().with_settings(HALF))
    last = answer[-1] if stream else answer
    said = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer[:-1])
        if stream
        else answer.choices[0].message.content
    )
    assert said == own.answer
    assert last.usage.prompt_tokens == own.prompt_tokens
    assert last.usage.completion_tokens == len(own.tokens)
    report = last.model_dump()["workbench"]
    assert report["tokens"] == list(own.tokens)
    assert report["visual_tokens"] == own.visual_tokens
    assert report["expert_report"]["pairs_computed"] * 2 == report["expert_report"]["pairs_full"]
    assert {span["name"] for span in report["trace"]["spans"]} >= {"vision encode", "prefill"}


def test_history_goes_into_the_prompt(address: str, moe: Engine, media_files: dict[str, Path]) -> None:
    path = media_files["tall"]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part("image", path)]},
        {"role": "assistant", "content": "A wall."},
        {"role": "user", "content": "What colour?"},
    ]
    answer = ask(address, messages=messages, max_tokens=4)
    own = moe.answer(
        RunRequest("What colour?", (path,), (Turn("What is it?", "A wall."),), SamplingConfig(4), warm_up=False),
        CompressionConfig.full(),
    )
    assert answer.choices[0].message.content == own.answer
    assert answer.usage.prompt_tokens == own.prompt_tokens
    assert answer.choices[0].finish_reason == own.finish_reason


def test_the_snippet_of_the_readme_is_true(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(ROOT)
    with serving(engines["qwen3_vl_moe"], model_name="demo") as address:
        exec(snippet.replace("http://127.0.0.1:7860", address).replace("extra_body", "max_tokens=3, extra_body"), {})
        said = capsys.readouterr().out.split()
    assert int(said[-2]) > 100
    assert float(said[-1]) > 0


def test_hanging_up_ends_a_long_answer(address: str) -> None:
    before = aborted(address)
    with dial(
        address, messages=[{"role": "user", "content": "?"}], max_tokens=4000, temperature=2, seed=1, stream=True
    ) as line:
        assert line.recv(12) == b"HTTP/1.1 200"
    until(lambda: aborted(address) == before + 1)
    assert waiting(address) == 0


def aborted(address: str) -> float:
    for line in send(f"{address}/metrics")[2].decode().splitlines():
        if line.startswith("vllm:request_success_total") and 'finished_reason="abort"' in line:
            return float(line.rpartition(" ")[2])
    return 0.0
