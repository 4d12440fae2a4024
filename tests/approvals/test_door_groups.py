"""What the policies settle by themselves shares transactions, and is on record before anybody acts on it (INV-D3)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from tests.approvals.doors import LIMIT, POLICY, Counter, call, open_door, request
from tests.approvals.installation import NOW, Installation
from tests.approvals.test_trace import allowed
from tests.store.database.databases import Either

from legation.approvals.trace.chain import MOST_AT_ONCE, Ledger
from legation.errors import StorageFailed
from legation.store.database.transaction import Transaction

pytestmark = pytest.mark.heavy

T = TypeVar("T")
P = ParamSpec("P")


class Gate:
    """The database of an installation, with a gate before every commit; it counts how many went through."""

    def __init__(self, installation: Installation) -> None:
        self.dialect = installation.database.dialect
        self.read, self.ping = installation.database.read, installation.database.ping
        self.scrub, self.version = installation.database.scrub, installation.database.version
        self.migrate = installation.database.migrate
        self.listen, self.notify = installation.database.listen, installation.database.notify
        self.passed = 0
        self.open = asyncio.Event()
        self.fails = False
        self._database: Either = installation.database
        installation.ledger = Ledger(self, installation.ledger.chain)

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        await self.open.wait()
        self.passed += 1
        result = await self._database.transact(work, *args, **kwargs)
        if self.fails:  # the connection broke after the commit: nobody can know what became of it
            raise StorageFailed("cannot use the database: the connection is lost; try again")
        return result


async def test_those_that_the_policy_settles_at_once_share_a_transaction(
    installation: Installation, tmp_path: Path
) -> None:
    gate = Gate(installation)
    async with open_door(installation, tmp_path) as rig:
        asked = [
            request(action=call("fs.rm" if number % 3 == 0 else "fs.read", path=f"/w/{number}"))
            for number in range(60)
        ]
        deciding = [asyncio.create_task(rig.door.decide(each)) for each in asked]
        await asyncio.sleep(0)
        gate.open.set()
        async with asyncio.timeout(LIMIT):
            rulings = await asyncio.gather(*deciding)
        assert [ruling.passed for ruling in rulings] == [number % 3 != 0 for number in range(60)]
        assert [ruling.trace_id for ruling in rulings] == [each.trace_id for each in asked]
        assert gate.passed <= 3
        for each in asked:
            assert await rig.steps(each.trace_id) == ["proposed", "decided"]
        report = await installation.verify()
        assert (report.faults, report.steps) == ((), 120)


async def test_nothing_passes_before_its_trace_is_on_the_disk(
    installation: Installation, tmp_path: Path
) -> None:
    gate = Gate(installation)
    async with open_door(installation, tmp_path) as rig:
        deciding = [asyncio.create_task(rig.door.decide(request("fs.read"))) for _ in range(5)]
        await rig.settle()
        assert not any(task.done() for task in deciding)
        gate.open.set()
        async with asyncio.timeout(LIMIT):
            assert all(ruling.passed for ruling in await asyncio.gather(*deciding))


async def test_an_effect_of_our_own_is_never_in_a_group(installation: Installation, tmp_path: Path) -> None:
    gate = Gate(installation)
    gate.open.set()
    async with open_door(installation, tmp_path) as rig:
        runs = [rig.door.run(asked := request("fs.read"), counter := Counter()) for _ in range(3)]
        async with asyncio.timeout(LIMIT):
            assert all(ruling.passed for ruling, _ in await asyncio.gather(*runs))
        assert gate.passed == 6  # each begins and ends in a transaction of its own
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "executed", "returned"]
        assert len(counter.calls) == 1


async def test_a_limit_counts_each_of_many_at_once(installation: Installation, tmp_path: Path) -> None:
    limited = POLICY.replace("loop: off", "loop: off\nmax_total: 7")
    async with open_door(installation, tmp_path, limited) as rig, asyncio.timeout(LIMIT):
        asked = [request(action=call("fs.read", path=f"/w/{number}")) for number in range(20)]
        rulings = await asyncio.gather(*[rig.door.decide(each) for each in asked])
        assert sum(ruling.passed for ruling in rulings) == 7
        assert (await installation.verify()).steps == 40


async def test_a_database_that_goes_away_is_told_to_all_and_nothing_is_written_twice(
    installation: Installation, tmp_path: Path
) -> None:
    gate = Gate(installation)
    gate.fails = True
    async with open_door(installation, tmp_path) as rig:
        asked = [request("fs.read") for _ in range(10)]
        deciding = [asyncio.create_task(rig.door.decide(each)) for each in asked]
        await asyncio.sleep(0)
        gate.open.set()
        async with asyncio.timeout(LIMIT):
            found = await asyncio.gather(*deciding, return_exceptions=True)
        assert all(isinstance(error, StorageFailed) for error in found)
        gate.fails = False
        for each in asked:
            assert await rig.steps(each.trace_id) == ["proposed", "decided"]
        assert (await rig.door.decide(request("fs.read"))).passed
        assert (await installation.verify()).ok


async def test_a_long_line_is_written_in_several_transactions(installation: Installation) -> None:
    gate = Gate(installation)
    count = MOST_AT_ONCE * 2 + 10
    appending = [
        asyncio.create_task(installation.ledger.append("local", allowed(), NOW)) for _ in range(count)
    ]
    await asyncio.sleep(0)
    gate.open.set()
    async with asyncio.timeout(LIMIT):
        written = await asyncio.gather(*appending)
    assert [step.seq for steps in written for step in steps] == list(range(1, 3 * count + 1))
    # Whoever comes at the same moment goes along with the first; on Postgres that one finds that a key has to be made.
    assert gate.passed == (3 if installation.database.dialect == "sqlite" else 4)
    assert (await installation.verify()).ok
