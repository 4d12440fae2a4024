"""A run as a row, and the transactions on it. The row is the queue: a lease is what allows to write it.

INV-L1  A run has at most one lease at a time: whoever claims it finds none, or one that has run out.
INV-L2  What the holder of a lease writes names the run and the lease's token and is written only while the lease lasts. With
        several rows in one statement each is fenced by itself: one that was stolen takes no other along.
INV-L3  Others write only what wakes it or asks for its end. Woken while somebody holds it, it is due again when it is released.
INV-L4  A slot is taken and given back in one transaction with the state that has it, under the row of its workspace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from legation.errors import Conflict
from legation.runs.states import CleanupStatus, ErrorClass, RunState
from legation.store.database.transaction import (
    Queries,
    Row,
    Transaction,
    Value,
    conditional,
    only,
    read_committed,
)
from legation.wire.api.runs import Priority

SQL: Final = Queries("runs")
INBOX: Final = Queries("inbox")
TOPIC: Final = "runs"  # of notices: something is due that was not before
CHANGES: Final = "run-changes"  # of notices: something that is shown of a run is another
PRIORITIES: Final[Mapping[Priority, int]] = {"low": 0, "normal": 1, "high": 2}
SUBMISSION: Final = "submission"  # the stream of the run's content with what was submitted, as one page
EVENTS: Final = "events"
# In the place of a machine, of runs that have ended: whoever packs looks there and nobody else, so that what is new never waits behind it.
PACKING: Final = "~packs"
MOST_AT_ONCE: Final = 500  # rows of one statement
# Where the inbox has a run that has ended; one that was cancelled nowhere: whoever did that knows.
SECTIONS: Final[Mapping[RunState, Literal["wrong", "ready"]]] = {
    RunState.SUCCEEDED: "ready",
    RunState.FAILED: "wrong",
    RunState.TIMED_OUT: "wrong",
}


class LeaseLost(Conflict):
    """The lease has run out, or is another's: whoever had it stops where it is."""


class RunCaps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a run, as they were when it was submitted. Times are seconds."""

    concurrency: int = 4  # runs of its workspace at once
    run_seconds: float = 24 * 3600.0
    retries: int = 3  # of a step that failed for a reason that may pass
    suspensions: int = 5  # by usage limits of its provider, and how long all of them together
    suspended_seconds: float = 24 * 3600.0
    policy: str | None = None  # asked besides those in force
    retain: bool = False  # what the installation says, of a run that does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`lease_token` is that of the claim by which it was read; "" where it was merely looked at."""

    id: str
    workspace: str
    creator_kind: str
    creator: str
    creator_user: str | None
    template_id: str | None
    template_hash: str | None
    agent: str
    provider: str
    caps: RunCaps
    priority: int
    created_at: int
    next_check_at: int | None
    woken: int
    cancel_requested_at: int | None
    delete_requested_at: int | None
    lease_owner: str | None
    lease_token: str
    lease_expires_at: int
    state: RunState
    outcome: RunState | None
    cleanup: CleanupStatus
    error_class: ErrorClass | None
    error_code: str | None
    error_reason: str | None
    machine: str
    attempt: int
    has_slot: bool
    secret_id: str | None
    waits_for: str | None
    resume_at: int | None
    watermark: str | None
    tries: int
    started_at: int | None
    deadline_at: int | None
    ended_at: int | None

    @property
    def attempt_id(self) -> str:
        """Name of its newest attempt, of that one's runner, and the beginning of the names of all that is made for it."""
        return f"{self.id}-{self.attempt}"

    @property
    def is_unwanted(self) -> bool:
        """Somebody has asked for its end."""
        return self.cancel_requested_at is not None or self.delete_requested_at is not None


# Columns that the holder of a lease writes.
_WRITTEN: Final = (
    *(
        "state",
        "outcome",
        "cleanup",
        "error_class",
        "error_code",
        "error_reason",
        "machine",
        "attempt",
        "has_slot",
    ),
    *("secret_id", "waits_for", "resume_at", "watermark", "tries", "started_at", "deadline_at", "ended_at"),
)


