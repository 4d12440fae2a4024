"""Approvals of a session: answers to what its agent asks, and permission modes, which are grants of a person's.

INV-S2  A mode that lets calls pass unasked is a grant for its session alone: it lifts no `deny`, and goes with its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from legation.approvals.approval import Approval, ApprovalAnswer, label
from legation.approvals.grants import (
    ALL_TOOLS,
    GrantService,
    allow_always,
    exactly,
    live,
    must_be_person,
    new_grant_id,
)
from legation.approvals.queue import ApprovalQueue
from legation.approvals.transitions import get
from legation.clock import Clock
from legation.errors import NotFound
from legation.server.http.routes import needs
from legation.server.sessions.record import Details, SessionRecord, SessionRecords, must_be_open
from legation.wire.acp.methods import CreateElicitationResponse
from legation.wire.api.approvals import NewGrant
from legation.wire.api.sessions import ALWAYS, PermissionMode, PermissionReplyWord
from legation.wire.principal import Principal
from legation.wire.universal.asks import answer_to, approves_plan
from legation.wire.universal.shapes import PLAN_KIND

# What each of these modes lets pass without asking, as kinds of calls; None: all. The other modes ask.
GRANTED: Final[dict[str, list[str] | None]] = {"acceptEdits": ["edit"], "bypass": None}
# Seconds from a permission in the log to its approval in the database: the disk's time.
ASKED_LIMIT: Final = 10.0
ASKED_PAUSE: Final = 0.02


class SessionApprovals:
    def __init__(
        self, inbox: ApprovalQueue, grants: GrantService, records: SessionRecords, clock: Clock
    ) -> None:
        self._inbox = inbox
        self._database = inbox.ledger.database
        self._grants = grants
        self._records = records
        self._clock = clock

    # Answers.

    async def reply(
        self, by: Principal, record: SessionRecord, permission_id: str, word: PermissionReplyWord
    ) -> None:
        """Answer it; the first answer stands. `always` is this one, and a grant for the same tool in this session, also
        for what waits there; it takes a person."""
        if word == "always":
            must_be_person(by, "give")
        approval = await self._approval(record, permission_id)
        if word == "always":
            answer = ApprovalAnswer(approve=True, message=ALWAYS)
            await allow_always(self._inbox, self._grants, by, approval, record.id, answer)
        else:
            await self._inbox.resolve(by, approval.id, ApprovalAnswer(approve=word == "once"))

    async def _approval(self, record: SessionRecord, permission_id: str) -> Approval:
        """The session says that it asks before the door has written it down: who is that fast waits."""
        clock = asyncio.get_running_loop()
        until = clock.time() + ASKED_LIMIT
        while True:
            try:
                found = await self._database.read(get, record.workspace, permission_id)
            except NotFound:
                asks = record.session and record.session.talk.permissions.asked(permission_id)
                if not asks or clock.time() > until:
                    raise _unknown("permission") from None
                await asyncio.sleep(ASKED_PAUSE)
                continue
            if found.session_id != record.id:
                raise _unknown("permission")
            return found

    async def answer(
        self, by: Principal, record: SessionRecord, question_id: str, answers: Sequence[Sequence[str]] | None
    ) -> None:
        """Answer a question, None rejects it; where it is about a plan, the permission of its id, which takes `approve`."""
        permissions = record.session.talk.permissions if record.session else None
        plan = permissions.asked(question_id) if permissions else None
        if plan is None or plan.action.kind != PLAN_KIND:
            self.reply_question(by, record, question_id, answers)
            return
        needs("approve").check(by)
        word: PermissionReplyWord = "once" if answers is not None and approves_plan(answers) else "reject"
        await self.reply(by, record, question_id, word)

    def reply_question(
        self,
        by: Principal,
        record: SessionRecord,
        question_id: str,
        reply: Sequence[Sequence[str]] | CreateElicitationResponse | None,
    ) -> None:
        """Texts for the fields of its form, or the protocol's own answer; None rejects it. The first answer counts."""
        questions = record.session.talk.questions if record.session else None
        asked = questions.asked(question_id) if questions else None
        if questions is None or asked is None:
            raise _unknown("question")
        if reply is None:
            reply = CreateElicitationResponse(action="decline")
        elif not isinstance(reply, CreateElicitationResponse):
            reply = answer_to(asked, reply)
        questions.respond(question_id, reply, label(by))

    # Permission modes.

    async def give_mode(self, by: Principal, record: SessionRecord, mode: PermissionMode) -> None:
        """Give the grant that the mode takes, if it takes one."""
        if mode not in GRANTED:
            return
        now = self._clock.now_ms()
        new = NewGrant(
            agent=exactly(record.details.agent),
            tools=ALL_TOOLS,
            kinds=GRANTED[mode],
            duration=self._grants.longest,
            reason=f"permissionMode {mode} of session {record.id}",
        )
        grant = new_grant_id(now)
        # Noted first: one that nobody knows of could not be withdrawn after a kill.
        await self._records.save(record, replace(record.details, grant=grant))
        giving = self._database.transact(
            self._grants.give, by, new, grant=grant, now_ms=now, session=record.id
        )
        # What the agent waits for is let pass too.
        await self._inbox.granting(record.workspace, giving, session=record.id)
        if record.ended:  # meanwhile, and what it had was settled before this was given
            await self.end(by, record)
            must_be_open(record)
        await self._records.save(record, replace(record.details, permission_mode=mode))

    async def withdraw_mode(self, by: Principal, record: SessionRecord) -> None:
        if (grant := record.details.grant) is not None:
            await self._database.transact(self._grants.withdraw, by, grant, self._clock.now_ms())
            await self._records.save(record, replace(record.details, grant=None))

    async def sessions_with_grants(self, workspaces: Sequence[str]) -> set[tuple[str, str]]:
        """Find those with grants of their own that count, by workspace and id."""
        now = self._clock.now_ms()
        found = {each: await self._database.read(live, each, now) for each in workspaces}
        return {(each, grant.session_id) for each in found for grant in found[each] if grant.session_id}

    async def end(self, by: Principal, record: SessionRecord) -> None:
        """End what waits in its name, and every grant of it, also those that were given call by call."""
        await self._inbox.supersede_session(record.workspace, record.id)
        await self._database.transact(self._grants.end_session, by, record.id, self._clock.now_ms())


def must_be_allowed(principal: Principal, mode: str) -> None:
    if mode in GRANTED:
        must_be_person(principal, "give")


def until_granted(mode: PermissionMode) -> PermissionMode:
    """Return the mode that it has as long as nobody has given the grant."""
    return "default" if mode in GRANTED else mode


def half_given(details: Details) -> bool:
    """Tell whether whoever gave the grant was cut off: nobody was told that the mode is in force."""
    return details.grant is not None and details.permission_mode not in GRANTED


def _unknown(what: str) -> NotFound:
    return NotFound(
        f"cannot answer the {what}: the session has none of that id that waits; look at its events",
        {"type": "invalid_request"},
    )
