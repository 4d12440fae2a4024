"""One blob's file, being written or being read. Blocks: call it off the loop, one call at a time."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from legation.store.blobs import beneath
from legation.store.blobs.blobs import BlobInfo


class Draft:
    """Written under a name that no key has, until it is durable and takes its place."""

    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self._root = root
        self._name = secrets.token_hex(16)
        self._fd = -1
        self._digest = hashlib.sha256()

    def start(self) -> None:
        self._fd = beneath.new_temporary(self._root, self._name)

    def write(self, block: bytes | memoryview) -> None:
        self._digest.update(block)
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]

    def place(self, *, if_absent: bool) -> BlobInfo:
        os.fsync(self._fd)
        beneath.place(self._root, self._name, self.key.split("/"), if_absent=if_absent)
        return info_of(self.key, os.fstat(self._fd), self._digest.hexdigest())

    def drop(self) -> None:
        """Where it was not placed, nothing is left of it."""
        if self._fd >= 0:
            beneath.drop_temporary(self._root, self._name)
            os.close(self._fd)
            self._fd = -1


class OpenFile:
    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self._root = root
        self._fd = -1

    def open(self) -> BlobInfo:
        self._fd = beneath.open_file(self._root, self.key.split("/"))
        return info_of(self.key, os.fstat(self._fd))

    def read(self, size: int) -> bytes:
        """Nothing at its end, and when it is closed."""
        return os.read(self._fd, size) if self._fd >= 0 else b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # a reader that was forgotten must not hold a descriptor


def info_of(key: str, status: os.stat_result, sha256: str | None = None) -> BlobInfo:
    return BlobInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, sha256)
