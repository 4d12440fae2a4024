"""Secrets of sessions that are not on record yet: a small file for each, so that those of a killed server are found.

Whoever shares the database has secrets there too: that no session of ours names one does not make it nobody's.

Every function blocks for as long as the disk does: call it off the loop.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from legation.errors import StorageFailed
from legation.store.datafolder import make_folder


class Owner(NamedTuple):
    """Of secrets in the vault."""

    workspace: str
    name: str


class Unsettled:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, owner: Owner) -> None:
        """Before anything is sealed for it."""
        try:
            make_folder(self._folder)
            (self._folder / owner.name).write_text(owner.workspace)
        except OSError as error:
            raise StorageFailed(
                f"cannot note in {self._folder} what is about to be sealed: {error.strerror}; mend that"
            ) from error

    def forget(self, owner: Owner) -> None:
        """Its session is on record, or there is nothing left of it."""
        with suppress(OSError):
            (self._folder / owner.name).unlink()

    def left(self) -> list[Owner]:
        found: list[Owner] = []
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                with suppress(OSError, UnicodeDecodeError):
                    found.append(Owner(path.read_text(), path.name))
        return found
