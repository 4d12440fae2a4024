"""Many at once, and processes that die between any two steps: one answer, at most one effect."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.approvals.installation import NO, NOW, PERSON, SERVER, YES, Installation, principal
from tests.store.installation import add_workspaces

from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.trace.chain import Chain, Ledger, verify
from legation.approvals.transitions import Transitions, supersede
from legation.errors import AlreadyAnswered, Conflict
from legation.secret import Secret
from legation.store.database.sqlite import SqliteDatabase
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text

LIMIT = 60  # seconds for a crowd: the machine's time
ROOT = Path(__file__).parents[2]


def outcome(result: object) -> str:
    return type(result).__name__


@pytest.mark.parametrize("servers", [1, 5])
async def test_of_fifty_resolvers_at_once_one_wins(installation: Installation, servers: int) -> None:
    """Of one server, whose writers take turns, and of several, which meet in the database."""
    approval = await installation.ask()
    chains = [Chain(f"srv-{number}", installation.sealer) for number in range(1, servers + 1)]
    desks = [(Ledger(installation.database, chain), Transitions(chain)) for chain in chains]

    async def resolve(number: int) -> Approval:
        ledger, approvals = desks[number % servers]
        who = principal("user", f"usr_{number}", 2)
        answer = YES if number % 2 else NO
        return await ledger.transact("local", approvals.resolve, who, approval.id, answer, NOW + 1)

    async with asyncio.timeout(LIMIT):
        results = await asyncio.gather(*[resolve(number) for number in range(50)], return_exceptions=True)
    assert Counter(map(outcome, results)) == {"Approval": 1, "AlreadyAnswered": 49}
    (winner,) = [result for result in results if isinstance(result, Approval)]
    assert await installation.get(approval) == winner
    rows = await installation.sql("select actor from trace_step where step = 'resolved'")
    assert [row["actor"] for row in rows] == [winner.resolver]


async def test_of_many_consumers_at_once_one_acts(installation: Installation) -> None:
    approval = await installation.answer(await installation.ask())
    async with asyncio.timeout(LIMIT):
        results = await asyncio.gather(
            *[installation.consume(approval) for _ in range(20)], return_exceptions=True
        )
    assert Counter(map(outcome, results)) == {"Approval": 1, "Conflict": 19}


async def test_answers_and_ends_that_race_leave_one_state_and_one_trace(installation: Installation) -> None:
    for _ in range(5):
        approval = await installation.ask(waiter="ins_dead")
        racers = [
            installation.answer(approval, NO),
            installation.answer(approval),
            installation.do(installation.approvals.cancel, "local", [approval.id], "caller-gone", NOW + 1),
            supersede(installation.ledger, installation.approvals, ["ins_dead"], NOW + 1),
            installation.consume(approval),
        ]
        async with asyncio.timeout(LIMIT):
            results = await asyncio.gather(*racers, return_exceptions=True)
        assert all(isinstance(result, list | Approval | AlreadyAnswered | Conflict) for result in results)
        steps = await installation.sql(
            f"select step from trace_step where approval_id = '{approval.id}' order by seq"
        )
        ended = [row["step"] for row in steps][2:]
        final = await installation.get(approval)
        assert final.status is not ApprovalState.PENDING
        assert ended.count("resolved") <= 1
        assert ended.count("consumed") == (final.consumed_at is not None)
        assert sum(ended.count(step) for step in ("cancelled", "superseded", "expired")) <= 1
    assert (await installation.verify()).ok


async def test_many_claims_at_once_have_one_holder(installation: Installation) -> None:
    approval = await installation.ask()
    claims = [
        installation.do(
            installation.approvals.claim, principal("token", f"tok_{number}", 1), approval.id, 5000, NOW
        )
        for number in range(20)
    ]
    async with asyncio.timeout(LIMIT):
        results = await asyncio.gather(*claims, return_exceptions=True)
    assert Counter(map(outcome, results)) == {"Approval": 1, "Conflict": 19}


# Kill -9.


def act_until_killed(folder: Path, key: str, waiter: str, effects: int, seconds: float) -> None:
    """The child asks, answers, consumes, acts and traces, over and over, until it is killed somewhere in that:
    so long after it has had so many effects."""
    wanted = effects + len((folder / "effects").read_text().split())
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.approvals.waiter_to_kill", str(folder), key, waiter],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
    )
    assert child.stdout
    assert child.stdout.readline() == b"acting\n"
    give_up = time.monotonic() + LIMIT
    while len((folder / "effects").read_text().split()) < wanted:
        assert time.monotonic() < give_up, "the child does not act"
        time.sleep(0.001)
    time.sleep(seconds)  # the random point: what is waited for is the kill itself
    child.kill()
    child.stdout.read()
    child.stdout.close()
    child.wait()


async def after_the_restart(folder: Path, sealer: Sealer, waiter: str, *, comes_back: bool) -> Counter[str]:
    async with SqliteDatabase(folder / "legation.db") as database:
        installation = Installation(database, sealer)
        effects = Counter((folder / "effects").read_text().split())
        assert set(effects.values()) <= {1}, "an effect happened twice"
        rows = await installation.sql(f"select id from approval where holder = '{waiter}'")
        seen: Counter[str] = Counter()
        for row in rows:
            approval = await installation.get(await _named(installation, row["id"]))
            done = effects[approval.id]
            if approval.consumed_at is None:
                assert not done, "an effect without a consumed approval"
                seen["unused " + approval.status] += 1
                if comes_back and approval.status is ApprovalState.APPROVED:
                    assert (await installation.consume(approval)).consumed_at
            else:
                seen["used" if done else "outcome unknown"] += 1
            if comes_back or approval.consumed_at is not None:
                with pytest.raises(Conflict):  # never a second time
                    await installation.consume(approval)
        if not comes_back:
            ended = await supersede(installation.ledger, installation.approvals, [waiter], NOW + 5)
            assert len(ended) == seen["unused approved"] + seen["unused pending"]
            for approval in ended:
                with pytest.raises(Conflict):
                    await installation.consume(approval)
                with pytest.raises(AlreadyAnswered):
                    await installation.answer(approval, by=PERSON)
        report = await verify(database, sealer, "local", SERVER)
        assert report.faults == ()
        return seen


async def _named(installation: Installation, approval_id: str) -> Approval:
    from legation.approvals.transitions import get

    return await installation.database.read(get, "local", approval_id)


@pytest.mark.heavy
@pytest.mark.parametrize("comes_back", [False, True], ids=["a process", "a runner that comes back"])
async def test_d15_after_kill_9_each_is_superseded_or_used_exactly_once(
    tmp_path: Path, comes_back: bool
) -> None:
    key, chance = new_key_text(), random.Random(5)
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    async with SqliteDatabase(tmp_path / "legation.db") as database:
        await database.migrate()
        await add_workspaces(database)
    (tmp_path / "effects").touch()
    seen: Counter[str] = Counter()
    for number in range(12):
        waiter = f"ins_{number}"
        effects, seconds = chance.randrange(4), chance.uniform(0, 0.03)
        await asyncio.to_thread(act_until_killed, tmp_path, key, waiter, effects, seconds)
        seen += await after_the_restart(tmp_path, sealer, waiter, comes_back=comes_back)
    assert seen["used"], seen
    assert seen.total() > seen["used"], "no kill came between: the test shows nothing"
