"""Answers of clients on their way: permissions to the inbox, questions to the host, with the client's own credential."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from legation.approvals.approval import Answer, Approval, label
from legation.approvals.approval_endings import get
from legation.approvals.grants import Grants, exactly, must_be_person, new_grant_id
from legation.approvals.inbox import Inbox
from legation.approvals.trace import StepKind
from legation.host.host import AcpHost
from legation.server.acp.asking import Word
from legation.store.database.transaction import Transaction
from legation.wire.acp.elicitation import CreateElicitationResponse
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal


class InboxAnswers:
    def __init__(self, inbox: Inbox, grants: Grants, host: Callable[[str], Awaitable[AcpHost]]) -> None:
        """`host` is that of a workspace."""
        self._inbox = inbox
        self._grants = grants
        self._host = host

    async def permission(self, by: Principal, session_id: str, permission_id: str, word: Word) -> None:
        """`always` is this one, and a grant for the same tool in this session; it takes a person."""
        answer = Answer(approve=word != "reject")
        if word != "always":
            await self._inbox.resolve(by, permission_id, answer)
            return
        must_be_person(by, "give")
        approval = await self._inbox.ledger.database.read(get, by.workspace, permission_id)

        def work(now_ms: int) -> Transaction[Approval]:
            answered = yield from self._inbox.life.resolve(by, approval.id, answer, now_ms)
            new = NewGrant(
                agent=exactly(approval.agent),
                tools=exactly(approval.tool),
                kinds=[approval.kind],
                duration=self._grants.longest,
                reason=f"always, said in session {session_id}",
            )
            grant = new_grant_id(now_ms)
            yield from self._grants.give(by, new, grant=grant, now_ms=now_ms, session=session_id)
            return answered

        await self._inbox.changed(by.workspace, StepKind.RESOLVED, work)

    async def question(
        self, by: Principal, session_id: str, question_id: str, answer: CreateElicitationResponse
    ) -> None:
        host = await self._host(by.workspace)
        host.respond_question(session_id, question_id, answer, by=label(by))
