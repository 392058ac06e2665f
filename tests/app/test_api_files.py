"""Media that do not come in the request itself: uploaded before, or fetched from where the operator allows it."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.api import filestore, sources
from app.api.errors import ApiError
from app.api.filestore import KEEP_S, FileStore
from app.api.gate import Gate, digest_of
from app.api.sources import Sources, read_origins
from engines.media import MIB
from tests.app.serving import FileEngine, ask, client, send, serving
from tests.app.test_api_chat import MP4, PNG, image, text, url, video

ALICE, BOB = "alice-key-0123456789", "bob-key-01234567890"
TWO = Gate(keys={digest_of(ALICE): "alice", digest_of(BOB): "bob"})


@pytest.fixture(scope="module")
def engine() -> FileEngine:
    return FileEngine()


@pytest.fixture(scope="module")
def address(engine: FileEngine) -> Iterator[str]:
    with serving(engine, TWO, max_upload_mb=1) as found:
        yield found


def upload(address: str, data: bytes = PNG, key: str = ALICE, name: str = "a.png", purpose: Any = "vision") -> Any:
    with client(address, key) as api:
        return api.files.create(file=(name, data), purpose=purpose)


# ---- uploaded files ----


def test_an_uploaded_file_can_be_asked_about(address: str, engine: FileEngine) -> None:
    picture, clip = upload(address, PNG), upload(address, MP4, name="b.mp4", purpose="user_data")
    assert (picture.object, picture.bytes, picture.filename) == ("file", len(PNG), "a.png")
    assert picture.expires_at == picture.created_at + KEEP_S
    for part in (image(picture.id), {"type": "file", "file": {"file_id": picture.id}}):
        for _ in range(2):
            ask(address, [part, video(clip.id), text()], ALICE)
            assert engine.files[-1] == [PNG, MP4]


def test_files_are_listed_and_deleted(address: str) -> None:
    with client(address, ALICE) as api:
        for file in api.files.list():
            assert api.files.delete(file.id).deleted
        kept = api.files.create(file=("x" * 500 + ".png", PNG), purpose="vision")
        assert [file.id for file in api.files.list()] == [kept.id]
        assert len(api.files.retrieve(kept.id).filename) <= 200
        assert api.files.delete(kept.id).deleted
        with pytest.raises(openai.NotFoundError):
            api.files.retrieve(kept.id)
    with pytest.raises(openai.NotFoundError):
        ask(address, [image(kept.id), text()], ALICE)


def test_nobody_learns_of_anothers_file(address: str, engine: FileEngine) -> None:
    file = upload(address, PNG, ALICE)
    with client(address, BOB) as api:
        assert file.id not in {other.id for other in api.files.list()}
        for attempt in (api.files.retrieve, api.files.delete):
            with pytest.raises(openai.NotFoundError) as foreign:
                attempt(file.id)
            with pytest.raises(openai.NotFoundError) as unknown:
                attempt("file-" + "0" * 32)
            assert foreign.value.body == unknown.value.body, "that there is one is not said either"
    runs = len(engine.seen)
    for name in (file.id, file.id + "\u200b", file.id.upper(), "file-../" + file.id, "file-"):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            ask(address, [image(name), text()], BOB)
    assert len(engine.seen) == runs
    with pytest.raises(openai.AuthenticationError):
        upload(address, key="none")
    assert ask(address, [image(file.id), text()], ALICE).choices


@pytest.mark.parametrize(
    ("data", "purpose", "sentence"),
    [
        (b"only words", "vision", "a text file"),
        (b"<svg/>", "vision", "an SVG drawing"),
        (b"", "vision", "empty"),
        (PNG, "fine-tune", "purpose must be one of"),
    ],
)
def test_bad_files_get_a_sentence(address: str, data: bytes, purpose: str, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        upload(address, data, purpose=purpose)
    assert sentence in refused.value.message


def test_what_is_too_large_is_refused(address: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        upload(address, PNG + bytes(3 * MIB))
    assert refused.value.status_code == 413


def test_what_no_client_would_send_gets_a_sentence(address: str) -> None:
    key = {"Authorization": f"Bearer {ALICE}"}
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--\r\n'
    for body, kind, status in (
        (b"{}", "application/json", 415),
        (b"nonsense", "multipart/form-data; boundary=x", 400),
        (b"", "multipart/form-data", 400),
        (form, "multipart/form-data; boundary=x", 400),
    ):
        assert send(f"{address}/v1/files", body, Content_Type=kind, **key)[0] == status
    status, _, said = send(
        f"{address}/v1/files", form, Content_Type="multipart/form-data; boundary=x", Origin="https://evil.org", **key
    )
    assert status == 403
    assert b"another origin" in said


def test_strangers_share_no_list() -> None:
    with serving(FileEngine(), Gate()) as address:
        file = upload(address, key="none")
        with client(address) as api, pytest.raises(openai.PermissionDeniedError):
            api.files.list()
        assert ask(address, [image(file.id), text()]).choices


def test_files_are_bounded_and_go_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    store = FileStore(lambda: now[0])
    monkeypatch.setattr(filestore, "MOST_FILES_EACH", 3)
    monkeypatch.setattr(filestore, "MOST_BYTES_EACH", 100)
    monkeypatch.setattr(filestore, "MOST_BYTES", 150)
    first = store.add("a", "x", "vision", bytes(60))
    with pytest.raises(ApiError, match="wait an hour"):
        store.add("a", "x", "vision", bytes(60))
    store.add("b", "x", "vision", bytes(60))
    with pytest.raises(ApiError, match="as many uploaded files as it may"):
        store.add("c", "x", "vision", bytes(60))
    for _ in range(2):
        store.add("a", "x", "vision", b"1")
    with pytest.raises(ApiError):
        store.add("a", "x", "vision", b"1")
    now[0] += KEEP_S
    assert store.of("a") == []
    assert not first.path.exists()
    with pytest.raises(ApiError):
        store.read("a", first.id)


# ---- fetched files ----


class Host(http.server.BaseHTTPRequestHandler):
    """Pictures, and ways to lead elsewhere."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/a.png")  # type: ignore[attr-defined]
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/a.png", "/large") else 404)
        self.end_headers()
        self.wfile.write(PNG if self.path == "/a.png" else bytes(2 * MIB))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    Host.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_listed_place_is_fetched_from_and_no_other(host: str, engine: FileEngine) -> None:
    with serving(engine, max_upload_mb=1, media_from=read_origins([host])) as address:
        ask(address, [image(f"{host}/a.png"), text()])
        assert engine.files[-1] == [PNG]
        ask(address, [image(url(PNG)), text()])
        Host.asked.clear()
        port = host.rpartition(":")[2]
        for wrong in (
            f"http://localhost:{port}/a.png", "http://127.0.0.1/a.png", f"https://127.0.0.1:{port}/a.png",
            f"http://127.0.0.1:{port}@example.org/a.png", f"http://example.org\\@127.0.0.1:{port}/a.png",
            f"http://me@127.0.0.1:{port}/a.png", f"http://127.0.0.1:{port}/a.png\r\nX: y", "file:///etc/hostname",
            f"http://127.0.0.1:{port}\u3002example.org/", "http://[::1/a.png", f"//127.0.0.1:{port}/a.png", "http:",
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError):
                ask(address, [image(wrong), text()])
        assert Host.asked == [], "nothing was asked for"
        for path, status in (("/away", 400), ("/none", 400), ("/large", 413)):
            with pytest.raises(openai.APIStatusError) as refused:
                ask(address, [image(f"{host}{path}"), text()])
            assert refused.value.status_code == status
        assert Host.asked == ["/away", "/none", "/large"], "and no redirect was followed"


