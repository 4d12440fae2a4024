"""The ways to the door, each with the same calls under the same rules: what comes of each call, in one form.

On every way no supervisor is waited for, and a person of the same name answers what is asked.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from tests.approvals.doors import Counter, open_door
from tests.approvals.doors import Rig as DoorRig
from tests.approvals.installation import SERVER, open_installation
from tests.server.rig import RigClock, bearer, open_rig
from tests.store.database.databases import Either

from legation.approvals.approval import Approval, ApprovalAnswer
from legation.approvals.policies import Policies
from legation.approvals.policy.facts import Facts
from legation.approvals.request import DoorRequest
from legation.approvals.trace.export import lines, whole_lines
from legation.approvals.trace.step import StepKind
from legation.cli.door import own_door, who
from legation.gateway.tools import action_for
from legation.host.requests.door_approver import DoorApprover
from legation.server.auth import make_authenticate
from legation.server.http.app import AppOptions, make_app
from legation.server.instance import Services
from legation.server.routes import ROUTES
from legation.store.database.sqlite import MemoryDatabase
from legation.wire.acp.updates import ToolKind
from legation.wire.action import Action, Ask, Decision
from legation.wire.api.approvals import Considered
from legation.wire.principal import Principal

LIMIT = 60.0  # seconds: all calls of one example, on a busy machine
AGENT = "claude"
SESSION = "ses_1"
PERSON = "person tester"
ASKER = Principal(kind="process", id="host", workspace="local", scopes=frozenset(), level=0)
TOOLS: dict[str, ToolKind] = {
    "fs.read": "read",
    "fs.write": "edit",
    "shell.run": "execute",
    "mail.send": "other",
}

# What differs because it must: where and when a step was written, and what only one of the ways knows of.
_OWN = ("server", "seq", "at", "prev_hash", "trace_id", "turn_id", "tool_call_id", "content_owner", "digests")
_EFFECT = ("executed", "returned")  # of those who act themselves nobody knows


@dataclass(frozen=True)
class Wish:
    """One call, and what is answered if somebody is asked."""

    tool: str
    params: dict[str, Any]
    answer: ApprovalAnswer


@dataclass(frozen=True)
class Told:
    outcome: str
    by: str
    rule: str
    words: str | None  # for the agent, where it may not act
    steps: tuple[Any, ...]
    considered: tuple[object, ...] | None = None  # policy, rule, words, limit: where the way can ask before


Way = Callable[[Path, str, Sequence[Wish]], Awaitable[list[Told]]]


def facts(folder: Path) -> Facts:
    return Facts(workspace=str(folder), cwd=str(folder))


def action(wish: Wish, folder: Path) -> Action:
    return action_for(AGENT, wish.tool, TOOLS[wish.tool], wish.params, facts(folder))


def ask(wish: Wish, folder: Path, number: int) -> Ask:
    return Ask(
        id=f"apr_{number}",
        session_id=SESSION,
        action=action(wish, folder),
        options=(),
        title="t",
        asked_at=0,
        tool_call_id=f"call_{number}",
        turn="trn_1",
        cwd=str(folder),
    )


def normal(exported: Iterable[bytes]) -> list[tuple[Any, ...]]:
    """The steps of each call, in the order of the calls."""
    calls: dict[str, list[Any]] = {}
    for raw in exported:
        line = json.loads(raw)
        step = line["step"]
        if step["step"] in _EFFECT:
            continue
        said = {name: content["value"] for name, content in line["content"].items()}
        kept = {name: value for name, value in step.items() if name not in _OWN}
        kept["approval_id"] = "approval_id" in step
        calls.setdefault(step["trace_id"], []).append((kept, said))
    return [tuple(steps) for steps in calls.values()]


def told(decisions: Sequence[tuple[Any, ...]], exported: Iterable[bytes]) -> list[Told]:
    calls = normal(exported)
    assert len(calls) == len(decisions), "every call has its trace"
    return [
        Told(outcome, by.replace(" ", ":"), rule, words, steps, *more)
        for (outcome, by, rule, words, *more), steps in zip(decisions, calls, strict=True)
    ]


class Answering:
    """Answers as a person, as soon as a person is asked."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[Approval] = asyncio.Queue()

    def notify(self, approval: Approval, moment: str, _why: str) -> None:
        if moment == "asked":
            self._asked.put_nowait(approval)

    def on_change(self, approval: Approval, _happened: StepKind) -> None:
        """For who has no channel of notices: what needs a person is told as a change as well."""
        if approval.needs == "person" and approval.status == "pending":
            self._asked.put_nowait(approval)

    async def until_done(
        self,
        work: "asyncio.Task[Any]",
        resolve: Callable[[Principal, str, ApprovalAnswer], Awaitable[Any]],
        wish: Wish,
    ) -> Any:
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            await resolve(who(PERSON), asked.result().id, wish.answer)
        asked.cancel()
        return await work


@asynccontextmanager
async def _at_a_door(folder: Path, policy: str) -> AsyncIterator[tuple[DoorRig, Answering]]:
    answering = Answering()
    async with MemoryDatabase() as database:
        installation = await open_installation(cast(Either, database))
        habits: dict[str, Any] = {"supervisor_wait_ms": 0, "notify": answering.notify}
        async with open_door(installation, folder, policy, **habits) as rig:
            yield rig, answering