@dataclass(frozen=True, slots=True)
class LeaseReturn:
    """End of a step that changed nothing: when the run is to be looked at next; None for one with which nothing is left to do."""

    run: Run
    next_check_at: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """End of a step: the run as it is now, and when it is to be looked at next; None for one that has ended.

    `slot`: "take" has it wait for a slot where its workspace has none left, in the state that it is in; "give" gives its own back.
    `ends_attempt`: its newest attempt is over, for the run's error if it has one."""

    before: Run
    run: Run
    next_check_at: int | None
    slot: Literal["take", "give"] | None = None
    ends_attempt: bool = False


def run_of(row: Row) -> Run:
    return Run(
        **{name: row[name] for name in _PLAIN},
        workspace=row["workspace_id"],
        caps=msgspec.json.decode(row["caps"], type=RunCaps),
        lease_token=row["lease_token"] or "",
        lease_expires_at=row["lease_expires_at"] or 0,
        state=_STATES[row["state"]],
        outcome=_STATES.get(row["outcome"]),
        cleanup=CleanupStatus(row["cleanup"]),
        error_class=_CLASSES.get(row["error_class"]),
        has_slot=bool(row["has_slot"]),
    )


_STATES: Final = {str(each): each for each in RunState}
_CLASSES: Final = {str(each): each for each in ErrorClass}
_READ: Final = {
    *(
        "workspace",
        "caps",
        "lease_token",
        "lease_expires_at",
        "state",
        "outcome",
        "cleanup",
        "error_class",
        "has_slot",
    )
}
_PLAIN: Final = tuple(name for name in Run.__dataclass_fields__ if name not in _READ)


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be added. What was submitted goes, sealed, into the stream `SUBMISSION` of its content in the same transaction."""

    id: str
    workspace: str
    creator_kind: str
    creator: str
    creator_user: str | None
    agent: str
    provider: str
    caps: RunCaps
    request_hash: str
    priority: Priority = "normal"
    idempotency_key: str | None = None
    template_id: str | None = None
    template_hash: str | None = None
    secret_id: str | None = None


def add_run(new: NewRun, *, now_ms: int) -> Transaction[None]:
    """A part of the transaction that submits it. `Duplicate` where its workspace has one with that key. To be followed by
    `notify(TOPIC)`."""
    yield SQL.add_run(**added_row(new, now_ms=now_ms))


def added_row(new: NewRun, *, now_ms: int) -> dict[str, Value]:
    return {
        "id": new.id,
        "workspace": new.workspace,
        "creator_kind": new.creator_kind,
        "creator": new.creator,
        "creator_user": new.creator_user,
        "template_id": new.template_id,
        "template_hash": new.template_hash,
        "agent": new.agent,
        "provider": new.provider,
        "caps": _json(new.caps),
        "idempotency_key": new.idempotency_key,
        "request_hash": new.request_hash,
        "priority": PRIORITIES[new.priority],
        "secret_id": new.secret_id,
        "now": now_ms,
    }


def find_run(workspace: str, run_id: str) -> Transaction[Run | None]:
    """Another workspace's and none at all are the same."""
    row = only((yield SQL.run(workspace=workspace, id=run_id)))
    return None if row is None else run_of(row)


# Safe under read committed: one statement, which locks what it claims and passes over what others lock.
@conditional
def claim(
    owner: str, machine: str, token: str, limit: int, *, now_ms: int, until_ms: int
) -> Transaction[list[Run]]:
    """Claim up to `limit` runs that are due, in the order in which they are to be worked on. `token` is fresh for each claim."""
    rows = yield SQL.claim(owner=owner, machine=machine, token=token, limit=limit, now=now_ms, until=until_ms)
    runs = [run_of(row) for row in rows]
    return sorted(runs, key=lambda run: (-run.priority, not run.machine, run.next_check_at or 0, run.id))


# Safe under read committed, this one and the next: one statement, fenced row by row.
@conditional
def renew(runs: Sequence[Run], *, now_ms: int, until_ms: int) -> Transaction[set[str]]:
    """Prolong leases; the ids of those that still were ours."""
    leases = _json([{"id": run.id, "token": run.lease_token} for run in runs])
    rows = yield SQL.renew(leases=leases, now=now_ms, until=until_ms)
    return {row["id"] for row in rows}


@conditional
def release(releases: Sequence[LeaseReturn], *, now_ms: int) -> Transaction[set[str]]:
    """Give leases back; the ids of those that still were ours."""
    leases = [_fence(each.run) | {"next": each.next_check_at} for each in releases]
    rows = yield SQL.release(leases=_json(leases), now=now_ms)
    return {row["id"] for row in rows}


