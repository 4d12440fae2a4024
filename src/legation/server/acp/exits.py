"""How the agents of sessions ended: for the requests that failed because of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from legation.wire.lifecycle import AgentExited

EXIT_WORD: Final = (
    2.0  # seconds from the failure of a call to the word how the process ended: the host's time
)
KEPT: Final = 256  # of sessions that are over: as many as requests at once


class Exits:
    """By session. Of those that are over the last are kept: a request may have failed just before."""

    def __init__(self) -> None:
        self._words: dict[str, asyncio.Future[AgentExited]] = {}
        self._past: dict[str, AgentExited] = {}

    def __len__(self) -> int:
        return len(self._words) + len(self._past)

    def told(self, session_id: str, exited: AgentExited) -> None:
        self._word(session_id, fresh=True).set_result(exited)

    def begin(self, session_id: str) -> None:
        """A turn: what ended before is not why it fails."""
        self._words.pop(session_id, None)
        self._past.pop(session_id, None)

    def over(self, session_id: str) -> None:
        """It has no log any more that would tell."""
        word = self._words.pop(session_id, None)
        if word is not None and word.done():
            self._past[session_id] = word.result()
        while len(self._past) > KEPT:
            del self._past[next(iter(self._past))]

    async def of(self, session_id: str, *, followed: bool) -> AgentExited | None:
        """`followed`: it has a log, in which the word may still come."""
        if not followed:
            return self._past.get(session_id)
        with suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._word(session_id)), EXIT_WORD)
        return None

    def _word(self, session_id: str, *, fresh: bool = False) -> asyncio.Future[AgentExited]:
        word = self._words.get(session_id)
        if word is None or (fresh and word.done()):
            word = self._words[session_id] = asyncio.get_running_loop().create_future()
        return word
