"""One owner per folder: an advisory lock that dies with its process, and the owner's pid for the message."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from legation.errors import Conflict
from legation.store.datafolder import make_folder

# A reader that looks whether the owner lives holds the lock for the length of that look: its time.
LOOK_LIMIT = 0.25
_LOOK_PAUSE = 0.005


class FolderLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        make_folder(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd)
            _must_be_the_one_there(fd, self._path)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Conflict(
                f"cannot open {self._path.parent}: process {owner} owns it; stop that one first (`legation stop` stops a server)",
                {"owner": owner},
            ) from None
        self._fd = fd
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int) -> None:
    deadline = time.monotonic() + LOOK_LIMIT
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_PAUSE)


def _must_be_the_one_there(fd: int, path: Path) -> None:
    """While we waited, the folder may have been moved away and made anew, by a restore."""
    try:
        there = os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        there = False
    if not there:
        os.close(fd)
        raise Conflict(f"cannot open {path.parent}: it was moved while it was opened; try again")


def owner_alive(path: Path) -> bool:
    """Whether a process holds the lock; looks without taking it for longer than the look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)
