"""Where things are in the data folder. All of it is private to the user."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from legation.errors import StorageFailed

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
            events = [path for path in place.glob("*.jsonl") if path.stat().st_size]
            if not events:
                rmtree(place, ignore_errors=True)

    @contextmanager
    def agent_places(self, agent: str, session_id: str) -> Iterator[tuple[Path, Path]]:
        """An agent's own HOME, kept because its sessions and sign-ins live there, and a TMPDIR that is not."""
        place = self.data / "agents" / "local" / agent
        home, tmp = place / "home", place / "tmp" / session_id
        try:
            for folder in (home, tmp):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageFailed(
                f"cannot write to {self.data}: {error.strerror}; choose another folder with --data-dir"
            ) from error
        try:
            yield home, tmp
        finally:
            rmtree(tmp, ignore_errors=True)
