"""Which of Amp's threads belongs to which session: Amp names a thread only when it has begun.

Kept in the agent's home, one small file a session, so that a session goes on in another process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from legation.errors import Unavailable
from legation.ids import new_id
from legation.store.datafolder import make_folder

_FOLDER: Final = Path(".config") / "amp" / "legation-threads"
_SESSION: Final = re.compile(r"amp_\w{1,64}")
_THREAD: Final = re.compile(r"T-[\w-]{1,128}")


class Threads:
    """Does its I/O where it is called: in a thread."""

    def __init__(self, home: Path) -> None:
        self._folder = home / _FOLDER

    def begin(self) -> str:
        """A session that has no thread yet; its id."""
        session_id = new_id("amp")
        self.keep(session_id, "")
        return session_id

    def keep(self, session_id: str, thread: str) -> None:
        path = self._path(session_id)
        try:
            make_folder(self._folder)
            draft = path.with_suffix(".new")
            draft.write_text(thread)
            draft.replace(path)
        except OSError as error:
            raise Unavailable(
                f"cannot keep the thread of session {session_id}: {error.strerror}; free some room and try again"
            ) from error

    def find(self, session_id: str) -> str | None:
        """Empty where it has not begun. None for a session that is not known; one of Amp's threads is its own."""
        if is_thread(session_id):
            return session_id
        if not _SESSION.fullmatch(session_id):
            return None
        try:
            thread = self._path(session_id).read_text()
        except OSError:
            return None
        return thread if is_thread(thread) else ""

    def _path(self, session_id: str) -> Path:
        return self._folder / session_id


def is_thread(text: str) -> bool:
    return _THREAD.fullmatch(text) is not None