def test_a_place_that_does_not_answer_is_said_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = read_origins(["http://127.0.0.1:9"])
    with pytest.raises(ApiError) as refused:
        Sources(FileStore(), origins).read("a", "http://127.0.0.1:9/x.png", "image 1", MIB)
    assert str(refused.value) == "image 1 could not be fetched."


def test_a_slow_place_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drip(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return b"x"

    monkeypatch.setattr(sources, "FETCH_S", 0)
    monkeypatch.setattr(sources._OPENER, "open", lambda *_, **__: Drip())
    with pytest.raises(ApiError, match="could not be fetched"):
        Sources(FileStore(), read_origins(["a.org"])).read("a", "https://a.org/x.png", "image 1", MIB)


def test_places_are_read_strictly() -> None:
    assert read_origins(["Media.example.org", "http://10.0.0.1:8000/"]) == {
        ("https", "media.example.org", 443),
        ("http", "10.0.0.1", 8000),
    }
    for wrong in ("", "ftp://a.org", "https://a.org/path", "a.org?x", "me@a.org", "https://a.org:x", "https://[::"):
        with pytest.raises(ValueError, match="no place to fetch from"):
            read_origins([wrong])


def test_nothing_is_left_when_the_store_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FileStore()
    assert list(tmp_path.iterdir()) == []
    store.add("a", "../../etc/passwd", "vision", PNG)
    assert len(list(tmp_path.rglob("file-*"))) == 1
    del store
    assert list(tmp_path.iterdir()) == []
