"""Answers of clients on their way: permissions to the inbox, questions to the host, with the client's own credential."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from legation.approvals.always import allow_always
from legation.approvals.approval import Answer, label
from legation.approvals.approval_endings import get
from legation.approvals.grants import Grants, must_be_person
from legation.approvals.inbox import Inbox
from legation.host.host import AcpHost
from legation.server.acp.asking import Word
from legation.wire.acp.elicitation import CreateElicitationResponse
from legation.wire.principal import Principal


class InboxAnswers:
    def __init__(self, inbox: Inbox, grants: Grants, host: Callable[[str], Awaitable[AcpHost]]) -> None:
        """`host` is that of a workspace."""
        self._inbox = inbox
        self._grants = grants
        self._host = host

    async def permission(self, by: Principal, session_id: str, permission_id: str, word: Word) -> None:
        """`always` is this one, and a grant for the same tool in this session, also for what waits there; it takes a
        person."""
        answer = Answer(approve=word != "reject")
        if word != "always":
            await self._inbox.resolve(by, permission_id, answer)
            return
        must_be_person(by, "give")
        approval = await self._inbox.ledger.database.read(get, by.workspace, permission_id)
        await allow_always(self._inbox, self._grants, by, approval, session_id, answer)

    async def question(
        self, by: Principal, session_id: str, question_id: str, answer: CreateElicitationResponse
    ) -> None:
        host = await self._host(by.workspace)
        host.respond_question(session_id, question_id, answer, by=label(by))
