"""The door of one command: the rules decide, and what they leave to somebody is asked of whoever is here.

Nothing of a server is opened. The database is in memory, under keys of its own, and both end with the command; what
stays is the trace, in a file of the session's folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legation.approvals.admit import Evaluated
from legation.approvals.approval import LONGEST_WAIT_MS, Approval, ApprovalAnswer, NoticeKind, NoticeReason
from legation.approvals.door import Door, DoorOptions
from legation.approvals.grants import GrantService
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue, Attendance
from legation.approvals.request import DoorResult
from legation.approvals.sweep import ApprovalSweep
from legation.approvals.trace.chain import Chain
from legation.approvals.trace.export import FiledLedger, TraceFile
from legation.approvals.upkeep import SignsOfLife
from legation.cli.approver import login
from legation.clock import Clock, SteadyClock, SystemClock, new_id
from legation.errors import Conflict, InternalError, LegationError
from legation.host.requests.door_approver import DoorApprover, refusal
from legation.host.requests.handlers import Approver, Prepared, Unasked
from legation.store.database.sqlite import MemoryDatabase
from legation.store.database.transaction import Transaction
from legation.store.identity import users
from legation.store.identity.workspaces import LOCAL, bootstrap
from legation.store.secrets.sealer import Sealer, new_key_text, ring_of
from legation.tasks import TaskSet
from legation.wire.action import Ask, Decision
from legation.wire.api.identity import NewUser
from legation.wire.principal import Principal

TRACE: Final = "trace.jsonl"  # in the session's folder
EXEC: Final = Principal(kind="process", id="exec", workspace=LOCAL, scopes=frozenset(), level=0)

logger = logging.getLogger("legation.cli")


@asynccontextmanager
async def own_door(
    policies: Policies,
    person: Approver,
    *,
    session_id: str,
    trace: Path,
    cancel_turn: Callable[[], None],
    timeout: float,
    watched: bool = False,
    approves: bool = False,
    clock: Clock | None = None,
    grants: bool = False,
) -> AsyncIterator[Approver]:
    """Open the door, which is the host's approver. `timeout` is the person's time, unless a rule gives less. With `grants` the
    person can grant a tool for the session, by a yes to an agent that offers only `always`. `watched`: somebody sees what
    happens, and need not be protected from what an agent does unasked unless a policy says so; `approves`: whoever would
    be asked has said yes beforehand."""
    clock = SteadyClock(clock or SystemClock())
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(MemoryDatabase(clock=clock))
        await database.transact(_people, login(), clock.now_ms())
        file = stack.enter_context(TraceFile(trace))
        sealer = Sealer(ring_of([new_key_text()]))
        chain = Chain(session_id, sealer)
        inbox = ApprovalQueue(FiledLedger(database, chain, LOCAL, file), clock, new_id("prc"))
        here = Here(person, inbox)
        timeout = min(timeout, LONGEST_WAIT_MS / 1000)
        # Nobody but the one who is here could ever answer, so no supervisor is waited for.
        given = GrantService(database, sealer, clock) if grants else None
        habits = DoorOptions(timeout=timeout, supervisor_wait_ms=0, grants=given)
        await SignsOfLife().sign(inbox)  # once: nobody else would ever take this process for gone
        sweep = TaskSet("legation-sweep")
        stack.push_async_callback(sweep.close)
        sweep.start(ApprovalSweep(inbox, Attendance(database, clock), here.notify, 0).run())
        door = await stack.enter_async_context(Door(inbox, policies, habits))
        rules = DoorApprover(
            door, EXEC, timeout=timeout, unasked="warn" if watched else "stop", approves=approves
        )
        yield RulesFirst(rules, here, cancel_turn)


def _people(here: str, now_ms: int) -> Transaction[None]:
    """Give whoever is here a name, so that they can be among the reviewers of a rule."""
    yield from bootstrap(new_id("usr"), now_ms=now_ms)
    yield from users.insert(NewUser(name=here), user=here, now_ms=now_ms)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A call that the rules may leave to the one who is here."""

    ask: Ask
    said: Decision | None = None
    failed: asyncio.Future[LegationError] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    asking: asyncio.Task[None] | None = None

    def told(self, ruling: DoorResult) -> Decision:
        """Decide in the words of whoever said it, if that is what came of it."""
        if self.said is None or self.said.outcome != ruling.outcome:
            return ruling.decision
        why = ruling.why(self.said.reason)
        return Decision(
            ruling.outcome, self.said.by, why, self.said.option_id, ruling.message, grant=ruling.grant
        )

    async def end(self) -> None:
        if self.asking is not None:
            self.asking.cancel()
            await asyncio.gather(self.asking, return_exceptions=True)


