"""Files that callers uploaded to ask about: each tenant's own, bounded, and gone after an hour."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.api.errors import ApiError, too_large
from engines.media import MIB

PREFIX = "file-"
KEEP_S = 3600
MOST_FILES_EACH, MOST_BYTES_EACH, MOST_BYTES = 64, 256 * MIB, 1024 * MIB


@dataclass(frozen=True)
class StoredFile:
    """A file of one tenant; `name` is what the caller called it and leads nowhere."""

    id: str
    tenant: str
    name: str
    purpose: str
    bytes: int
    created_s: int
    path: Path

    @property
    def expires_s(self) -> int:
        return self.created_s + KEEP_S


class FileStore:
    """Nobody learns of another tenant's file, not even that there is one: its id is unknown to them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[str, StoredFile] = {}
        # Made when the first file comes, and deleted with the store.
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, tenant: str, name: str, purpose: str, data: bytes) -> StoredFile:
        """Keep it for an hour. ApiError (413) where the tenant, or all together, hold too much."""
        with self._lock:
            self._expire()
            mine = [file for file in self._files.values() if file.tenant == tenant]
            if len(mine) >= MOST_FILES_EACH or sum(file.bytes for file in mine) + len(data) > MOST_BYTES_EACH:
                raise too_large(
                    f"Uploaded files may be {MOST_FILES_EACH} and {MOST_BYTES_EACH / MIB:.0f} MiB together; "
                    "delete some, or wait an hour until they are gone."
                )
            if sum(file.bytes for file in self._files.values()) + len(data) > MOST_BYTES:
                raise too_large("The server holds as many uploaded files as it may; send this one as a data URL.")
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="workbench-files-")
            name_of_ours = PREFIX + secrets.token_hex(16)
            path = Path(self._folder.name) / name_of_ours
            path.write_bytes(data)
            file = StoredFile(name_of_ours, tenant, name, purpose, len(data), int(self._clock()), path)
            self._files[file.id] = file
            return file

    def get(self, tenant: str, name: str) -> StoredFile:
        """ApiError (404) for an id that is not this tenant's, whoever's it is."""
        with self._lock:
            self._expire()
            return self._get(tenant, name)

    def read(self, tenant: str, name: str) -> bytes:
        with self._lock:
            self._expire()
            return self._get(tenant, name).path.read_bytes()

    def of(self, tenant: str) -> list[StoredFile]:
        with self._lock:
            self._expire()
            return [file for file in self._files.values() if file.tenant == tenant]

    def delete(self, tenant: str, name: str) -> None:
        with self._lock:
            self._drop(self._get(tenant, name))

    def _get(self, tenant: str, name: str) -> StoredFile:
        file = self._files.get(name)
        if file is None or file.tenant != tenant:
            raise ApiError(
                404,
                "There is no such file of yours; upload it to /v1/files, where it stays for an hour.",
                code="file_not_found",
            )
        return file

    def _expire(self) -> None:
        for file in [file for file in self._files.values() if file.expires_s <= self._clock()]:
            self._drop(file)

    def _drop(self, file: StoredFile) -> None:
        del self._files[file.id]
        file.path.unlink(missing_ok=True)
