"""Sets from files: bad rows are listed with the reason and the rest can be asked; nothing outside is opened."""

from __future__ import annotations

import base64
import csv
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engines.demo import benchmark
from engines.media import MediaLimits
from engines.sets import RowProblem, open_set
from engines.sets.base import LazyItems


@pytest.fixture
def root(tmp_path: Path, media_files: dict[str, Path]) -> Path:
    folder = tmp_path / "set"
    (folder / "media").mkdir(parents=True)
    for name, path in media_files.items():
        (folder / "media" / f"{name}{path.suffix}").write_bytes(path.read_bytes())
    return folder


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def problems_of(source: Path, tmp_path: Path) -> dict[str, str]:
    return {problem.row: problem.reason for problem in open_set(source, tmp_path / "out").problems}


def test_a_tenth_of_broken_rows_is_listed_and_the_rest_is_there(root: Path, tmp_path: Path) -> None:
    (root / "broken.png").write_bytes((root / "media/wide.png").read_bytes()[:300])
    with (root / "huge.mp4").open("wb") as file:
        file.write((root / "media/clip.mp4").read_bytes())
        file.truncate(1 << 30)
    claim = bytearray((root / "media/wide.png").read_bytes())
    claim[16:24] = (32_000).to_bytes(4, "big") * 2  # a picture of 32,000 x 32,000 pixels, by its header
    claim[29:33] = zlib.crc32(claim[12:29]).to_bytes(4, "big")
    (root / "claim.png").write_bytes(claim)
    (root / "link.png").symlink_to("/etc/hostname")
    (root / "loop.png").symlink_to(root / "loop.png")
    good = {"media": "media/wide.png", "question": "What?", "answer": "A red circle", "category": "colour"}
    bad: list[tuple[Any, str]] = [
        ({**good, "media": "media/none.png"}, "none.png does not exist"),
        ({**good, "media": "broken.png"}, "broken.png"),
        ({**good, "question": " "}, "no question"),
        ({"media": "media/wide.png"}, "no question"),
        ({**good, "question": 7.5, "media": 3}, "media are a number"),
        ({**good, "question": ["What?"]}, "question is a list"),
        ({**good, "answer": {"a": 1}}, "answer is an object"),
        ({**good, "media": "huge.mp4"}, "is 1024.0 MiB"),
        ({**good, "media": "claim.png"}, "1024.0 million"),
        ({**good, "media": "link.png"}, "outside the folder"),
        ({**good, "media": "../set/../../etc/passwd"}, "outside the folder"),
        ({**good, "media": "/etc/passwd"}, "outside the folder"),
        ({**good, "media": "https://example.org/a.png"}, "an address"),
        ({**good, "media": "data:image/png;base64,AAAA"}, "an address"),
        ({**good, "media": "a\0b"}, "zero byte"),
        ({**good, "media": "x" * 5000}, "cannot be opened"),
        ({**good, "media": "loop.png"}, "leads to no file"),
        ({**good, "media": ["media/wide.png"] * 9}, "9 media"),
        ({"question": "What?"}, "names no media"),
        ('{"media": ', "not JSON"),
        ("[1, 2]", "not an object"),
        ('{"media": "media/wide.png", "question": "\\ud800"}', "not UTF-8"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({**good, "question": "x" * (2 << 20)}), "longer than 1 MiB"),
    ]
    rows: list[Any] = [good for _ in range(9 * len(bad))]
    for place, (row, _) in enumerate(bad):
        rows.insert(place * 10, row)
    found = open_set(write_jsonl(root / "rows.jsonl", rows), tmp_path / "out")
    assert found.total == len(found.items) == 9 * len(bad)
    assert found.labelled
    assert [problem.row for problem in found.problems] == [f"line {place * 10 + 1}" for place in range(len(bad))]
    for problem, (_, reason) in zip(found.problems, bad, strict=True):
        assert reason in problem.reason
        assert str(tmp_path) not in problem.reason
    assert found.items[0].groups == {"category": "colour"}
    assert found.items[0].media == ((root / "media/wide.png").resolve(),)


