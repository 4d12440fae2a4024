"""The trace made smaller: what was said on old days is purged, and the first steps of a chain are cut off.

Each function that changes something is one small transaction, a slice, to be repeated until it has nothing to do: others
come in between, and whatever ends the work between two slices, nothing is half done.

INV-K1  Content of a day is there for everybody or for nobody: the day is marked first, and goes row by row, its key last.
INV-K2  A slice of steps goes with what they said, with the approvals they asked for, and with the checkpoint that the first
        step which is left follows: `verify` finds the chain good after each.
INV-K3  Nothing of what is not over goes: open approvals, effects under way, and steps of a call whose first step is in
        another server's chain, where that tells of it still.

Days are those of UTC: what is cut is older than the beginning of one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import takewhile
from typing import Final

import msgspec

from legation.approvals.trace.chain import Chain, Ledger, TraceCut, head
from legation.approvals.trace.step import StepDraft, StepKind, TracedCall, day_owner, new_trace_id
from legation.store.database.transaction import Database, Queries, Row, Rows, Transaction, only
from legation.wire.principal import Principal

SLICE_ROWS: Final = 200  # rows of one kind in one transaction: some milliseconds, which others wait
SLICE_BYTES: Final = 2 * 1024 * 1024  # of what they said; but one of them is always taken
STEP_BYTES: Final = 1200  # of a step with its places in the indexes, about
DAY_MS: Final = 86_400_000
CUTS: Final = "cuts"  # the owner of what checkpoints say: of no day, so that no purge takes its key

_SQL: Final = Queries("traces")


class Slice(msgspec.Struct, frozen=True):
    """Rows that went, or would go; `more`: there may be another slice."""

    count: int = 0
    bytes: int = 0
    more: bool = False


def day_start(before_ms: int) -> int:
    """Return the beginning of the day that holds a time: what happened before is what is cut."""
    return before_ms // DAY_MS * DAY_MS


# What was said.


async def purge(database: Database, workspace: str, before_ms: int, now_ms: int) -> AsyncIterator[Slice]:
    """Purge what was said on the days before the one that holds a time, slice by slice."""
    for owner in await database.read(old_days, workspace, before_ms):
        async for done in purge_day(database, workspace, owner, now_ms):
            yield done


async def purge_day(database: Database, workspace: str, owner: str, now_ms: int) -> AsyncIterator[Slice]:
    await database.transact(begin_purge, workspace, owner, now_ms)
    more = True
    while more:
        done = await database.transact(purge_slice, workspace, owner)
        yield done
        more = done.more


async def finish_purges(database: Database, now_ms: int) -> None:
    """Go on with what a killed server had begun."""
    for workspace, owner in await database.read(_begun):
        async for _ in purge_day(database, workspace, owner, now_ms):
            pass


def old_days(workspace: str, before_ms: int) -> Transaction[list[str]]:
    """List the owners of content that may go."""
    found = yield _SQL.old_days(workspace=workspace, before=day_owner(before_ms))
    return [row["owner"] for row in found]


def content_of_day(workspace: str, owner: str) -> Transaction[Slice]:
    (row,) = yield _SQL.content_of_day(workspace=workspace, owner=owner)
    return Slice(row["contents"], int(row["bytes"]))


def begin_purge(workspace: str, owner: str, now_ms: int) -> Transaction[None]:
    yield _SQL.begin_purge(workspace=workspace, owner=owner, now=now_ms)


def purge_slice(workspace: str, owner: str) -> Transaction[Slice]:
    """Delete some of what is under a key, and the key when that was all."""
    found = yield _SQL.content_sizes(workspace=workspace, owner=owner, limit=SLICE_ROWS)
    going = _fitting(found)
    count = 0
    for server in dict.fromkeys(row["server"] for row in going):
        numbers = {row["seq"] for row in going if row["server"] == server}
        gone = yield _SQL.drop_content(
            workspace=workspace, server=server, owner=owner, numbers=_json(sorted(numbers))
        )
        count += len(gone)
    more = len(going) < len(found) or len(found) == SLICE_ROWS
    if not more:
        yield _SQL.end_purge(workspace=workspace, owner=owner)
    return Slice(count, sum(row["bytes"] for row in going), more)


def _begun() -> Transaction[list[tuple[str, str]]]:
    return [(row["workspace_id"], row["owner"]) for row in (yield _SQL.purges())]


# Steps.


async def cut(
    ledger: Ledger, workspace: str, before_ms: int, by: Principal, now_ms: int
) -> AsyncIterator[Slice]:
    """Cut off the steps before the day that holds a time, slice by slice. Of this server's chain: another writes its own."""
    before, more = day_start(before_ms), True
    while more:
        done = await ledger.transact(workspace, cut_slice, ledger.chain, workspace, before, by, now_ms)
        if done.count:
            yield done
        more = done.more


