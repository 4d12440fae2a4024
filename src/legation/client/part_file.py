"""A file that is there completely or not at all, readable by its owner alone. Where the file system can, it has no name
before it is complete: of one that was killed on the way nothing is left."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from legation.clock import new_id
from legation.errors import StorageFailed


class PartFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{new_id('part')}")
        self._descriptor = -1
        self._named = True

    def __enter__(self) -> Self:
        try:
            self._descriptor = self._unnamed()
            self._named = self._descriptor < 0
            if self._named:
                # Exclusively and without following a link: somebody else's folder may lie in wait for the name.
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._part, flags, 0o600)
        except OSError as error:
            raise self._fault(error) from error
        return self

    def _unnamed(self) -> int:
        """-1 where the file system has no such files, or a name cannot be given to one."""
        with suppress(OSError, AttributeError):
            if Path("/proc/self/fd").is_dir():
                return os.open(self._path.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        return -1

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise self._fault(error) from error

    def finish(self) -> None:
        """Put it on the disk, then under its name."""
        try:
            os.fsync(self._descriptor)
            if not self._named:
                self._name()
            self._part.replace(self._path)
        except OSError as error:
            raise self._fault(error) from error

    def _name(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With a folder Python calls linkat, which alone follows that link.
            os.link(f"/proc/self/fd/{self._descriptor}", self._part.name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        self._part.unlink(missing_ok=True)  # gone already when finished

    def _fault(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"cannot write {self._path}: {error.strerror}; choose another place or make room"
        )