async def _exported(rig: DoorRig) -> list[bytes]:
    installation = rig.installation
    return [line async for line in lines(installation.database, installation.sealer, "local", SERVER)]


def _considered(found: Considered) -> tuple[object, ...]:
    return found.action, found.policy_rule, found.message or found.reason, found.limit


async def by_permission(folder: Path, policy: str, wishes: Sequence[Wish]) -> list[Told]:
    """A host's session asks."""
    async with _at_a_door(folder, policy) as (rig, answering):
        approver = DoorApprover(rig.door, ASKER)
        decisions = []
        for number, wish in enumerate(wishes):
            work = asyncio.create_task(approver.decide(ask(wish, folder, number)))
            decisions.append(_of_decision(await answering.until_done(work, rig.inbox.resolve, wish)))
        return told(decisions, await _exported(rig))


async def by_run(folder: Path, policy: str, wishes: Sequence[Wish]) -> list[Told]:
    """Legation acts itself; and what would happen is asked before."""
    async with _at_a_door(folder, policy) as (rig, answering):
        decisions, counter = list[tuple[Any, ...]](), Counter()
        for wish in wishes:
            request = DoorRequest(
                principal=ASKER, action=action(wish, folder), facts=facts(folder), session_id=SESSION
            )
            considered = _considered(await rig.door.preview(request))
            done = len(counter.calls)
            work = asyncio.create_task(rig.door.run(request, counter))
            ruling, returned = await answering.until_done(work, rig.inbox.resolve, wish)
            assert (returned is not None, len(counter.calls) - done) == (ruling.passed, ruling.passed)
            words = None if ruling.passed else ruling.message or ruling.reason
            decisions.append((ruling.outcome, ruling.by, ruling.rule, words, considered))
        return told(decisions, await _exported(rig))


class _Person:
    """At the terminal."""

    def __init__(self) -> None:
        self.answer = ApprovalAnswer(approve=False)

    async def decide(self, _ask: Ask) -> Decision:
        outcome = "approved" if self.answer.approve else "denied"
        return Decision(outcome, PERSON, self.answer.reasoning or "", message=self.answer.message)  # type: ignore[arg-type]


async def by_terminal(folder: Path, policy: str, wishes: Sequence[Wish]) -> list[Told]:
    """`legation exec`."""
    path, trace, person = folder / "policy.yaml", folder / "session" / "trace.jsonl", _Person()
    path.write_text(policy)
    door = own_door(
        Policies(path),
        person,
        session_id=SESSION,
        trace=trace,
        cancel_turn=lambda: pytest.fail("nobody cancelled"),
        timeout=600,
        clock=RigClock(),
    )
    decisions = []
    async with door as approver:
        for number, wish in enumerate(wishes):
            person.answer = wish.answer
            decisions.append(_of_decision(await approver.decide(ask(wish, folder, number))))
    return told(decisions, whole_lines(trace))


def _of_decision(decision: Decision) -> tuple[str, str, str, str | None]:
    rule, _, reason = decision.reason.partition(": ")
    words = None if decision.outcome == "approved" else decision.message or reason
    return decision.outcome, decision.by, rule, words


async def by_http(folder: Path, policy: str, wishes: Sequence[Wish]) -> list[Told]:
    """`POST /decide`, then `POST /tool/{name}`, whose tool nobody serves: what counts here is before that."""
    path, listed, unserved = folder / "policy.yaml", folder / "tools.yaml", socket.socket()
    path.write_text(policy)
    unserved.bind(("127.0.0.1", 0))  # and never listens
    address = f"http://127.0.0.1:{unserved.getsockname()[1]}/"
    listed.write_text(
        json.dumps(
            {
                "tools": [
                    {"name": name, "url": address, "kind": kind, "folder": str(folder)}
                    for name, kind in TOOLS.items()
                ]
            }
        )
    )
    settings = {"policy": path, "tools": listed, "supervisor_wait": "0s"}
    with unserved:
        async with open_rig("sqlite", folder / "data", cast(Any, None), **settings) as rig:
            async with _client(rig.services) as client:
                decisions = [await _by_http(rig.services, client, wish) for wish in wishes]
            services = rig.services
            exported = lines(services.database, services.sealer, "local", services.ledger.chain.server)
            return told(decisions, [line async for line in exported])


@asynccontextmanager
async def _client(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    from legation.server.routes import tools

    app = make_app(
        tuple(dict.fromkeys((*ROUTES, tools.routes))),
        services=services,
        authenticate=make_authenticate(services),
        options=AppOptions(clock=services.clock),
    )
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app),
        base_url=services.public_url,
        headers=bearer(services.own_token.reveal()),
    ) as client:
        yield client


async def _by_http(services: Services, client: httpx2.AsyncClient, wish: Wish) -> tuple[Any, ...]:
    body = {"params": wish.params, "agent": AGENT, "session_id": SESSION}
    before = (await client.post("/decide", json={**body, "tool": wish.tool})).json()
    considered = (
        before["action"],
        before["policy_rule"],
        before["message"] or before["reason"],
        before["limit"],
    )
    answering = Answering()
    services.inbox.on_change(answering.on_change)
    work = asyncio.create_task(client.post(f"/tool/{wish.tool}", json=body))
    answer = (await answering.until_done(work, services.inbox.resolve, wish)).json()
    about = answer["data"]
    words = None if about["outcome"] == "approved" else answer["detail"]
    return about["outcome"], about["decided_by"], about["policy_rule"], words, considered
