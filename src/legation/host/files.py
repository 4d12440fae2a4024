"""fs/read_text_file and fs/write_text_file, confined to a session's folders.

INV-H1  No byte is read or written outside the folders, whatever links, `..` or races the agent sets up: a
        path is resolved first, and then opened part by part from the folder down, following no link. The folders
        are where they led when the session began: one that was replaced by a link since is not followed.
INV-H4  Nothing of Legation's own is opened, nor of the kernel's, by whatever name: what was opened is looked at before
        a byte of it is read or cut off (store/forbidden.py).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from legation.agents.rpc import RpcFault
from legation.errors import Forbidden
from legation.store.datafolder import new_mode
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.reverse import ReadTextFileRequest, ReadTextFileResponse, WriteTextFileRequest
from legation.wire.acp.rpc import ErrorCode
from legation.wire.action import MAX_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_LIMIT = 8 * 1024 * 1024  # bytes of one file; an agent that wants more reads it in its own process

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SessionFiles:
    """Blocks for as long as the disk does: call it off the loop."""

    def __init__(self, folders: Sequence[Path], forbidden: ForbiddenPlaces) -> None:
        """`folders` have no links in them."""
        self._folders = [Path(os.path.abspath(folder)) for folder in folders]  # noqa: PTH100 - nor now
        self._forbidden = forbidden.of_session(self._folders)

    def read(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        with _told_to_agent(request.path), self._open(request.path, _READ) as fd:
            data = _read_all(fd)
        if len(data) > READ_LIMIT:
            raise RpcFault(ErrorCode.INVALID_PARAMS, f"{request.path} is larger than {READ_LIMIT} bytes")
        with _told_to_agent(request.path):
            return ReadTextFileResponse(content=_excerpt(data.decode(), request.line, request.limit))

    def write(self, request: WriteTextFileRequest) -> None:
        with _told_to_agent(request.path):
            data = request.content.encode()
            with self._open(request.path, _WRITE) as fd, os.fdopen(fd, "wb", closefd=False) as file:
                os.ftruncate(fd, 0)
                file.write(data)

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        folder, parts = self._locate(path)
        self._forbidden.check_name((*folder.parts, *parts))
        looked = self._forbidden.look()
        at = os.open(folder, _FOLDER)
        try:
            looked.check(os.fstat(at))
            _must_be(at, folder)
            for part in parts[:-1]:
                at = _step(at, part, make=bool(flags & os.O_CREAT))
                looked.check(os.fstat(at))
            self._forbidden.check_open(at)  # a folder above the session's may have been replaced by a link
            fd = os.open(parts[-1], flags, 0o666, dir_fd=at)
        finally:
            os.close(at)
        try:
            if not stat.S_ISREG(self._forbidden.check_open(fd).st_mode):
                raise RpcFault(ErrorCode.INVALID_PARAMS, f"{path} is not a regular file")
            yield fd
        finally:
            os.close(fd)

    def _locate(self, path: str) -> tuple[Path, tuple[str, ...]]:
        if not path.startswith("/") or "\0" in path:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path must be absolute")
        if len(path) > MAX_PATH:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path is too long")
        real = Path(os.path.realpath(path))
        for folder in self._folders:
            if real != folder and real.is_relative_to(folder):
                return folder, real.relative_to(folder).parts
        raise RpcFault(ErrorCode.INVALID_PARAMS, f"{path} is outside the session's folders")


def _must_be(at: int, folder: Path) -> None:
    """One above it may have become a link since its path was resolved."""
    with suppress(OSError):  # a system without it has only what was found on the way
        if os.readlink(f"/proc/self/fd/{at}") != str(folder):  # noqa: PTH115 - of no file
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session's folder has been moved or replaced")


def _read_all(fd: int) -> bytes:
    """Up to one byte more than allowed; not by the size it had, for it may be growing."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read(READ_LIMIT + 1)


def _step(at: int, part: str, *, make: bool) -> int:
    """Down into one folder; the descriptor of the one above is closed only when that worked."""
    try:
        below = os.open(part, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another was faster
            os.mkdir(part, new_mode(at), dir_fd=at)
        below = os.open(part, _FOLDER, dir_fd=at)
    os.close(at)
    return below


@contextmanager
def _told_to_agent(path: str) -> Iterator[None]:
    try:
        yield
    except Forbidden:
        what = f"{path} is not for agents: it is Legation's own or the system's"
        raise RpcFault(ErrorCode.INVALID_PARAMS, what) from None
    except FileNotFoundError:
        raise RpcFault(ErrorCode.RESOURCE_NOT_FOUND, f"{path} does not exist") from None
    except UnicodeError:
        what = f"{path!r}: the path or the text is not UTF-8"
        raise RpcFault(ErrorCode.INVALID_PARAMS, what) from None
    except OSError as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, f"{path}: {error.strerror}") from None


def _excerpt(text: str, line: int | None, limit: int | None) -> str:
    if line is None and limit is None:
        return text
    start = max((line or 1) - 1, 0)
    # Only newlines count, as in editors: `splitlines` would also split at form feeds and other rarities.
    lines = re.split(r"(?<=\n)", text)
    return "".join(lines[start : None if limit is None else start + max(limit, 0)])
