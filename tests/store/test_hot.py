"""The hot paths on Postgres: many connections at once, nothing taken twice, nothing lost; and what a restart leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.postgres import Postgres, running_postgres
from tests.store.database.test_database import SQL, names, put

from legation.approvals.trace.chain import Chain, Ledger, verify
from legation.approvals.trace.step import StepDraft, StepKind, TracedCall, new_trace_id
from legation.clock import SystemClock
from legation.errors import InternalError, NotFound, StorageFailed, Unavailable
from legation.secret import Secret
from legation.store.counters import Buckets, Limit
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import (
    Overtaken,
    Transaction,
    conditional,
    only,
    parse,
    read_committed,
    rows,
)
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text
from legation.store.secrets.vault import Vault
from legation.testing.clock import FakeClock

pytestmark = pytest.mark.heavy

LIMIT = 120.0  # seconds: of a busy machine
SERVERS = 4
AWAY = (StorageFailed, Unavailable)
HOT = {
    query.name: query
    for query in parse(
        """
-- name: set
update bucket set tokens = :tokens where name = :name and tokens = :former returning tokens;
-- name: workspace
insert into workspace (id, name, created_at) values ('local', 'local', 0);
-- name: traces
select trace_id from trace_step;
-- name: owners
select owner from vault_bundle order by owner;
"""
    )
}


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """One for this file alone, which keeps what it has acknowledged: others would find it restarted."""
    with running_postgres(durable=True) as server:
        yield server


@asynccontextmanager
async def servers(url: Secret, count: int = SERVERS) -> AsyncIterator[list[PostgresDatabase]]:
    """As many as there would be processes, each with its connections."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(PostgresDatabase(url)) for _ in range(count)]


@pytest.fixture
async def at_once(postgres: Postgres) -> AsyncIterator[list[PostgresDatabase]]:
    async with servers(postgres.new_database("migrated")) as found:
        await found[0].transact(_workspace)
        yield found


def sealer() -> Sealer:
    return Sealer(KeyRing(make_key(Secret(new_key_text(), "vault-key"))))


def _workspace() -> Transaction[None]:
    yield HOT["workspace"]()


def _level(name: str) -> Transaction[float]:
    row = only((yield SQL["get"](name=name)))
    assert row is not None
    return float(row["tokens"])


def _add(name: str) -> Transaction[None]:
    """What each adds depends on what was read; between the two anybody may come."""
    row = only((yield SQL["get"](name=name)))
    assert row is not None
    if not (yield HOT["set"](name=name, tokens=row["tokens"] + 1, former=row["tokens"])):
        raise Overtaken("cannot count: others were faster; try again")


@read_committed
def _count(name: str) -> Transaction[None]:
    yield from _add(name)


@conditional
def _count_alone(name: str) -> Transaction[None]:
    yield from _add(name)


async def test_a_conditional_write_that_is_overtaken_is_done_again_and_none_is_lost(
    at_once: list[PostgresDatabase],
) -> None:
    await at_once[0].transact(put, "n", 0.0)

    async def count(database: PostgresDatabase, work: Callable[[str], Transaction[None]]) -> None:
        for _ in range(5):
            while True:
                try:
                    await database.transact(work, "n")
                    break
                except Unavailable:  # too many were in the way: it was not counted, and is tried again
                    pass

    async with asyncio.timeout(LIMIT):
        works = [count(database, work) for database in at_once for work in (_add, _count, _count_alone)]
        await asyncio.gather(*works)
    assert await at_once[0].read(_level, "n") == SERVERS * 3 * 5


async def test_what_says_that_it_writes_once_must_not_write_twice(at_once: list[PostgresDatabase]) -> None:
    @conditional
    def twice() -> Transaction[None]:
        yield from put("a")
        yield from put("b")

    with pytest.raises(InternalError, match="wrote before"):
        await at_once[0].transact(twice)
    assert "b" not in await at_once[0].read(names)


async def test_a_bucket_at_four_servers_gives_exactly_what_it_holds(at_once: list[PostgresDatabase]) -> None:
    limit, clock = Limit(300, 3600), FakeClock()
    buckets = [Buckets(database, clock) for database in at_once]
    async with asyncio.timeout(LIMIT):
        asked = [
            each.take("local", "b", limit, cost) for each in buckets for _ in range(60) for cost in (1, 2)
        ]
        taken = await asyncio.gather(*asked)
    costs = [cost for _ in buckets for _ in range(60) for cost in (1, 2)]
    assert sum(cost for cost, each in zip(costs, taken, strict=True) if each.allowed) == 300
    assert await at_once[0].read(_level, "b") == 0
    assert all(each.retry_after > 0 for each in taken if not each.allowed)


