"""The data folder and where things are in it. All of it is private to the user."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Folders:
    data: Path

    @property
    def sessions(self) -> Path:
        """One folder per session, with its events."""
        return self.data / "sessions"

    @property
    def children(self) -> Path:
        """One small file per running agent, for the start-up reaper."""
        return self.data / "children"

    @contextmanager
    def session(self, session_id: str) -> Iterator[Path]:
        """A session's folder; one in which nothing happened is not kept."""
        place = self.sessions / session_id
        try:
            yield place
        finally:
            if not self.is_recorded(session_id):
                rmtree(place, ignore_errors=True)

    def is_recorded(self, session_id: str) -> bool:
        return (self.sessions / session_id / f"{session_id}.jsonl").exists()
