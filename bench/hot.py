"""The paths that everybody takes at once: one bucket, the vault, answers to approvals, decisions through the door.

Fifty callers, each with its next call when the last is durable. On Postgres the data is on the disk and fsync is on.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.approvals import CALLERS, NOW, PERSON, call, proposal, rules, run
from bench.measure import Sample, Stopwatch, emit
from legation.approvals import upkeep
from legation.approvals.approval import ApprovalAnswer, Proposal
from legation.approvals.door import Door
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue, Attendance
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.transitions import Transitions
from legation.clock import SystemClock
from legation.secret import Secret
from legation.store.counters import Buckets, Limit
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Transaction
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text
from legation.store.secrets.vault import Vault

TAKES, PUTS, ANSWERS, DECISIONS, DISTURBED = 2_000, 2_000, 500, 4_000, 200
PLENTY = Limit(1_000_000, 3600)

Work = Callable[[int], Awaitable[object]]


async def by_all(count: int, work: Work) -> Stopwatch:
    """Have all callers do it so often, after a few times that do not count."""
    numbers = iter(range(DISTURBED))

    async def one() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    numbers = iter(range(DISTURBED, DISTURBED + count))
    stopwatch = Stopwatch()
    await asyncio.gather(*(one() for _ in range(CALLERS)))
    return stopwatch


async def measure(database: SqliteDatabase | PostgresDatabase, scratch: Path) -> Sample:
    sealer = Sealer(KeyRing(make_key(Secret(new_key_text(), "vault-key"))))
    clock, chain = SystemClock(), Chain("bench", sealer, at_once=database.dialect == "postgres")
    ledger, approvals = Ledger(database, chain), Transitions(chain)
    door = await opened_door(ApprovalQueue(ledger, clock, "bench"), rules(scratch))
    buckets, vault = Buckets(database, clock), Vault(database, sealer, clock)
    await database.transact(run, "workspace")
    asked = [proposal(number) for number in range(DISTURBED + ANSWERS)]
    await ledger.transact("local", _asked, approvals, asked)
    secrets = {"api-key": Secret("k" * 40, "api-key")}
    answer = ApprovalAnswer(approve=True, reasoning="in the project", confidence=0.9)

    async def take(_number: int) -> None:
        assert (await buckets.take("local", "sign-in:192.0.2.7", PLENTY)).allowed

    async def put(number: int) -> None:
        await vault.put("local", f"run_{number}", secrets)

    async def resolve(number: int) -> None:
        await ledger.transact("local", approvals.resolve, PERSON, asked[number].id, answer, NOW)

    async def decide(number: int) -> None:
        assert (await door.decide(call(number))).passed

    sample: Sample = {}
    for name, count, work in (
        ("take", TAKES, take), ("put", PUTS, put), ("answer", ANSWERS, resolve), ("decision", DECISIONS, decide),
    ):  # fmt: skip
        spent = (await by_all(count, work)).stop()
        sample |= {f"{name}s/s": count / spent.wall, f"CPU µs/{name}": spent.cpu / count * 1e6}
    return sample


async def opened_door(queue: ApprovalQueue, policies: Policies) -> Door:
    if not hasattr(upkeep, "SignsOfLife"):  # 4acc199, the landed code that the targets are multiples of
        return Door(queue, policies, Attendance(queue.ledger.database, queue.clock))  # type: ignore[arg-type]
    await upkeep.SignsOfLife().sign(queue)
    return Door(queue, policies)


def _asked(approvals: Transitions, asked: list[Proposal]) -> Transaction[None]:
    for each in asked:
        yield from approvals.propose(each, NOW)


@asynccontextmanager
async def opened(kind: str, scratch: Path) -> AsyncIterator[SqliteDatabase | PostgresDatabase]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir=scratch) as folder:
        if kind == "sqlite":
            async with SqliteDatabase(Path(folder) / "legation.db") as sqlite:
                await sqlite.migrate()
                yield sqlite
            return
        from tests.postgres import running_postgres

        os.chmod(folder, 0o755)  # noqa: PTH101 - once, and Postgres runs as another user
        with running_postgres(durable=True, parent=Path(folder)) as server:
            async with PostgresDatabase(server.new_database()) as postgres:
                await postgres.migrate()
                yield postgres


async def main(kind: str, scratch: Path) -> None:
    async with opened(kind, scratch) as database:
        emit(await measure(database, scratch))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
