"""SQLite files: with a write-ahead log, durable at every commit, private to their owner."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from legation.errors import StorageFailed

# Of log before it is merged into the file, by whoever commits then: a burst of an agent fits into it.
WAL_BYTES = 64 * 1024 * 1024
BUSY_LIMIT = 5.0  # seconds: another process that looks, `sqlite3` or a backup, and its time


def connect(path: Path, page_size: int = 4096) -> sqlite3.Connection:
    # Made before SQLite makes it, so that it, its log and its index are ours alone. Never opened if it is there: closing
    # any descriptor of a file gives up all locks of the process on it, and with SQLite's gone whoever looks into the
    # database deletes its write-ahead log under us.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_LIMIT)
    try:
        connection.execute(f"pragma page_size = {page_size}")  # before the first write, or never
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")  # what is deleted or replaced is overwritten
        connection.execute("pragma foreign_keys = on")
        connection.execute(f"pragma wal_autocheckpoint = {WAL_BYTES // page_size}")
    except BaseException:
        connection.close()
        raise
    return connection


class SameFile:
    """A file deleted or moved under its owner goes on taking writes, for nobody: told instead of acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was = _identity(path)

    def check(self) -> None:
        if _identity(self._path) != self._was:
            raise StorageFailed(
                f"cannot use {self._path}: it was moved or deleted while it was in use; put it back, or start again"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
