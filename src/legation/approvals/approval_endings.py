"""How an approval ends: used once, or without an effect.

INV-E1  `consume` checks again what was decided: the action, the policy, the waiter, the time. It succeeds once.
INV-E2  What was consumed does not end any other way: whether its effect happened is for the trace to say.
INV-E3  After a restart whatever a dead process waited for is superseded, and says so.
INV-E4  Whoever is revoked takes the waiting calls along: what a token, a user or a browser asked for is superseded when
        it could no longer ask, and is not consumed from that moment on, for `consume` looks in its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from legation.approvals.approval import Approval, Change, Status, moved, read
from legation.approvals.chain import Chain, Ledger
from legation.approvals.trace import ContentName, Draft, StepKind
from legation.errors import AlreadyAnswered, Conflict, LegationError, NotFound
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Row, Rows, Transaction, only
from legation.store.identity import tokens
from legation.store.identity.standing import standing
from legation.wire.principal import Principal

MOST_OF_SESSION: Final = 10_000  # open approvals that a session has at once: more than any agent asks for
BATCH: Final = 100  # approvals that end in one transaction: some milliseconds of work

Reason: TypeAlias = Literal[
    "unanswered",  # expired while pending
    "unused",  # expired after it was approved
    "waiter-dead",  # superseded: the process that waited is gone
    "edited",  # superseded: by an approval of changed arguments
    "revoked",  # superseded: whoever asked is revoked, expired, disabled, signed out, or has another role
    "caller-gone",
    "turn-cancelled",
    "session-closed",  # superseded: the session that it was asked in has ended
    "policy-changed",
    "paths-changed",  # cancelled: its paths lead elsewhere than when it was asked
    "limit-reached",  # cancelled: the money is spent meanwhile
    "only-always",  # cancelled: the agent offers nothing else, and there is no grant for that
    "stopping",
    "no-supervisor",  # escalated: nobody of level 1 was there
    "granted",  # resolved: a grant was given meanwhile
    "undecided",  # escalated: supervisors were there and left it
]

_SQL: Final = Queries("approvals")
_OPEN: Final = (Status.PENDING, Status.APPROVED)


def get(workspace: str, approval_id: str) -> Transaction[Approval]:
    """By the whole id."""
    row = only((yield _SQL.get(workspace=workspace, id=approval_id)))
    if row is None:
        raise NotFound("cannot find the approval; list those of the workspace, and give the whole id")
    return read(row)


class Revoked(Conflict):
    """Whoever asked could not ask any more. It never leaves the door."""


def may_still_ask(
    workspace: str, kind: str, requester: str, version: int | None, agent: str, now_ms: int
) -> Transaction[bool]:
    """Whether a credential that asked for an agent could ask the same now. The server's own cannot be revoked: what asks
    by them, a session, ends by itself."""
    row = only((yield _SQL.workspace_status(workspace=workspace)))
    if row is None or row["status"] != "active":
        return False
    if kind == "token":
        token = yield from tokens.principal_by_id(workspace, requester, now_ms)
        return token is not None and "call" in token.scopes and _is_for(token, agent)
    if kind == "user":
        found = yield from standing(requester, workspace)
        return (
            found is not None
            and {"call", "operate"} <= found.scopes
            and version in (None, found.token_version)
        )
    return True


def must_still_ask(asked: Approval, now_ms: int) -> Transaction[None]:
    """A part of the transaction in which it passes."""
    requester = asked.requester_kind, asked.requester, asked.requester_version
    if not (yield from may_still_ask(asked.workspace_id, *requester, asked.agent, now_ms)):
        raise Revoked(f"cannot use approval {asked.id}: whoever asked for it may ask no more")


def _is_for(token: Principal, agent: str) -> bool:
    return token.agent == agent if token.agent is not None else "operate" in token.scopes


class Endings:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def consume(
        self, workspace: str, approval_id: str, waiter: str, digest: str, policy_version: str, now_ms: int
    ) -> Transaction[Approval]:
        """Right before acting. A second time, and for another action, policy or waiter, it is refused, and so it is for
        whoever was revoked meanwhile."""
        yield from must_still_ask((yield from get(workspace, approval_id)), now_ms)
        rows = yield _SQL.consume(
            workspace=workspace,
            id=approval_id,
            waiter=waiter,
            action_digest=digest,
            policy_version=policy_version,
            now=now_ms,
        )
        former = yield from get(workspace, approval_id)
        if not rows:
            raise _unusable(former, waiter, policy_version, now_ms)
        return (yield from self.changed(rows, former, StepKind.CONSUMED, None, now_ms))

    def end_all(
        self, workspace: str, ids: Iterable[str], change: Change, now_ms: int, reason: Reason | None = None
    ) -> Transaction[list[Approval]]:
        """Those of them that are still open; for `expire` those whose time is over. The others stay as they are."""
        ended = []
        for approval_id in ids:
            row = only((yield _SQL.get(workspace=workspace, id=approval_id)))
            if row is None:
                continue
            former = read(row)
            is_open = former.status in _OPEN and former.consumed_at is None
            if is_open and (change is not Change.EXPIRE or former.expires_at <= now_ms):
                ended.append((yield from self.end(former, change, now_ms, reason)))
        return ended

    def cancel(
        self, workspace: str, ids: Iterable[str], reason: Reason, now_ms: int
    ) -> Transaction[list[Approval]]:
        return (yield from self.end_all(workspace, ids, Change.CANCEL, now_ms, reason))

    def cancel_session(
        self, workspace: str, session: str, turn: str | None, reason: Reason, now_ms: int
    ) -> Transaction[list[Approval]]:
        """All open ones of a session, or of one of its turns."""
        ids = yield from _open_in(workspace, session, turn)
        return (yield from self.cancel(workspace, ids, reason, now_ms))

    def supersede_session(self, workspace: str, session: str, now_ms: int) -> Transaction[list[Approval]]:
        """All open ones that name a session which has ended, whoever asked for them."""
        ids = yield from _open_in(workspace, session, None)
        return (yield from self.end_all(workspace, ids, Change.SUPERSEDE, now_ms, "session-closed"))

    def end(
        self,
        former: Approval,
        change: Change,
        now_ms: int,
        reason: Reason | None = None,
        *,
        by: Principal | None = None,
        to: str | None = None,
    ) -> Transaction[Approval]:
        """Expire, supersede or cancel one that was read in this transaction and is open."""
        status = moved(former, change, now_ms)
        rows = yield _SQL.end_open(
            workspace=former.workspace_id,
            id=former.id,
            status=status,
            former=former.status,
            replaced_by=to,
            now=now_ms,
        )
        word = reason or ("unused" if former.status is Status.APPROVED else "unanswered")
        return (yield from self.changed(rows, former, StepKind(status), by, now_ms, reason=word))

    def changed(
        self,
        rows: Rows,
        former: Approval,
        step: StepKind,
        by: Principal | None,
        now_ms: int,
        said: Mapping[ContentName, str | None] = {},
        *,
        reason: Reason | None = None,
    ) -> Transaction[Approval]:
        """The step of the trace that belongs to a conditional update; without a row somebody was faster."""
        if not rows:
            raise AlreadyAnswered(f"cannot change approval {former.id}: somebody was faster; read it again")
        approval = msgspec.structs.replace(read(rows[0]), reason=reason)
        draft = Draft(
            step=step,
            call=approval.call,
            contents={name: words for name, words in said.items() if words is not None},
            owner=approval.content_owner,
            status=str(approval.status),
            reason=reason,
            by=by,
            confidence=approval.confidence if step is StepKind.RESOLVED else None,
            replaces=approval.replaced_by,
        )
        yield from self.chain.append(approval.workspace_id, [draft], now_ms)
        return approval


def _unusable(former: Approval, waiter: str, policy_version: str, now_ms: int) -> LegationError:
    why = f"cannot use approval {former.id}: "
    if former.waiter != waiter:
        return Conflict(why + "another waits for it; ask for one of your own", {"reason": "waiter"})
    try:
        moved(former, Change.CONSUME, now_ms)
    except AlreadyAnswered as error:
        return Conflict(why + f"it is {(error.data or {})['status']}; ask again", error.data)
    if former.policy_version != policy_version:
        return Conflict(
            why + "the policy changed since; ask again under the new one", {"reason": "policy-changed"}
        )
    return Conflict(why + "it was given for another action; ask again", {"reason": "action"})


# Sweeps over all workspaces. Each batch is a transaction of its own, in the turn of its chain.


async def expire_due(ledger: Ledger, endings: Endings, now_ms: int) -> list[Approval]:
    """Whatever ran out of time. Call it often; it costs one look at an index when nothing did."""
    ended: list[Approval] = []
    while due := await ledger.database.read(_due, now_ms):
        batch = await _end_batch(ledger, endings, due, Change.EXPIRE, now_ms, None)
        ended += batch
        if not batch:
            break  # others ended them meanwhile
    return ended


async def supersede(ledger: Ledger, endings: Endings, dead: Iterable[str], now_ms: int) -> list[Approval]:
    """Whatever these waiters waited for: at a start, those of processes that are gone."""
    waiters = msgspec.json.encode(sorted(set(dead))).decode()
    ended: list[Approval] = []
    while left := await ledger.database.read(_open_of, waiters):
        batch = await _end_batch(ledger, endings, left, Change.SUPERSEDE, now_ms, "waiter-dead")
        ended += batch
        if not batch:
            break
    return ended


async def supersede_revoked(ledger: Ledger, endings: Endings, now_ms: int) -> list[Approval]:
    """Whatever was asked for by somebody who could not ask it now. It costs one look at each who asked."""
    ended: list[Approval] = []
    for asker in await ledger.database.read(_askers):
        if await ledger.database.read(_stands, asker, now_ms):
            continue
        while left := await ledger.database.read(_open_of_asker, asker):
            batch = await _end_batch(ledger, endings, left, Change.SUPERSEDE, now_ms, "revoked")
            ended += batch
            if not batch:
                break
    return ended


async def open_waiters(database: Database) -> list[str]:
    """Whoever anything open waits for: the caller knows which of them live."""
    return await database.read(_waiters)


async def _end_batch(
    ledger: Ledger, endings: Endings, rows: Rows, change: Change, now_ms: int, reason: Reason | None
) -> list[Approval]:
    ids: dict[str, list[str]] = {}
    for row in rows:
        ids.setdefault(row["workspace_id"], []).append(row["id"])
    ended = []
    for workspace, some in ids.items():
        ended += await ledger.transact(workspace, endings.end_all, workspace, some, change, now_ms, reason)
    return ended


def _due(now_ms: int) -> Transaction[Rows]:
    return (yield _SQL.due(now=now_ms, limit=BATCH))


def _open_of(waiters: str) -> Transaction[Rows]:
    return (yield _SQL.open_of_waiters(waiters=waiters, limit=BATCH))


def _waiters() -> Transaction[list[str]]:
    return [row["waiter"] for row in (yield _SQL.waiters())]


def _open_in(workspace: str, session: str, turn: str | None) -> Transaction[list[str]]:
    rows = yield _SQL.open_of_session(workspace=workspace, session=session, turn=turn, limit=MOST_OF_SESSION)
    return [row["id"] for row in rows]


def _askers() -> Transaction[Rows]:
    return (yield _SQL.askers())


def _stands(asker: Row, now_ms: int) -> Transaction[bool]:
    requester = asker["requester_kind"], asker["requester"], asker["requester_version"]
    return (yield from may_still_ask(asker["workspace_id"], *requester, asker["agent"], now_ms))


def _open_of_asker(asker: Row) -> Transaction[Rows]:
    return (
        yield _SQL.open_of_asker(
            workspace=asker["workspace_id"],
            kind=asker["requester_kind"],
            requester=asker["requester"],
            version=asker["requester_version"],
            agent=asker["agent"],
            limit=BATCH,
        )
    )
