"""An installation with approvals on a database, and the people around it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_sealer

from legation.approvals import listing
from legation.approvals.approval import PROGRAM, Approval, ApprovalAnswer, Proposal, Waiter, new_approval_id
from legation.approvals.listing import ApprovalFilter
from legation.approvals.trace import entries
from legation.approvals.trace.chain import Chain, Ledger, Report, verify
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.step import new_trace_id
from legation.approvals.transitions import Transitions, get
from legation.approvals.upkeep import DEAD_MS, GRACE, SignsOfLife
from legation.store.database.transaction import Database, Queries, Rows, Transaction, parse, rows
from legation.store.identity import members, tokens, users
from legation.store.secrets.sealer import Sealer
from legation.wire.action import Action
from legation.wire.api.approvals import TraceEntry
from legation.wire.api.identity import NewUser
from legation.wire.principal import Level, Principal

NOW = 1_700_000_000_000
MINUTE = 60_000
SERVER = "srv-1"
HOLDER = "ins_1"
WAITER = Waiter("session:ses_1", HOLDER)
VERSION = "v1"

T = TypeVar("T")
P = ParamSpec("P")


def principal(kind: str, id: str, level: Level, workspace: str = "local") -> Principal:  # noqa: A002
    scopes = frozenset({"read", "approve"}) if level else frozenset({"read"})
    return Principal(kind=kind, id=id, workspace=workspace, scopes=scopes, level=level)  # type: ignore[arg-type]


PERSON = principal("user", "usr_1", 2)
SUPERVISOR = principal("agent", "supervisor", 1)
SECOND = principal("token", "tok_2", 1)
AGENT = principal("token", "tok_agent", 0)

YES = ApprovalAnswer(approve=True)
NO = ApprovalAnswer(approve=False)


def write_file(
    path: str = "/p/main.go", tool: str = "filesystem.write_file", agent: str = "claude"
) -> Action:
    return Action(agent=agent, tool=tool, kind="edit", params={"path": path, "content": "package main"})


def proposal(action: Action | None = None, **given: Any) -> Proposal:
    values: dict[str, Any] = {
        "id": new_approval_id(NOW),
        "trace_id": new_trace_id(),
        "workspace": "local",
        "waiter": WAITER,
        "requester_kind": "token",
        "requester": "tok_agent",
        "action": action or write_file(),
        "verdict": "supervisor",
        "policy_version": VERSION,
        "policy_rule": "claude:rule-2",
        "expires_at": NOW + 5 * MINUTE,
    }
    if isinstance(holder := given.get("waiter"), str):  # in which process a session waits
        given["waiter"] = Waiter(WAITER.id, holder)
    return Proposal(**(values | given))


@dataclass
class Installation:
    database: Either
    sealer: Sealer
    ledger: Ledger = field(init=False)
    approvals: Transitions = field(init=False)

    def __post_init__(self) -> None:
        chain = Chain(SERVER, self.sealer, at_once=self.database.dialect == "postgres")
        self.ledger, self.approvals = Ledger(self.database, chain), Transitions(chain)

    async def do(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.ledger.transact("local", work, *args, **kwargs)

    async def ask(self, action: Action | None = None, now: int = NOW, **given: Any) -> Approval:
        asked = proposal(action, **given)
        if asked.waiter.holder != HOLDER:
            is_process = not asked.waiter.holder.startswith(PROGRAM)
            await self.sign(asked.waiter.holder, SERVER if is_process else None)
        return await self.do(self.approvals.propose, asked, now)

    async def answer(
        self, approval: Approval, answer: ApprovalAnswer = YES, by: Principal = PERSON, now: int = NOW + 1
    ) -> Approval:
        return await self.do(self.approvals.resolve, by, approval.id, answer, now)

    async def consume(
        self, approval: Approval, now: int = NOW + 2, waiter: Waiter | None = None, **given: str
    ) -> Approval:
        return await self.do(
            self.approvals.consume,
            approval.workspace_id,
            approval.id,
            approval.awaited_by if waiter is None else waiter,
            given.get("digest", approval.action_digest),
            given.get("policy_version", approval.policy_version),
            now,
        )

    async def get(self, approval: Approval) -> Approval:
        return await self.database.read(get, approval.workspace_id, approval.id)

    async def listed(self, now: int = NOW + 1, **wanted: str) -> list[str]:
        page = await self.database.read(listing.page, "local", ApprovalFilter(**wanted), now, 500)
        return [approval.id for approval in page.items]

    async def entries(self, **wanted: Any) -> list[TraceEntry]:
        return (await entries.entries(self.database, self.sealer, "local", TraceFilter(**wanted))).items

    async def verify(self) -> Report:
        return await verify(self.database, self.sealer, "local", SERVER)

    async def open_holders(self) -> list[str]:
        """Who holds anything open."""
        is_open = "status in ('pending', 'approved') and consumed_at is null"
        found = await self.sql(f"select distinct holder from approval where {is_open} order by holder")
        return [row["holder"] for row in found]

    async def sign(self, holder: str, server: str | None = SERVER) -> None:
        """Say that the holder is there, at this moment of the pulse."""
        grace = DEAD_MS if server is None else GRACE * SignsOfLife().sign_ms
        await self.database.transact(rows, Queries("door").sign(id=holder, server=server, grace=grace))

    async def sql(self, text: str) -> Rows:
        """As somebody who can write the database would."""
        return await self.database.transact(raw, text)


def raw(text: str) -> Transaction[Rows]:
    (query,) = parse(f"-- name: raw\n{text}")
    return (yield query())


async def open_installation(database: Either) -> Installation:
    await add_workspaces(database)
    await add_asker(database, AGENT.id)
    opened = Installation(database, new_sealer())
    await opened.sign(HOLDER)
    return opened


async def add_asker(database: Database, token: str, workspace: str = "local") -> None:
    """A token that may ask for any agent, made by an operator: what it asked for is consumed only while it stands."""

    def add() -> Transaction[None]:
        if not (yield from raw(f"select id from api_token where id = '{token}'")):
            user = f"usr_of_{token}"
            yield from users.insert(NewUser(name=user), user=user, now_ms=0)
            yield from members.insert(workspace, user, "operator", 0)
            yield tokens.SQL.add_token(
                id=token, workspace=workspace, user=user, label=token, kind="user", scopes="call operate",
                hash=token.encode(), hint="none", created_at=0, expires_at=None,
            )  # fmt: skip

    await database.transact(add)
