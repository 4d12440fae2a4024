"""100,000 approvals on record, 10,000 of them pending: a page, an answer, and what a decision costs the trace.

The pending ones are asked for as they would be, with sealed arguments and their steps; the history is copied in SQL.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import Sample, Stopwatch, emit
from legation.approvals.approval import Approval, ApprovalAnswer, Proposal, Waiter, new_approval_id
from legation.approvals.door import Door
from legation.approvals.listing import ApprovalFilter, page, views
from legation.approvals.policies import Policies
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import DoorRequest
from legation.approvals.trace import entries
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.step import new_trace_id
from legation.approvals.transitions import Transitions
from legation.approvals.upkeep import SignsOfLife
from legation.clock import SystemClock
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text
from legation.wire.action import Action
from legation.wire.principal import Principal

PENDING = 10_000
HISTORY = 90_000
AT_ONCE = 200  # approvals in one transaction while filling
PAGE = 100
TIMES = 60
DECISIONS = 2_000
CALLERS = 50
NOW = 1_700_000_000_000
DAY = 86_400_000
AGENT = Principal(kind="process", id="bench", workspace="local", scopes=frozenset({"operate"}), level=0)
FACTS = Facts(workspace="/home/user/project", cwd="/home/user/project", home="/home/user")
PERSON = Principal(kind="user", id="usr_1", workspace="local", scopes=frozenset({"approve"}), level=2)

_COPIED = """trace_id, waiter, requester_kind, requester, agent, tool, kind, action_digest, policy_version, policy_rule,
  verdict, needs, injection_risk, argument_bytes, argument_names, content_owner, group_key, created_at, expires_at"""
SQL = {
    query.name: query
    for query in parse(
        f"""
-- name: workspace
insert into workspace (id, name, created_at) values ('local', 'local', 0);
-- name: history [sqlite]
with recursive n(i) as (select 1 union all select i + 1 from n where i < :count)
insert into approval (id, workspace_id, status, resolved_at, {_COPIED})
select printf('apr_%07d', i), workspace_id, case i % 3 when 0 then 'denied' else 'approved' end, created_at, {_COPIED}
from n cross join (select * from approval limit 1) as one;
-- name: history [postgres]
insert into approval (id, workspace_id, status, resolved_at, {_COPIED})
select 'apr_' || lpad(cast(i as text), 7, '0'), workspace_id,
  case i % 3 when 0 then 'denied' else 'approved' end, created_at, {_COPIED}
from generate_series(1, cast(:count as integer)) as i cross join (select * from approval limit 1) as one;
-- name: used
update approval set consumed_at = resolved_at where status = 'approved';
"""
    )
}


def action(number: int) -> Action:
    tool = ("filesystem.write_file", "filesystem.read_file", "gmail.send", "shell.run")[number % 4]
    params = {"path": f"/home/user/project/{number}.py", "content": "x" * 400}
    return Action(agent="claude", tool=tool, kind="edit", params=params)


def proposal(number: int) -> Proposal:
    return Proposal(
        id=new_approval_id(NOW + number),
        trace_id=new_trace_id(),
        workspace="local",
        waiter=Waiter("session:bench", "bench"),
        requester_kind="process",
        requester="bench",
        action=action(number),
        verdict="supervisor",
        policy_version="v1",
        policy_rule="claude:rule-2",
        expires_at=NOW + DAY,
    )


def fill(approvals: Transitions, numbers: Sequence[int]) -> Transaction[None]:
    for number in numbers:
        yield from approvals.propose(proposal(number), NOW + number)


def run(name: str, **args: int) -> Transaction[None]:
    yield SQL[name](**args)


def rules(folder: Path) -> Policies:
    """A hundred of them, of which the last one allows."""
    others = [f"  - {{tools: other{number}.*, action: deny}}" for number in range(99)]
    head = ["name: bench", 'agent: "*"', "loop: off", "rules:"]
    path = folder / "policy.yaml"
    path.write_text("\n".join([*head, *others, '  - {id: rest, tools: "*", action: allow}', ""]))
    return Policies(path)


def call(number: int) -> DoorRequest:
    """That the policy allows: the hot path."""
    return DoorRequest(principal=AGENT, action=action(number), facts=FACTS, session_id="ses_1")


async def median_ms(work: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1000


async def measure(database: SqliteDatabase | PostgresDatabase, scratch: Path) -> Sample:
    sealer = Sealer(KeyRing(make_key(Secret(new_key_text(), "vault-key"))))
    chain = Chain("bench", sealer, at_once=database.dialect == "postgres")
    ledger, approvals = Ledger(database, chain), Transitions(chain)
    inbox = ApprovalQueue(ledger, SystemClock(), "bench")
    await SignsOfLife().sign(inbox)
    door = Door(inbox, rules(scratch))
    await database.transact(run, "workspace")
    for start in range(0, PENDING, AT_ONCE):
        await ledger.transact("local", fill, approvals, range(start, start + AT_ONCE))
    await database.transact(run, "history", count=HISTORY)
    await database.transact(run, "used")

    async def listed(after: str | None = None, **wanted: str) -> list[Approval]:
        return (
            await database.read(page, "local", ApprovalFilter(**wanted), NOW + DAY // 2, PAGE, after)
        ).items

    async def shown(**wanted: str) -> None:
        found = await listed(**wanted)
        assert len(found) == PAGE
        await views(database, sealer, "local", found, NOW)

    pending = [approval for start in (None,) for approval in await listed(start, status="pending")]

    async def resolve() -> None:
        approval = pending.pop()
        answer = ApprovalAnswer(approve=True, reasoning="in the project", confidence=0.9)
        await ledger.transact("local", approvals.resolve, PERSON, approval.id, answer, NOW + DAY // 2)

    async def decide() -> None:
        assert (await door.decide(call(1))).passed

    async def decide_many() -> None:
        for number in range(DECISIONS // CALLERS):
            await door.decide(call(number))

    sample = {
        "page ms": await median_ms(lambda: shown(status="pending")),
        "glob page ms": await median_ms(lambda: shown(status="pending", tool="gmail.*")),
        "history page ms": await median_ms(shown_history(database)),
        "resolve ms": await median_ms(resolve),
        "decision ms": await median_ms(decide),
    }
    stopwatch = Stopwatch()
    await asyncio.gather(*[decide_many() for _ in range(CALLERS)])
    spent = stopwatch.stop()
    sample["decisions/s"] = DECISIONS / spent.wall
    sample["CPU µs/decision"] = spent.cpu / DECISIONS * 1e6
    sample["traces page ms"] = await median_ms(
        lambda: entries.entries(database, sealer, "local", TraceFilter(), PAGE)
    )
    return sample


def shown_history(database: SqliteDatabase | PostgresDatabase) -> Callable[[], Awaitable[object]]:
    """Of every status, from the middle."""
    return lambda: database.read(page, "local", ApprovalFilter(), NOW, PAGE, "apr_0050000")


@asynccontextmanager
async def opened(kind: str, scratch: Path) -> AsyncIterator[SqliteDatabase | PostgresDatabase]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            async with SqliteDatabase(Path(folder) / "legation.db") as sqlite:
                await sqlite.migrate()
                yield sqlite
        return
    from tests.postgres import (
        running_postgres,
    )  # without fsync: its figures are the statements', not the disk's

    with running_postgres() as server:
        async with PostgresDatabase(server.new_database()) as postgres:
            await postgres.migrate()
            yield postgres


async def main(kind: str, scratch: Path) -> None:
    async with opened(kind, scratch) as database:
        emit(await measure(database, scratch))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
