"""A door on a real database, with policies in a file and a clock moved by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from tests.approvals.installation import Installation
from tests.server.rig import RigClock
from tests.store.database.databases import Either

import legation.approvals.door
import legation.approvals.wait
from legation.approvals.approval import Approval, ApprovalAnswer
from legation.approvals.door import Door, DoorOptions
from legation.approvals.grants import GrantService
from legation.approvals.policies import Policies
from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.queue import ApprovalQueue, Attendance
from legation.approvals.request import DoorRequest, EffectToken, ToolReturn
from legation.approvals.sweep import ApprovalSweep
from legation.approvals.trace.step import StepKind
from legation.tasks import TaskSet
from legation.wire.action import Action
from legation.wire.principal import Principal

T = TypeVar("T")

TURNS = 50  # of the loop, more than anybody takes between two pieces of work
LIMIT = 60.0  # seconds: the door's time to come to what a test waits for

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: reads, tools: fs.read, action: allow}
  - {id: writes, tools: fs.write, action: supervisor}
  - {id: mails, tools: mail.send, action: human_approval}
  - {id: rm, tools: fs.rm, action: deny, message: Leave it.}
"""

ASKER = Principal(kind="token", id="tok_agent", workspace="local", scopes=frozenset({"operate"}), level=0)
FACTS = Facts(workspace="/w", cwd="/w", home="/home/you", resolve=as_named)


def call(tool: str = "fs.write", agent: str = "claude", **params: Any) -> Action:
    return Action(agent=agent, tool=tool, params=params or {"path": "/w/a"})


def request(tool: str = "fs.write", **given: Any) -> DoorRequest:
    action = given.pop("action", None) or call(tool)
    return DoorRequest(principal=ASKER, action=action, facts=FACTS, **given)


@dataclass
class Counter:
    """An executor that counts."""

    calls: list[tuple[Action, EffectToken]] = field(default_factory=list)
    answer: Callable[[], Awaitable[ToolReturn]] | None = None

    async def __call__(self, action: Action, token: EffectToken) -> ToolReturn:
        self.calls.append((action, token))
        return await self.answer() if self.answer else ToolReturn(status_code=200, result={"done": True})


@dataclass
class Rig:
    installation: Installation
    clock: RigClock
    inbox: ApprovalQueue
    door: Door
    policies: Policies
    attendance: Attendance
    path: Path
    told: list[tuple[str, str, str]]
    changes: list[tuple[str, str]]
    at_work: Callable[[], int]  # how many are at the database or the disk now

    async def pending(self, count: int = 1) -> list[Approval]:
        async def look() -> list[Approval]:
            ids = await self.installation.listed(self.clock.now_ms(), status="pending")
            return [await self.inbox.refresh(await self.get(id_)) for id_ in ids]

        return await self.until(look, lambda found: len(found) >= count)

    async def get(self, approval_id: str) -> Approval:
        from legation.approvals.transitions import get

        return await self.installation.database.read(get, "local", approval_id)

    async def until(self, look: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
        async with asyncio.timeout(LIMIT):
            while not good(found := await look()):
                await asyncio.sleep(0.005)
        return found

    async def steps(self, trace_id: str) -> list[str]:
        rows = await self.installation.sql(
            f"select step, reason from trace_step where trace_id = '{trace_id}' order by server, seq"
        )
        return [f"{row['step']}/{row['reason']}" if row["reason"] else row["step"] for row in rows]

    def edit(self, text: str) -> None:
        self.path.write_text(text)
        self.policies.poll()
        assert self.policies.poll(), "the edit is not in force"

    async def pass_time(self, seconds: float) -> None:
        """In small steps, so that whoever waits does what is due in its order."""
        left = seconds
        while left > 0:
            step = min(left, 5.0)
            await self.settle()
            self.clock.advance(step)
            left -= step
        await self.settle()

    async def settle(self) -> None:
        """Until everything sleeps that will: nobody has been at the database or the disk for some turns of the loop."""
        quiet = 0
        async with asyncio.timeout(LIMIT):
            while quiet < TURNS:
                await self.inbox.settle()
                await asyncio.sleep(0)
                quiet = 0 if self.at_work() else quiet + 1
                if not quiet:
                    await asyncio.sleep(0.001)


@contextmanager
def count_work(database: Either) -> Iterator[Callable[[], int]]:
    """Meanwhile, how many transactions, readings and looks of a door at its policies and the disk are under way."""
    under_way = 0

    def counted(run: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def counting(*args: Any, **kwargs: Any) -> T:
            nonlocal under_way
            under_way += 1
            try:
                return await run(*args, **kwargs)
            finally:
                under_way -= 1

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (database, "transact"),
            (database, "read"),
            (legation.approvals.door, "evaluate"),
            (legation.approvals.wait, "evaluate"),
            (legation.approvals.door, "off_loop"),
        ):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield lambda: under_way


@asynccontextmanager
async def open_door(
    installation: Installation, folder: Path, policy: str = POLICY, holder: str = "prc_1", **habits: Any
) -> AsyncIterator[Rig]:
    path = folder / "policy.yaml"
    path.write_text(policy)
    clock, policies = RigClock(), Policies(path)
    inbox = ApprovalQueue(installation.ledger, clock, holder)
    await installation.sign(holder)
    attendance = Attendance(installation.database, clock)
    told: list[tuple[str, str, str]] = []

    def tell(approval: Approval, moment: str, why: str) -> None:
        told.append((approval.id, moment, why))

    notify = habits.pop("notify", tell)

    changes: list[tuple[str, str]] = []
    inbox.on_change(lambda approval, step: changes.append((approval.id, str(StepKind(step)))))
    chosen = replace(
        DoorOptions(
            grants=GrantService(installation.database, installation.ledger.chain.sealer, clock),
        ),
        **habits,
    )
    with count_work(installation.database) as at_work:
        tasks = TaskSet("sweep")
        tasks.start(ApprovalSweep(inbox, attendance, notify, chosen.supervisor_wait_ms).run())
        try:
            async with Door(inbox, policies, chosen) as door:
                yield Rig(
                    installation, clock, inbox, door, policies, attendance, path, told, changes, at_work
                )
        finally:
            await tasks.close()


YES = ApprovalAnswer(approve=True, reasoning="fine", confidence=0.9)
NO = ApprovalAnswer(approve=False, reasoning="not today")