def test_rows_without_an_answer_are_unlabelled_and_several_media_stay_in_order(root: Path, tmp_path: Path) -> None:
    rows = [
        {"media": ["media/clip.mp4", "media/wide.png"], "question": "What?"},
        {"media": [], "question": "Hello?", "answer": 3},
    ]
    found = open_set(write_jsonl(root / "rows.jsonl", rows[:1]), tmp_path / "out")
    assert not found.labelled
    assert [path.name for path in found.items[0].media] == ["clip.mp4", "wide.png"]
    found = open_set(write_jsonl(root / "rows.jsonl", rows), tmp_path / "out")
    assert (found.items[1].media, found.items[1].answer) == ((), "3")
    assert not found.problems


def test_a_csv_file_is_the_same_as_its_jsonl(root: Path, tmp_path: Path) -> None:
    rows = [
        {"media": "media/wide.png", "question": "What, then?", "answer": "a\nb", "category": "x"},
        {"media": '["media/wide.png", "media/tall.png"]', "question": "Both?", "answer": "", "category": ""},
        {"media": "[oops", "question": "?", "answer": "", "category": ""},
        {"media": "", "question": "?", "answer": "", "category": ""},
    ]
    with (root / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        file.write("media/wide.png,one,two,three,four\n")
    with (root / "rows.csv").open("ab") as file:
        file.write(b"media/wide.png,\xff\xfe,,\nmedia/wide.png,Last?,,\n")
    found = open_set(root / "rows.csv", tmp_path / "out")
    assert [item.question for item in found.items] == ["What, then?", "Both?", "Last?"]
    assert [item.answer for item in found.items] == ["a\nb", "", ""]
    assert [problem.row for problem in found.problems] == ["row 3", "row 4", "row 5", "row 6"]
    same = [
        {"media": "media/wide.png", "question": "What, then?", "answer": "a\nb", "category": "x"},
        {"media": ["media/wide.png", "media/tall.png"], "question": "Both?"},
        {"media": "media/wide.png", "question": "Last?"},
    ]
    assert open_set(write_jsonl(root / "same.jsonl", same), tmp_path / "out").fingerprint == found.fingerprint


def test_the_fingerprint_follows_what_is_asked(root: Path, tmp_path: Path) -> None:
    row = {"media": "media/wide.png", "question": "What?", "answer": "x"}
    seen = set()
    for change in ({}, {"question": "Who?"}, {"answer": "y"}, {"media": "media/tall.png"}, {"category": "c"}):
        seen.add(open_set(write_jsonl(root / "rows.jsonl", [{**row, **change}]), tmp_path / "out").fingerprint)
    assert len(seen) == 5


def test_a_folder_of_media_is_described(root: Path, tmp_path: Path) -> None:
    (root / "media" / "notes.txt").write_text("no media")
    (root / "media" / "bad.jpg").write_bytes(b"no picture")
    found = open_set(root / "media", tmp_path / "out")
    assert [(item.media[0].name, item.question, item.answer) for item in found.items] == [
        ("clip.mp4", "Describe this.", ""),
        ("tall.png", "Describe this.", ""),
        ("wide.png", "Describe this.", ""),
    ]
    assert found.problems == (RowProblem("bad.jpg", found.problems[0].reason),)
    assert not found.labelled


def test_every_counts_rows_and_looks_at_no_other(root: Path, tmp_path: Path) -> None:
    rows = [
        {"media": f"media/{'wide' if place % 3 == 0 else 'none'}.png", "question": str(place)} for place in range(9)
    ]
    looked: list[int] = []
    found = open_set(write_jsonl(root / "rows.jsonl", rows), tmp_path / "out", every=3, progress=looked.append)
    assert [item.question for item in found.items] == ["0", "3", "6"]
    assert not found.problems
    assert looked == list(range(1, 10))


def test_limits_of_media_are_kept(root: Path, tmp_path: Path) -> None:
    source = write_jsonl(root / "rows.jsonl", [{"media": "media/wide.png", "question": "?"}])
    found = open_set(source, tmp_path / "out", limits=MediaLimits(max_image_pixels=100))
    assert not found.items
    assert "pixels" in found.problems[0].reason


def test_the_bundled_sets_are_the_benchmark_drawn_only_as_far_as_asked(tmp_path: Path) -> None:
    found = open_set("clips", tmp_path, every=100)
    assert (found.total, found.labelled, found.problems) == (3, True, ())
    assert not list(tmp_path.iterdir())
    asked = found.items[0]
    assert len(list(tmp_path.iterdir())) == 1
    expected = next(benchmark.items("clips", tmp_path, 100))
    assert asked == expected
    assert found.items[0] is asked
    assert found.fingerprint != open_set("clips", tmp_path, every=50).fingerprint


def test_a_lazy_sequence_is_a_sequence() -> None:
    items: Any = LazyItems(iter("abc"), 3)  # type: ignore[arg-type]
    assert (items[-1], items[0], len(items), list(items), items[1:]) == ("c", "a", 3, ["a", "b", "c"], ["b", "c"])
    with pytest.raises(IndexError):
        items[3]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rows.csv", "question,answer\na,b\n", "has no column media"),
        ("rows.json", "{}", "is no set that is known here"),
        ("rows.json", "{", "is not JSON"),
        ("rows.txt", "hello", "is no set that is known here"),
        ("rows.jsonl", "", "holds no rows"),
        ("rows.tsv", "index\tquestion\n1\tx\n", "has no column image"),
        ("rows.parquet", "PAR1", "pyarrow"),
    ],
)
def test_what_is_no_set_at_all_gets_a_sentence(
    tmp_path: Path, name: str, content: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=sentence):
        open_set(tmp_path / name, tmp_path / "out")


