import fcntl
import os
import threading
from pathlib import Path

import pytest

from legation.errors import Conflict
from legation.store import files as lock_module
from legation.store.files import FolderLock, owner_alive


def test_a_reader_that_looks_does_not_keep_an_owner_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    looking = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(lock_module.LOOK_LIMIT / 10, lambda: os.close(looking)).start()
    owner = FolderLock(path)
    owner.acquire()
    assert owner_alive(path)
    owner.release()
    assert not owner_alive(path)


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    first = FolderLock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(Conflict, match=f"process {os.getpid()} owns it"):
        FolderLock(tmp_path / "lock").acquire()
    first.release()


def test_nobody_owns_what_does_not_exist(tmp_path: Path) -> None:
    assert not owner_alive(tmp_path / "lock")
