"""The keeper of a detached child: a small program between the owner and the child, so that neither needs the other.

INV-1: the keeper puts itself on file before it starts anything. Where the file is gone, because whoever started the
keeper is dead and the start-up reaper came first, it starts nothing: no child runs that is not on file.
INV-2: how the child ended is on file before the keeper ends, and then nothing that the child started is left: orphans
below become the keeper's children, whatever they did to their environment.

The same file is the guard of a process that is not detached (`--guard`): it waits for that one's end and, where it came without
a word, ends what its owner had on file. So nothing of it is left when it is killed, though nobody starts it again.

It is run as a file by an interpreter without site-packages, and so imports little and nothing of Legation. `turn`,
`read_file` and `replace_file` are also how the registry changes a file that a keeper may change.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import sys
import time

TURN_LIMIT = (
    30.0  # seconds until others have changed their files: the time of a few small writes on a slow disk
)
TURN_PAUSE = 0.01
RECORD_LIMIT = 60.0  # seconds for a full disk to take the few bytes of how the child ended
RECORD_PAUSE = 0.5
SWEEP_LIMIT = 3.0  # seconds: what is not gone by then cannot be killed
SWEEP_PAUSE = 0.005
UNFINISHED = ".unfinished"
MOST_BYTES = 64 * 1024  # of a file; ours have some hundred and the name of the child
# The one word that whoever starts the keeper hears from it, with an error number.
STARTED, REFUSED, UNREGISTERED = "started", "refused", "unregistered"

GUARD = "--guard"
OWNER_LIMIT = 30.0  # seconds for the owner to be gone once its pipe is closed: the kernel's time
OWNER_PAUSE = 0.01

_PR_SET_CHILD_SUBREAPER = 36
# A group is told to end with the keeper in it. Handlers, not SIG_IGN, which the child would inherit.
_NOT_FOR_THE_KEEPER = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class turn:  # noqa: N801  it reads as one: `with turn(folder)`; contextlib takes as long to import as all of the others
    """Change files of the folder alone. The lock is the folder's own, and ends with whoever is killed holding it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + TURN_LIMIT
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._fd)
                    raise
            time.sleep(TURN_PAUSE)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # at once, also where a child between fork and exec has a copy
        os.close(self._fd)


def replace_file(path: str, data: bytes) -> None:
    unfinished = os.path.splitext(path)[0] + UNFINISHED
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while data:  # a disk that has room for a part takes that without a word, and refuses the rest
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.replace(unfinished, path)


def read_file(path: str) -> bytes:
    """Read one of the folder's files. A pipe would hold us up, a link leads elsewhere, and none of ours is long: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(fd, MOST_BYTES + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    if not 0 < len(data) <= MOST_BYTES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return data


def keep(path: str, status: int, passed: list[int], argv: list[str]) -> None:
    for number in _NOT_FOR_THE_KEEPER:
        signal.signal(number, lambda *_: None)
    os.set_inheritable(status, False)
    _become_subreaper()
    try:
        if not _change(path, {"pid": os.getpid(), "started": _started()}, only_expected=True):
            return
    except OSError as error:
        _tell(status, UNREGISTERED, error)
        return
    try:
        child = os.posix_spawnp(argv[0], argv, os.environ, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON)
    except OSError as error:
        _tell(status, REFUSED, error)
        return
    for descriptor in passed:
        os.close(descriptor)  # else whoever waits for its end would wait for ours
    _tell(status, STARTED)
    os.close(status)
    code = _wait(child)
    try:
        _record(path, code)
    finally:  # also where somebody has made the file unreadable
        _end_the_rest()


def _change(path: str, members: dict[str, object], *, only_expected: bool = False) -> bool:
    """Change members of the file; False where it is gone, or its child has started."""
    with turn(os.path.dirname(path)):
        try:
            entry = json.loads(read_file(path))
        except FileNotFoundError:
            return False
        if only_expected and entry["pid"]:
            return False
        replace_file(path, json.dumps({**entry, **members}).encode())
        return True


def _wait(child: int) -> int:
    """Wait for the child, and take the exit codes of orphans on the way."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _record(path: str, code: int) -> None:
    ended = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None, "at": time.time()}
    deadline = time.monotonic() + RECORD_LIMIT
    while True:
        try:
            _change(path, {"ended": ended})
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(RECORD_PAUSE)
        else:
            return


def _end_the_rest() -> None:
    deadline = time.monotonic() + SWEEP_LIMIT
    while time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(
                    pid, signal.SIGKILL
                )  # ours until we take its exit code, so the number is nobody else's
            except PermissionError:  # another user's: the bound ends this
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(SWEEP_PAUSE)


def _children() -> list[int]:
    own = str(os.getpid()).encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(name)[1] == own]


def _stat(name: str) -> list[bytes]:
    """Read what /proc says, from the state on; the name before that may hold anything."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return [b"", b""]


def _started() -> int:
    return int(_stat("self")[19])


def _tell(status: int, word: str, error: OSError | None = None) -> None:
    number = 0 if error is None else error.errno
    try:
        os.write(status, f"{word} {number}".encode())
    except OSError:  # whoever started us is gone: the file tells the next one
        return


def _become_subreaper() -> None:
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):  # then orphans are found by their token, as those of other children
        return


def guard(packages: str, folder: str, owner: int) -> None:
    """Wait for the owner's end; its word, on our input, says that it has looked after its own."""
    for number in _NOT_FOR_THE_KEEPER:
        signal.signal(number, lambda *_: None)
    if os.read(0, 1):
        return
    deadline = time.monotonic() + OWNER_LIMIT
    while os.getppid() == owner and time.monotonic() < deadline:  # we are another's child once it is gone
        time.sleep(OWNER_PAUSE)
    sys.path.insert(0, packages)
    from pathlib import Path

    from legation.proc.registry import reap  # only now: the owner may live for hours

    reap(Path(folder))


if __name__ == "__main__" and sys.argv[1] == GUARD:
    guard(sys.argv[2], sys.argv[3], int(sys.argv[4]))
elif __name__ == "__main__":
    _, path, status, passed, *argv = sys.argv
    keep(path, int(status), [int(each) for each in passed.split(",") if each], argv)