def test_a_set_that_is_not_there_and_one_that_is_not_clear(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no set"):
        open_set(tmp_path / "nothing", tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        open_set("all", tmp_path, every=0)
    write_jsonl(tmp_path / "a.jsonl", [])
    write_jsonl(tmp_path / "b.jsonl", [])
    with pytest.raises(ValueError, match=r"a\.jsonl and b\.jsonl; name one"):
        open_set(tmp_path, tmp_path / "out")


# ---- public layouts ----


def test_vqav2(root: Path, tmp_path: Path) -> None:
    (root / "val2014").mkdir()
    for number in (42, 43):
        Image.fromarray(np.full((64, 64, 3), number, np.uint8)).save(root / f"val2014/COCO_val2014_{number:012d}.jpg")
    questions = [
        {"image_id": 42, "question": "What colour?", "question_id": 1},
        {"image_id": 43, "question": "How many?", "question_id": 2},
        {"image_id": 44, "question": "Gone?", "question_id": 3},
        {"image_id": "../x", "question": "Bad?", "question_id": 4},
    ]
    annotations = [
        {"question_id": 1, "multiple_choice_answer": "grey", "answer_type": "other", "answers": []},
        {"question_id": 2, "multiple_choice_answer": "2", "answer_type": "number"},
    ]
    (root / "v2_OpenEnded_mscoco_val2014_questions.json").write_text(
        json.dumps({"data_subtype": "val2014", "questions": questions})
    )
    (root / "v2_mscoco_val2014_annotations.json").write_text(json.dumps({"annotations": annotations}))
    found = open_set(root, tmp_path / "out")
    assert [item.answer for item in found.items] == ["grey", "2"]
    assert found.items[0].question == "What colour?\nAnswer the question using a single word or phrase."
    assert found.items[0].media[0].name == "COCO_val2014_000000000042.jpg"
    assert [item.groups for item in found.items] == [{"category": "other"}, {"category": "number"}]
    assert [problem.row for problem in found.problems] == ["question 3", "question 4"]
    assert "COCO_val2014_000000000044.jpg does not exist" in found.problems[0].reason
    assert "stricter" in found.note


def test_textvqa(root: Path, tmp_path: Path) -> None:
    (root / "media").rename(root / "train_images")
    Image.open(root / "train_images/wide.png").save(root / "train_images/0a1b.jpg")
    data = [
        {"image_id": "0a1b", "question": "what does it say?", "answers": ["nokia", "Nokia N8", "nokia"]},
        {"image_id": "../../../etc/passwd", "question": "?", "answers": []},
        {"image_id": 5, "question": "?"},
    ]
    (root / "TextVQA_0.5.1_val.json").write_text(json.dumps({"data": data}))
    found = open_set(root, tmp_path / "out")
    assert [(item.answer, item.media[0].name) for item in found.items] == [("nokia", "0a1b.jpg")]
    assert "outside" in found.problems[0].reason
    assert "image_id" in found.problems[1].reason


def test_mmbench(root: Path, tmp_path: Path) -> None:
    image = base64.b64encode((root / "media/wide.png").read_bytes()).decode()
    rows = [
        ["index", "question", "hint", "A", "B", "C", "D", "answer", "category", "l2-category", "image"],
        ["7", "Which?", "Look\nclosely.", "red", "blue", "", "", "B", "colour", "fine", image],
        ["1000007", "Which?", "", "blue", "red", "", "", "A", "colour", "fine", "7"],
        ["8", "Which?", "", "x", "y", "", "", "A", "colour", "fine", "%%% no base64 %%%" * 9],
        ["9", "Which?", "", "x", "y", "", "", "A", "colour", "fine", ""],
    ]
    with (root / "MMBench_DEV_EN.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(rows)
    found = open_set(root / "MMBench_DEV_EN.tsv", tmp_path / "out")
    first, again = found.items
    letter = "Answer with the option's letter from the given choices directly."
    assert first.question == f"Look\nclosely.\nWhich?\nA. red\nB. blue\n{letter}"
    assert (first.answer, first.groups) == ("B", {"category": "colour", "l2-category": "fine"})
    assert first.media[0].read_bytes() == (root / "media/wide.png").read_bytes()
    assert again.media == first.media
    assert again.answer == "A"
    assert ["base64" in problem.reason or "no media" in problem.reason for problem in found.problems] == [True, True]


VIDEO_MME = [
    {"videoID": "clip", "question": "What moves?", "options": ["A. a bar", "B. a cat"], "answer": "A",
     "task_type": "Action", "duration": "short", "domain": "Art"},
    {"videoID": "gone", "question": "?", "options": [], "answer": "A"},
    {"videoID": 4, "question": "?"},
]  # fmt: skip


@pytest.mark.parametrize("layout", ["flat", "nested", "parquet"])
def test_video_mme(root: Path, tmp_path: Path, layout: str) -> None:
    (root / "media").rename(root / "data")
    if layout == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="parquet is an extra")
        table = sys.modules["pyarrow"].Table.from_pylist(VIDEO_MME[:2])
        parquet.write_table(table, root / "test.parquet")
    else:
        nested = [{"videoID": row["videoID"], "questions": [row]} for row in VIDEO_MME]
        (root / "videomme.json").write_text(json.dumps(nested if layout == "nested" else VIDEO_MME))
    found = open_set(root, tmp_path / "out")
    (item,) = found.items
    assert item.media[0].name == "clip.mp4"
    assert item.question.splitlines()[:3] == ["What moves?", "A. a bar", "B. a cat"]
    assert (item.answer, item.groups) == ("A", {"category": "Action", "duration": "short", "domain": "Art"})
    assert [problem.row for problem in found.problems] == ["question 2", "question 3"][: 1 + (layout != "parquet")]