# Safe under read committed: runs are written by whoever holds their lease, each fenced; slots are read and written under the
# lock of their row, which is taken first, and what waits behind them is read after that.
@read_committed
def settle(changes: Sequence[Change], *, now_ms: int) -> Transaction[dict[str, Run]]:
    """Write what steps have come to and give their leases back; the runs of those that still were ours, as they are now."""
    taken: dict[str, int] = {}
    for workspace in sorted({each.run.workspace for each in changes if each.slot is not None}):
        (row,) = yield SQL.lock_slots(workspace=workspace)
        taken[workspace] = row["taken"]
    wanted, left = [], dict(taken)
    for each in changes:
        if each.slot == "take" and left[each.run.workspace] >= each.run.caps.concurrency:
            # It stays what it was, and nobody looks at it until a slot is given back.
            each = replace(each, run=each.before, next_check_at=None, slot=None)
        elif each.slot == "take":
            left[each.run.workspace] += 1
        wanted.append(each)
    rows = yield SQL.settle(changes=_json([_written(each) for each in wanted]), now=now_ms)
    kept = {row["id"] for row in rows}
    given: defaultdict[str, int] = defaultdict(int)
    for each in wanted:
        if each.run.id not in kept:
            continue
        if each.slot is not None:
            given[each.run.workspace] += 1 if each.slot == "give" else -1
        if each.ends_attempt:
            yield _end_attempt(each.run, now_ms)
        is_news = each.before.state is not each.run.state  # what is done after an end is none
        unclean = each.run.cleanup is CleanupStatus.FAILED_TERMINAL  # then also one that somebody cancelled
        section = "wrong" if unclean else SECTIONS.get(each.run.state)
        if is_news and section is not None and each.run.ended_at is not None:
            yield INBOX.put(
                workspace=each.run.workspace,
                id=each.run.id,
                kind="run",
                section=section,
                state=each.run.state,
                session=None,
                server="",  # any of them shows it
                since=now_ms,
                expires_at=None,
            )
    for workspace, count in sorted(given.items()):
        handed_on = 0
        if count > 0:
            handed_on = len((yield SQL.unpark(workspace=workspace, limit=count, now=now_ms)))
        yield SQL.set_slots(workspace=workspace, taken=taken[workspace] - count + handed_on)
    return {each.run.id: each.run for each in wanted if each.run.id in kept}


def _end_attempt(run: Run, now_ms: int) -> Any:
    return SQL.end_attempt(
        workspace=run.workspace,
        id=run.attempt_id,
        error_class=run.error_class,
        error_code=run.error_code,
        now=now_ms,
    )


# Safe under read committed: it writes nothing, and locks the row for what follows in the same transaction.
@conditional
def hold(run: Run, *, now_ms: int) -> Transaction[Run]:
    """Find what was asked for meanwhile, under the lease; `LeaseLost` without it. In a transaction of the caller's nobody else
    gets the lease until its end."""
    row = only((yield SQL.hold(workspace=run.workspace, id=run.id, token=run.lease_token, now=now_ms)))
    if row is None:
        raise LeaseLost(
            f"cannot go on with {run.id}: its lease has run out or is another's; leave it to them"
        )
    return replace(
        run,
        cancel_requested_at=row["cancel_requested_at"],
        delete_requested_at=row["delete_requested_at"],
        woken=row["woken"],
    )


# Safe under read committed: one statement under its own condition.
@conditional
def request_cancel(workspace: str, run_id: str, *, now_ms: int) -> Transaction[bool]:
    """Ask for its end; whether that is news. To be followed by `notify(TOPIC)`."""
    return bool((yield SQL.request_cancel(workspace=workspace, id=run_id, now=now_ms)))


@conditional
def wake(workspace: str, run_id: str, *, now_ms: int) -> Transaction[bool]:
    """Have a worker look at it soon. To be followed by `notify(TOPIC)`."""
    return bool((yield SQL.wake(workspace=workspace, id=run_id, now=now_ms)))


def _fence(run: Run) -> dict[str, object]:
    return {"id": run.id, "token": run.lease_token, "woken": run.woken}


def _written(change: Change) -> dict[str, object]:
    values = {name: getattr(change.run, name) for name in _WRITTEN}
    values["has_slot"] = int(change.run.has_slot)
    fence = _fence(change.before) | {"woken": change.run.woken}
    return values | fence | {"next": change.next_check_at}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
