"""An archive unpacked into a folder as it arrives. Blocks: call it off the loop, one call at a time.

Each file is whole or not there; what was unpacked before a fault stays, and the fault says how much that was.
"""

from __future__ import annotations

from typing import Final

from legation.errors import LegationError
from legation.server.fs.listing import printable
from legation.server.fs.moving import make_folder
from legation.server.fs.roots import Confinement
from legation.server.fs.tar import Member, TarReader
from legation.server.fs.writing import Draft
from legation.wire.api.fs import FsUploaded

MOST_PATHS: Final = 1024  # that the answer names


class Unpacking:
    def __init__(self, confinement: Confinement, path: str, limit: int) -> None:
        self._confinement = confinement
        self._folder = make_folder(confinement, path)
        self._reader = TarReader(self, limit)
        self._draft: Draft | None = None
        self._modified: int | None = None
        self._paths: list[str] = []
        self._count = 0

    def feed(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except LegationError as error:
            raise self._with_count(error) from error

    def end(self) -> FsUploaded:
        try:
            self._reader.end()
        except LegationError as error:
            raise self._with_count(error) from error
        return FsUploaded(paths=self._paths, truncated=self._count > len(self._paths))

    def drop(self) -> None:
        if self._draft is not None:
            self._draft.drop()
            self._draft = None

    # The reader's sink.

    def begin(self, member: Member) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        path = "/".join((self._folder, *parts))
        if member.is_folder:
            if parts:
                self._add(make_folder(self._confinement, path))
            return
        self._draft, self._modified = Draft(self._confinement, path), member.modified
        self._draft.start(member.mode | 0o600)

    def write(self, data: bytes) -> None:
        if self._draft is not None:
            self._draft.write(data)

    def finish(self) -> None:
        if self._draft is not None:
            # Not durable one by one: that would be a wait for the disk for each of thousands of small files.
            self._add(self._draft.place(durable=False, modified=self._modified))
            self.drop()

    def _add(self, path: str) -> None:
        self._count += 1
        if len(self._paths) < MOST_PATHS:
            self._paths.append(printable(path))

    def _with_count(self, error: LegationError) -> LegationError:
        return type(error)(f"{error.message} ({self._count} were unpacked before that)", error.data)
