"""What OpenCode asks in one session, as it comes in: put to the host when all is known that it must be judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from legation.agents.opencode import permissions as asks
from legation.agents.opencode import refusals
from legation.agents.opencode.events import PermissionReplied
from legation.agents.opencode.messages import ToolPart, ToolPending
from legation.agents.opencode.remote import Remote
from legation.agents.opencode.requests import PermissionRequest, QuestionRequest
from legation.agents.opencode.tasks import Tasks
from legation.agents.opencode.tools import asked
from legation.agents.opencode.translate import Transcript
from legation.agents.opencode.turns import Turns
from legation.wire.diagnostic import DiagnosticCode

EARLY_LIMIT: Final = 2.0  # seconds from a permission to the arguments of its call: the server's time


class Host(asks.Host, Protocol):
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...


class Intake:
    def __init__(
        self, session_id: str, host: Host, remote: Remote, transcript: Transcript, turns: Turns
    ) -> None:
        self._host = host
        self._transcript = transcript
        self._turns = turns
        self._asks = asks.Asks(session_id, host, remote.answer)
        self._early: dict[str, PermissionRequest] = {}  # asked before the call's arguments were told
        self._tasks = Tasks(f"legation-opencode-early-{session_id}")

    def permission(self, request: PermissionRequest) -> None:
        if self._asks.knows(request.id) or self._turns.ending:
            return
        part = self._transcript.call(request.tool.call_id) if request.tool else None
        if request.tool is not None and (part is None or isinstance(part.state, ToolPending)):
            if request.id not in self._early:  # of an MCP tool: its arguments are told right behind
                self._early[request.id] = request
                self._tasks.start(self._ask_late(request.id))
            return
        self._ask(request)

    def question(self, request: QuestionRequest) -> None:
        if not self._asks.knows(request.id) and not self._turns.ending:
            self._asks.question(request)

    def reject(self, request: QuestionRequest) -> None:
        """Nobody could be shown it."""
        self._asks.reject(request)

    def told(self, part: ToolPart) -> None:
        """A call, as it is now."""
        if not isinstance(part.state, ToolPending):
            self._ask_early(lambda each: each.tool is not None and each.tool.call_id == part.call_id)

    def replied(self, body: PermissionReplied) -> None:
        """INV-O13. What was not even asked yet can only have been withdrawn."""
        if self._early.pop(body.request_id, None) is not None:
            ours = body.reply == "reject"
        else:
            ours = self._asks.replied(body.request_id, body.reply)
        if not ours:
            forged = refusals.forged()
            self._host.trouble(DiagnosticCode.AGENT_PROCESS_ERROR, forged.message)
            self._turns.cut(forged)

    def question_ended(self, request_id: str) -> None:
        self._asks.question_ended(request_id)

    def keep_only(self, open_ids: set[str]) -> None:
        self._asks.keep_only(open_ids)

    def release(self) -> None:
        """The host ends the turn: it answers what was asked, and nothing else is asked."""
        self._early.clear()
        self._asks.release()

    def withdraw(self) -> None:
        """The turn is over, or we end it: nobody need answer any more."""
        self._early.clear()
        self._asks.withdraw()

    async def close(self) -> None:
        await self._asks.close()
        await self._tasks.close()

    async def _ask_late(self, request_id: str) -> None:
        await self._turns.until_over(EARLY_LIMIT)
        self._ask_early(lambda request: request.id == request_id)

    def _ask_early(self, due: Callable[[PermissionRequest], bool]) -> None:
        for request in [each for each in self._early.values() if due(each)]:
            del self._early[request.id]
            if not self._turns.ending:
                self._ask(request)

    def _ask(self, request: PermissionRequest) -> None:
        part = self._transcript.call(request.tool.call_id) if request.tool else None
        self._asks.permission(request, asked(request, part, self._transcript.names))