async def test_a_flood_at_one_bucket_is_a_few_statements(at_once: list[PostgresDatabase]) -> None:
    ran = 0

    class Counted(PostgresDatabase):
        async def transact(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal ran
            ran += 1
            return await at_once[0].transact(*args, **kwargs)

    buckets = Buckets(Counted(Secret("postgresql://nowhere")), FakeClock())
    async with asyncio.timeout(LIMIT):
        taken = await asyncio.gather(*(buckets.take("local", "b", Limit(1000, 3600)) for _ in range(500)))
    assert all(each.allowed for each in taken)
    assert ran <= 5
    assert await at_once[0].read(_level, "b") == 500


async def test_what_many_put_into_the_vault_is_all_there_and_is_destroyed_once(
    at_once: list[PostgresDatabase],
) -> None:
    seals = sealer()
    vaults = [Vault(database, seals, SystemClock()) for database in at_once]
    secrets = {"key": Secret("value-of-one", "key")}
    async with asyncio.timeout(LIMIT):
        puts = [each.put("local", f"run_{n}", secrets) for n, each in enumerate(vaults * 25)]
        ids = await asyncio.gather(*puts)
        assert len(set(ids)) == 100
        for number, bundle in enumerate(ids):
            assert (await vaults[0].open("local", f"run_{number}", bundle))["key"].reveal() == "value-of-one"
        with pytest.raises(NotFound, match="no such workspace"):
            await vaults[0].put("elsewhere", "run_1", secrets)
        ends = [each.destroy("local", "run_7", ids[7]) for each in vaults]
        found = await asyncio.gather(*ends, return_exceptions=True)
    assert sorted(type(each).__name__ for each in found) == ["NoneType", *["NotFound"] * (SERVERS - 1)]


async def test_two_that_append_to_one_chain_write_every_step_once(at_once: list[PostgresDatabase]) -> None:
    """One server writes a chain. Should two have its name, each still finds where the other left off."""
    seals = sealer()
    ledgers = [Ledger(database, Chain("srv", seals, at_once=True)) for database in at_once[:2]]
    traces = [new_trace_id() for _ in range(40)]
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*(_append(ledgers[n % 2], trace) for n, trace in enumerate(traces)))
    report = await verify(at_once[0], seals, "local", "srv")
    assert (report.faults, report.steps) == ((), 40)


async def _append(ledger: Ledger, trace: str) -> None:
    call = TracedCall(trace_id=trace, agent="claude", tool="t")
    await ledger.append(
        "local", [StepDraft(step=StepKind.PROPOSED, call=call, contents={"params": {"a": 1}})], 1
    )


async def test_a_restart_under_load_loses_nothing_and_doubles_nothing(durable: Postgres) -> None:
    seals, clock, plenty = sealer(), FakeClock(), Limit(1_000_000, 3600)
    over = asyncio.Event()
    saved: dict[str, set[str]] = {"take": set(), "put": set(), "append": set()}
    tried: dict[str, int] = dict.fromkeys(saved, 0)
    async with servers(durable.new_database("migrated"), 2) as found:
        await found[0].transact(_workspace)
        ledgers = [Ledger(each, Chain(f"srv-{n}", seals, at_once=True)) for n, each in enumerate(found)]
        vaults = [Vault(each, seals, SystemClock()) for each in found]
        buckets = [Buckets(each, clock) for each in found]

        async def write(kind: str, server: int) -> None:
            while not over.is_set():
                tried[kind] += 1
                name = new_trace_id()
                try:
                    if kind == "take":
                        assert (await buckets[server].take("local", "b", plenty)).allowed
                    elif kind == "put":
                        await vaults[server].put("local", f"run_{name[:16]}", {"key": Secret("value", "key")})
                    else:
                        await _append(ledgers[server], name)
                except AWAY:
                    await asyncio.sleep(0.01)
                else:
                    saved[kind].add(name)

        writers = [asyncio.create_task(write(kind, n)) for kind in saved for n in (0, 1) for _ in range(8)]
        async with asyncio.timeout(LIMIT):
            for _ in range(3):
                await _more(saved, 20, writers)
                await asyncio.to_thread(durable.restart)
            await _more(saved, 20, writers)
            over.set()
            await asyncio.gather(*writers)
        level = await found[0].read(_level, "b")
        assert len(saved["take"]) <= plenty.capacity - level <= tried["take"]
        owners = [row["owner"] for row in await found[0].read(rows, HOT["owners"]())]
        assert len(owners) == len(set(owners)) <= tried["put"]
        assert {f"run_{name[:16]}" for name in saved["put"]} <= set(owners)
        for server in ("srv-0", "srv-1"):
            assert (await verify(found[0], seals, "local", server)).faults == ()
        traces = [row["trace_id"] for row in await found[0].read(rows, HOT["traces"]())]
        assert len(traces) == len(set(traces)) <= tried["append"]
        assert saved["append"] <= set(traces)


async def _more(saved: dict[str, set[str]], more: int, writers: list[asyncio.Task[None]]) -> None:
    """Wait until so many more of each kind are saved."""
    wanted = {kind: len(each) + more for kind, each in saved.items()}
    while any(len(saved[kind]) < count for kind, count in wanted.items()):
        for writer in writers:
            assert not writer.done(), writer.exception()
        await asyncio.sleep(0.01)
