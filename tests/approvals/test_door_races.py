"""An answer and an edit of the rules at the same moment: each order of the two, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.doors import LIMIT, NO, POLICY, YES, Counter, Rig, open_door, request
from tests.approvals.installation import Installation

from legation.approvals.admit import approve_edited
from legation.approvals.approval import ApprovalState
from legation.approvals.trace.chain import Ledger
from legation.store.database.transaction import Transaction
from legation.wire.principal import Principal

pytestmark = pytest.mark.heavy

ASKS = "tools: fs.write, action: supervisor"
ALLOWED = POLICY.replace(ASKS, "tools: fs.write, action: allow")
DENIED = POLICY.replace(ASKS, "tools: fs.write, action: deny")
PERSON = Principal(
    kind="user", id="usr_1", workspace="local", scopes=frozenset({"approve"}), level=2, user="usr_1"
)


class HeldLedger(Ledger):
    """The transaction that a test names waits until it is let go, as it would behind others in a busy database."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger.database, ledger.chain)
        self._name = name
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def transact(
        self, workspace: str, work: Callable[..., Transaction[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        if self._name in work.__qualname__:
            self.reached.set()
            await asyncio.wait_for(self.go.wait(), LIMIT)
        return await super().transact(workspace, work, *args, **kwargs)


@pytest.fixture
async def rig(installation: Installation, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_door(installation, tmp_path) as rig:
        yield rig


def held(rig: Rig, name: str) -> HeldLedger:
    rig.inbox.ledger = ledger = HeldLedger(rig.inbox.ledger, name)
    return ledger


async def test_a_denial_stands_although_the_rules_allow_it_a_moment_later(rig: Rig) -> None:
    counter = Counter()
    call = asyncio.create_task(rig.door.run(request(), counter))
    (approval,) = await rig.pending()
    ledger = held(rig, "pass_after_all")
    rig.edit(ALLOWED)
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    assert (await rig.inbox.resolve(PERSON, approval.id, NO)).status is ApprovalState.DENIED
    ledger.go.set()
    ruling, _ = await asyncio.wait_for(call, LIMIT)
    assert (ruling.outcome, ruling.by, counter.calls) == ("denied", "user:usr_1", [])
    assert await rig.steps(ruling.trace_id) == ["proposed", "decided", "resolved"]


async def test_edited_arguments_stand_although_the_rules_allow_the_first_ones_a_moment_later(
    rig: Rig,
) -> None:
    counter = Counter()
    call = asyncio.create_task(rig.door.run(request(editable=True), counter))
    (approval,) = await rig.pending()
    ledger = held(rig, "pass_after_all")
    rig.edit(ALLOWED)
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    await approve_edited(rig.inbox, rig.policies.current, PERSON, approval.id, {"path": "/w/elsewhere"}, YES)
    ledger.go.set()
    ruling, _ = await asyncio.wait_for(call, LIMIT)
    assert (ruling.outcome, ruling.by) == ("approved", "user:usr_1")
    assert [action.params for action, _ in counter.calls] == [{"path": "/w/elsewhere"}]


async def test_a_call_is_consumed_under_the_rules_that_hold_then(rig: Rig) -> None:
    counter = Counter()
    call = asyncio.create_task(rig.door.run(request(), counter))
    (approval,) = await rig.pending()
    ledger = held(rig, "DoorTransactions.leave")
    await rig.inbox.resolve(PERSON, approval.id, YES)
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    rig.edit(DENIED)
    ledger.go.set()
    ruling, _ = await asyncio.wait_for(call, LIMIT)
    assert (ruling.outcome, counter.calls) == ("cancelled", [])
    assert ruling.reason == "the policy changed after it was approved: ask again"
    assert (await rig.get(approval.id)).status is ApprovalState.CANCELLED
