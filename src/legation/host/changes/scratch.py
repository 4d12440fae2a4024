"""A temporary folder that does not outlive its process for long, even when that is killed.

Its owner holds a lock on a file in it, which the kernel gives up when the owner dies, however it dies. Whoever
makes the next folder removes those whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Final

_PREFIX: Final = "legation-changes-"
_LOCK: Final = "owner"


class Scratch:
    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        lock = _locked(self.path)
        # Also when nobody closes it: a cancelled `take` has a thread that still ends, and an owner no more.
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _locked(folder: Path) -> int:
    """Locked before it has its name, so that no sweep finds it free."""
    unnamed = folder / f"{_LOCK}-new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        lock = _abandoned(folder)
        if lock is not None:
            _remove(folder, lock)


def _abandoned(folder: Path) -> int | None:
    """The lock of a folder of ours that nobody holds, now held by us."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
