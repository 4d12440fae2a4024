"""One session as its server keeps it: what can be asked of it and done to it over HTTP, each within its time."""

from __future__ import annotations

from typing import Final

from legation.agents.opencode.api import Api
from legation.agents.opencode.messages import Told
from legation.agents.opencode.requests import PermissionRequest, QuestionRequest
from legation.agents.opencode.states import Idle, SessionInfo, Status
from legation.errors import LegationError

PROMPT_LIMIT: Final = 60.0  # seconds to take a prompt, the folder's start included: the server's time
ABORT_LIMIT: Final = 5.0  # seconds for one abort: the server's time
REPLY_LIMIT: Final = 10.0  # seconds to take an answer: the server's time


class Remote:
    def __init__(self, api: Api, session_id: str, directory: str) -> None:
        self._api = api
        self._session_id = session_id
        self._directory = directory

    # What is done.

    async def prompt(self, body: dict[str, object]) -> None:
        await self._do(f"/session/{self._session_id}/prompt_async", body, PROMPT_LIMIT)

    async def abort(self) -> None:
        await self._do(f"/session/{self._session_id}/abort", {}, ABORT_LIMIT)

    async def answer(self, path: str, body: dict[str, object]) -> None:
        """One of its requests."""
        await self._do(path, body, REPLY_LIMIT)

    async def forget_folder(self) -> None:
        """What OpenCode holds for the folder, it makes anew."""
        await self._do("/instance/dispose", {}, PROMPT_LIMIT)

    # What is asked.

    async def is_busy(self) -> bool:
        try:
            found = await self._api.get("/session/status", dict[str, Status], directory=self._directory)
        except LegationError:
            return True  # the next sign of life will tell
        return not isinstance(found.get(self._session_id, Idle()), Idle)

    async def history(self, session_id: str) -> tuple[Told, ...]:
        """Its own, or that of a sub-agent."""
        path = f"/session/{session_id}/message"
        return await self._api.get(path, tuple[Told, ...], directory=self._directory)

    async def children(self) -> tuple[SessionInfo, ...]:
        path = f"/session/{self._session_id}/children"
        return await self._api.get(path, tuple[SessionInfo, ...], directory=self._directory)

    async def permissions(self) -> tuple[PermissionRequest, ...]:
        """Those that are open in the folder, of whichever session."""
        return await self._api.get("/permission", tuple[PermissionRequest, ...], directory=self._directory)

    async def questions(self) -> tuple[QuestionRequest, ...]:
        """As permissions."""
        return await self._api.get("/question", tuple[QuestionRequest, ...], directory=self._directory)

    async def _do(self, path: str, body: dict[str, object], limit: float) -> None:
        await self._api.do("POST", path, body, directory=self._directory, timeout=limit)
