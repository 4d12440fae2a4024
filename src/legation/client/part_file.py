"""A file that is there completely or not at all, readable by its owner alone."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from legation.errors import StorageFailed
from legation.ids import new_id


class PartFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{new_id('part')}")
        self._descriptor = -1

    def __enter__(self) -> Self:
        try:
            # Exclusively and without following a link: somebody else's folder may lie in wait for the name.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._part, flags, 0o600)
        except OSError as error:
            raise self._fault(error) from error
        return self

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise self._fault(error) from error

    def finish(self) -> None:
        """On the disk, then under its name."""
        try:
            os.fsync(self._descriptor)
            self._part.replace(self._path)
        except OSError as error:
            raise self._fault(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        self._part.unlink(missing_ok=True)  # gone already when finished

    def _fault(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"cannot write {self._path}: {error.strerror}; choose another place or make room"
        )