class Here:
    """The one who is here: asked when an approval needs a person; the answer is taken to the inbox."""

    def __init__(self, person: Approver, inbox: ApprovalQueue) -> None:
        self._person = person
        self._inbox = inbox
        self._open: dict[str, OpenQuestion] = {}

    def begin(self, ask: Ask) -> OpenQuestion:
        question = self._open[ask.id] = OpenQuestion(ask)
        return question

    async def end(self, question: OpenQuestion) -> None:
        self._open.pop(question.ask.id, None)
        await question.end()

    def notify(self, approval: Approval, moment: NoticeKind, _why: NoticeReason) -> None:
        question = self._open.get(approval.id)
        if moment == "asked" and question is not None:
            question.asking = asyncio.create_task(self._ask(question, approval))

    async def _ask(self, question: OpenQuestion, approval: Approval) -> None:
        try:
            question.said = await self._person.decide(question.ask)
            await self._answer(question.said, approval)
        except Conflict:
            return  # too late: the door has decided meanwhile, and says so
        except LegationError as error:
            question.failed.set_result(error)
        except Exception:  # a task boundary: whoever waits must hear of it
            logger.exception("cannot ask: a defect")
            question.failed.set_result(InternalError("cannot ask anybody: a defect; see the log"))

    async def _answer(self, said: Decision, approval: Approval) -> None:
        if said.outcome in ("approved", "denied"):
            answer = ApprovalAnswer(
                approve=said.outcome == "approved", reasoning=said.reason, message=said.message
            )
            await self._inbox.resolve(who(said.by), approval.id, answer)
        else:
            await self._inbox.cancel(approval.workspace_id, [approval.id], "turn-cancelled")


class RulesFirst:
    """The approver: the door, with somebody in front of it."""

    def __init__(self, rules: DoorApprover, here: Here, cancel_turn: Callable[[], None]) -> None:
        self._rules = rules
        self._here = here
        self._cancel_turn = cancel_turn

    async def prepare(self, ask: Ask) -> Prepared:
        return await self._rules.prepare(ask, self.decide)

    async def decide(self, ask: Ask, judged: Evaluated | None = None) -> Decision:
        question = self._here.begin(ask)
        ruling = asyncio.create_task(self._rules.rule(ask, judged))
        try:
            await asyncio.wait(_either(ruling, question.failed), return_when=asyncio.FIRST_COMPLETED)
            if not ruling.done():
                return refusal(question.failed.result())
            decision = question.told(ruling.result())
        except LegationError as error:
            return refusal(error)
        finally:
            ruling.cancel()
            await asyncio.gather(ruling, return_exceptions=True)
            await self._here.end(question)
        if decision.outcome == "cancelled" and question.said is not None:
            self._cancel_turn()  # last, so that whoever ends the turn finds who cancelled it
        return decision

    async def unasked(self, ask: Ask) -> Unasked:
        return await self._rules.unasked(ask)


def _either(*futures: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    return set(futures)


def who(by: str) -> Principal:
    """`person ada`, `flag --yes`, `demo:autopilot`: the owner of this terminal, or what they said beforehand."""
    kind, _, name = by.replace(" ", ":", 1).partition(":")
    return Principal(
        kind=kind, id=name or kind, workspace=LOCAL, scopes=frozenset({"read", "approve"}), level=2
    )