def cut_slice(chain: Chain, workspace: str, before: int, by: Principal, now_ms: int) -> Transaction[Slice]:
    place = {"workspace": workspace, "server": chain.server}
    found = yield _SQL.oldest_steps(**place, limit=SLICE_ROWS)
    over = yield from _over(place, found, before)
    going = _fitting(over)
    if not going:
        return Slice()
    first, last = going[0], going[-1]
    asked = _json(
        row["approval_id"] for row in going if row["step"] == StepKind.PROPOSED and row["approval_id"]
    )
    yield _SQL.cut_contents(**place, last=last["seq"])
    yield _SQL.cut_approvals(workspace=workspace, approvals=asked)
    yield _SQL.cut_steps(**place, last=last["seq"])
    gap = TraceCut(first["seq"], last["seq"], last["hash"], first["at"], last["at"])
    yield from chain.append(workspace, [_checkpoint(gap, by)], now_ms)
    size = sum(row["bytes"] for row in going) + STEP_BYTES * len(going)
    return Slice(len(going), size, more=len(going) < len(over) or len(over) == SLICE_ROWS)


def _over(place: dict[str, str], found: Rows, before: int) -> Transaction[list[Row]]:
    """Return the first steps that may go: up to one that is not old, or not over (INV-K3)."""
    old = list(takewhile(lambda row: row["at"] < before, found))
    held_rows = yield _SQL.held_traces(
        **place,
        traces=_json({row["trace_id"] for row in old}),
        approvals=_json({row["approval_id"] for row in old if row["approval_id"]}),
    )
    held = {row["trace_id"] for row in held_rows}
    return list(takewhile(lambda row: row["trace_id"] not in held, old))


def _checkpoint(gap: TraceCut, by: Principal) -> StepDraft:
    told = msgspec.json.encode(gap).decode()
    return StepDraft(
        step=StepKind.CHECKPOINT,
        call=TracedCall(trace_id=new_trace_id(), agent="legation", tool="trace.cut"),
        by=by,
        cut=told,
        contents={"cut": told},  # only who has the key can say so
        owner=CUTS,
    )


def old_steps(workspace: str, server: str, before_ms: int) -> Transaction[int]:
    """Count the steps of a chain before the day that holds a time, about: by halves, since numbers are dense and in the order
    of time."""
    before = day_start(before_ms)
    first = only((yield _SQL.first_step(workspace=workspace, server=server, from_seq=0)))
    if first is None:
        return 0
    low, high = first["seq"], (yield from head(workspace, server)).seq + 1
    while low < high:
        middle = (low + high) // 2
        step = only((yield _SQL.first_step(workspace=workspace, server=server, from_seq=middle)))
        if step is not None and step["at"] < before:
            low = middle + 1
        else:
            high = middle
    return int(low - first["seq"])


def _fitting(found: Iterable[Row]) -> list[Row]:
    """Take as many as fit into a slice."""
    taken: list[Row] = []
    size = 0
    for row in found:
        size += row["bytes"]
        if taken and size > SLICE_BYTES:
            break
        taken.append(row)
    return taken


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode(list(values)).decode()
