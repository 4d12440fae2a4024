"""Answers to what agents ask: permissions at the door, questions in the session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from legation.approvals.always import allow_always
from legation.approvals.approval import Answer, Approval, label
from legation.approvals.approval_endings import get
from legation.approvals.grants import Grants, must_be_person
from legation.approvals.inbox import Inbox
from legation.errors import NotFound
from legation.server.sessions.questions import REJECTED, answer_to
from legation.server.sessions.record import Record
from legation.wire.acp.elicitation import CreateElicitationResponse
from legation.wire.api.sessions import ALWAYS, PermissionReplyWord
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.host.session import Session

ASKED_LIMIT: Final = (
    10.0  # seconds from a permission in the log to its approval in the database: the disk's time
)
ASKED_PAUSE: Final = 0.02


class Answering:
    def __init__(self, inbox: Inbox, grants: Grants) -> None:
        self._inbox = inbox
        self._grants = grants

    async def permission(
        self, principal: Principal, record: Record, permission_id: str, reply: PermissionReplyWord
    ) -> None:
        """The first answer stands. `always` is this one, and a grant for the same tool in this session,
        also for what waits there."""
        if reply == "always":
            must_be_person(principal, "give")
        approval = await self._approval(record, permission_id)
        if reply == "always":
            answer = Answer(approve=True, message=ALWAYS)
            await allow_always(self._inbox, self._grants, principal, approval, record.id, answer)
        else:
            await self._inbox.resolve(principal, approval.id, Answer(approve=reply == "once"))

    async def _approval(self, record: Record, permission_id: str) -> Approval:
        """The session says that it asks before the door has written it down: who is that fast waits."""
        database, clock = self._inbox.ledger.database, asyncio.get_running_loop()
        until = clock.time() + ASKED_LIMIT
        while True:
            try:
                found = await database.read(get, record.workspace, permission_id)
            except NotFound:
                if not _is_asking(record.session, permission_id) or clock.time() > until:
                    raise _unknown("permission") from None
                await asyncio.sleep(ASKED_PAUSE)
                continue
            if found.session_id != record.id:
                raise _unknown("permission")
            return found

    def question(
        self, principal: Principal, record: Record, question_id: str, answers: Sequence[Sequence[str]] | None
    ) -> None:
        """None rejects it."""
        questions = record.session.talk.questions if record.session else None
        asked = questions.asked(question_id) if questions else None
        if questions is None or asked is None:
            raise _unknown("question")
        response: CreateElicitationResponse = REJECTED if answers is None else answer_to(asked, answers)
        questions.respond(question_id, response, label(principal))


def _is_asking(session: Session | None, permission_id: str) -> bool:
    return session is not None and session.talk.permissions.asked(permission_id) is not None


def _unknown(what: str) -> NotFound:
    return NotFound(
        f"cannot answer the {what}: the session has none of that id that waits; look at its events",
        {"type": "invalid_request"},
    )
