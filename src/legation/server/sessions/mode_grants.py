"""Permission modes that let calls pass unasked: each is a grant of a person's, for its session alone.

INV-S2  Such a mode lifts no `deny`, and goes with its session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from legation.approvals.grants import ALL_TOOLS, Grants, exactly, live, must_be_person, new_grant_id
from legation.approvals.inbox import Inbox
from legation.clock import Clock
from legation.server.sessions.details import Details
from legation.server.sessions.record import Record, must_be_open
from legation.server.sessions.records import Records
from legation.wire.api.approvals import NewGrant
from legation.wire.api.sessions import PermissionMode
from legation.wire.principal import Principal

# What each of these modes lets pass without asking, as kinds of calls; None: all. The other modes ask.
GRANTED: Final[dict[str, list[str] | None]] = {"acceptEdits": ["edit"], "bypass": None}


class ModeGrants:
    def __init__(self, inbox: Inbox, grants: Grants, records: Records, clock: Clock) -> None:
        self._inbox = inbox
        self._database = inbox.ledger.database
        self._grants = grants
        self._records = records
        self._clock = clock

    async def give(self, principal: Principal, record: Record, mode: PermissionMode) -> None:
        """Nothing where the mode takes no grant."""
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
            self._grants.give, principal, new, grant=grant, now_ms=now, session=record.id
        )
        # What the agent waits for is let pass too.
        await self._inbox.granting(record.workspace, giving, session=record.id)
        if record.ended:  # meanwhile, and what it had was settled before this was given
            await self.end(principal, record)
            must_be_open(record)
        await self._records.save(record, replace(record.details, permission_mode=mode))

    async def withdraw(self, principal: Principal, record: Record) -> None:
        if (grant := record.details.grant) is not None:
            await self._database.transact(self._grants.withdraw, principal, grant, self._clock.now_ms())
            await self._records.save(record, replace(record.details, grant=None))

    async def sessions(self, workspaces: Sequence[str]) -> set[tuple[str, str]]:
        """Those with grants of their own that count, by workspace and id."""
        now = self._clock.now_ms()
        found = {each: await self._database.read(live, each, now) for each in workspaces}
        return {(each, grant.session_id) for each in found for grant in found[each] if grant.session_id}

    async def end(self, principal: Principal, record: Record) -> None:
        """Of every grant of the session, also of those that were given call by call."""
        await self._database.transact(self._grants.end_session, principal, record.id, self._clock.now_ms())


def must_be_allowed(principal: Principal, mode: str) -> None:
    if mode in GRANTED:
        must_be_person(principal, "give")


def until_granted(mode: PermissionMode) -> PermissionMode:
    """What a session has of a mode as long as nobody has given its grant."""
    return "default" if mode in GRANTED else mode


def half_given(details: Details) -> bool:
    """Whoever gave the grant was cut off: nobody was told that the mode is in force."""
    return details.grant is not None and details.permission_mode not in GRANTED


def without_grant(details: Details) -> Details:
    """As it is left when its grants have ended."""
    return replace(details, grant=None, permission_mode=until_granted(details.permission_mode))
