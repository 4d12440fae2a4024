"""A small server with the routes of the door, made of the real `Routes`, `Hub` and streams, and no door behind them.

What is asked and answered stands in memory, so that a test can say exactly what is pending, and what somebody else
does while a client looks on. The real door is tested where it is; here the client is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from legation.clock import SystemClock
from legation.errors import AlreadyAnswered, Forbidden, NotFound, Unauthenticated
from legation.server.address import listen
from legation.server.http.app import AppOptions, make_app
from legation.server.http.routes import Call, Routes, needs
from legation.server.http.server import UvicornServer
from legation.server.routes import streams
from legation.server.streaming.hub import Hub
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.api.approvals import (
    ApprovalChanged,
    ApprovalDetail,
    ApprovalStatus,
    ApprovalView,
    Approve,
    ChainReport,
    ClaimBody,
    Considered,
    DecideBody,
    Escalation,
    Explained,
    GrantView,
    GroupAnswered,
    Happened,
    NewGrant,
    PolicyInfo,
    RecentTrace,
    Replay,
    ReplayBody,
    Resolution,
    RuleHits,
    ToolCallBody,
    ToolReturned,
    TraceDetail,
    TraceEntry,
    rfc3339,
)
from legation.wire.event_types import draft
from legation.wire.principal import SCOPES, Principal

T = TypeVar("T")
TOKEN = "canary-7f3a9c-token"
LIMIT = 60.0  # seconds: this process's own time to serve and to end
AT = 1_800_000_000_000
Limit = Annotated[int, Meta(ge=1, le=500)]


def view(id_: str = "apr_1", **changes: Any) -> ApprovalView:
    values: dict[str, Any] = {
        "id": id_,
        "agent_id": "claude-1",
        "tool": "Bash",
        "params": {"command": "make deploy"},
        "policy_rule": "careful:ask",
        "status": "pending",
        "created_at": rfc3339(AT),
        "remaining": "4m30s",
        "injection_risk": False,
        "needs": "person",
        "expires_at": rfc3339(AT + 270_000),
        "group": f"grp_of_{id_}",
        "editable": False,
        "session_id": "ses_1",
        "claimed_by": None,
        "resolved_by": None,
        "resolved_at": None,
        "replaced_by": None,
    }
    return ApprovalView(**values | changes)


def grant(**changes: Any) -> GrantView:
    values: dict[str, Any] = {
        "id": "grt_1",
        "agent": "claude-*",
        "tools": "Bash",
        "expires_at": rfc3339(AT),
        "remaining": "1h0m0s",
        "granted_by": "user:usr_1",
        "kinds": None,
        "reason": None,
        "created_at": rfc3339(AT),
        "active": True,
        "revoked_at": None,
        "revoked_by": None,
    }
    return GrantView(**values | changes)


def entry(trace_id: str = "t1", **changes: Any) -> TraceEntry:
    nulls: dict[str, Any] = dict.fromkeys(name for name in TraceEntry.__struct_fields__)
    known = {"trace_id": trace_id, "agent_id": "claude-1", "tool": "Bash", "timestamp": rfc3339(AT)}
    return TraceEntry(**nulls | known | changes)


NOTHING_DIFFERS = Replay(version="v2", calls=3, unknown=1, differing=0, limited=0, counts={}, changed=[])


@dataclass
class Door:
    """What the server holds. Changed from the test's thread only through `CannedServer`."""

    approvals: dict[str, ApprovalView] = field(default_factory=dict)
    grants: dict[str, GrantView] = field(default_factory=dict)
    traces: list[TraceDetail] = field(default_factory=list)
    chains: list[ChainReport] = field(default_factory=list)
    export: bytes = b""
    bodies: list[Any] = field(default_factory=list)  # what was sent, as it was read
    page: int = 100
    replayed: Replay = NOTHING_DIFFERS
    stream: Stream | None = None

    def found(self, id_: str) -> ApprovalView:
        if id_ not in self.approvals:
            raise NotFound("cannot find this approval; list them with GET /approvals")
        return self.approvals[id_]

    def change(self, happened: Happened, id_: str, **changes: Any) -> ApprovalView:
        now = self.approvals[id_] = msgspec.structs.replace(self.approvals[id_], **changes)
        self.tell(happened, now)
        return now

    def answer(self, call: Call, id_: str, status: ApprovalStatus) -> ApprovalView:
        was = self.found(id_)
        if was.status != "pending":
            by = f"{was.status} by {was.resolved_by}"
            raise AlreadyAnswered(f"cannot answer approval {id_}: it is {by}; the first answer stands")
        if was.agent_id == "forbidden":
            raise Forbidden("cannot answer this approval: it needs a person")
        return self.change(
            "resolved", id_, status=status, resolved_by=call.principal.id, resolved_at=rfc3339(AT)
        )

    def tell(self, happened: Happened, now: ApprovalView) -> None:
        assert self.stream is not None
        changed = ApprovalChanged(
            id=now.id,
            happened=happened,
            status=now.status,
            needs=now.needs,
            agent=now.agent_id,
            tool=now.tool,
            kind="execute",
            rule=now.policy_rule,
            group=now.group,
            trace_id="t1",
            created_at=AT,
            expires_at=SystemClock().now_ms() + 270_000,
            injection_risk=now.injection_risk,
            claimed_by=now.claimed_by,
            resolved_by=now.resolved_by,
        )
        self.stream.append([draft(changed)])


routes = Routes(tag="door")


def door(call: Call) -> Door:
    return cast(Door, cast(Any, call.services).door)


async def given(call: Call, kind: type[T]) -> T:
    return msgspec.json.decode(await call.request.body(), type=kind)


def said(value: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def paged(call: Call, items: list[Any], after: str, path: str) -> Response:
    start, size = int(after or 0), door(call).page
    link = {} if start + size >= len(items) else {"Link": f'<{path}?x=1&after={start + size}>; rel="next"'}
    return said(items[start : start + size], link)


@routes.get("/approvals", access=needs("read"), listed=False)
async def list_approvals(
    call: Call, status: str = "", tool: str = "", agent: str = "", limit: Limit = 100, after: str = ""
) -> Response:
    """Approvals."""
    door(call).bodies.append((status, tool, agent, limit))
    found = [each for each in door(call).approvals.values() if status in ("", each.status)]
    return paged(call, found, after, "/approvals")


@routes.get("/approvals/{known}", access=needs("read"), errors=(NotFound,), listed=False)
async def read_approval(call: Call, known: str) -> Response:
    """One."""
    found = door(call).found(known)
    recent = [RecentTrace(trace_id="t0", tool="Read", policy="allow", timestamp=rfc3339(AT))]
    return said(ApprovalDetail(**msgspec.structs.asdict(found), recent_traces=recent, active_grants=[]))


@routes.post(
    "/approvals/{known}/approve", access=needs("approve"), errors=(NotFound, AlreadyAnswered), listed=False
)
async def approve(call: Call, known: str) -> Response:
    """Approve."""
    body = await given(call, Approve)
    door(call).bodies.append(body)
    return said(door(call).answer(call, known, "approved"))


@routes.post(
    "/approvals/{known}/deny", access=needs("approve"), errors=(NotFound, AlreadyAnswered), listed=False
)
async def deny(call: Call, known: str, body: Resolution) -> Response:
    """Deny."""
    door(call).bodies.append(body)
    return said(door(call).answer(call, known, "denied"))


@routes.post("/approvals/{known}/escalate", access=needs("approve"), errors=(NotFound,), listed=False)
async def escalate(call: Call, known: str, body: Escalation) -> Response:
    """Escalate."""
    door(call).bodies.append(body)
    door(call).found(known)
    return said(door(call).change("escalated", known, needs="person"))


@routes.post("/approvals/{known}/claim", access=needs("approve"), errors=(NotFound,), listed=False)
async def claim(call: Call, known: str, body: ClaimBody) -> Response:
    """Claim."""
    door(call).bodies.append(body)
    door(call).found(known)
    return said(door(call).change("claimed", known, claimed_by=call.principal.id))


def answer_group(call: Call, group: str, status: ApprovalStatus) -> GroupAnswered:
    found = [
        each.id for each in door(call).approvals.values() if (each.group, each.status) == (group, "pending")
    ]
    for each in found:
        door(call).answer(call, each, status)
    return GroupAnswered(answered=found, refused=[])


@routes.post("/approvals/groups/{group}/approve", access=needs("approve"), listed=False)
async def approve_group(call: Call, group: str, body: Resolution) -> Response:
    """All of them."""
    door(call).bodies.append(body)
    return said(answer_group(call, group, "approved"))


@routes.post("/approvals/groups/{group}/deny", access=needs("approve"), listed=False)
async def deny_group(call: Call, group: str, body: Resolution) -> Response:
    """None of them."""
    door(call).bodies.append(body)
    return said(answer_group(call, group, "denied"))


@routes.get("/grants", access=needs("read"), listed=False)
async def list_grants(call: Call, limit: Limit = 100, after: str = "") -> Response:
    """Grants."""
    return paged(call, list(door(call).grants.values()), after, "/grants")


@routes.post("/grants", access=needs("approve"), status=201, listed=False)
async def give(call: Call, body: NewGrant) -> Response:
    """Give."""
    door(call).bodies.append(body)
    given = grant(agent=body.agent, tools=body.tools, kinds=body.kinds, reason=body.reason)
    door(call).grants[given.id] = given
    return said(given, status=201)


def the_grant(call: Call, id_: str) -> GrantView:
    if id_ not in door(call).grants:
        raise NotFound("cannot find this grant; list them with GET /grants")
    return door(call).grants[id_]


@routes.get("/grants/{known}", access=needs("read"), errors=(NotFound,), listed=False)
async def read_grant(call: Call, known: str) -> Response:
    """One."""
    return said(the_grant(call, known))


@routes.delete("/grants/{known}", access=needs("approve"), errors=(NotFound,), listed=False)
async def revoke(call: Call, known: str) -> None:
    """Revoke."""
    the_grant(call, known)
    del door(call).grants[known]


@routes.get("/traces", access=needs("read"), listed=False)
async def list_traces(
    call: Call,
    agent: str = "",
    tool: str = "",
    session: str = "",
    since: str = "",
    limit: Limit = 100,
    after: str = "",
) -> Response:
    """Traces."""
    door(call).bodies.append((agent, tool, session, since, limit))
    return paged(call, list(door(call).traces), after, "/traces")


@routes.get("/traces/{known}", access=needs("read"), errors=(NotFound,), listed=False)
async def read_trace(call: Call, known: str) -> Response:
    """One."""
    for each in door(call).traces:
        if each.trace_id == known:
            return said(each)
    raise NotFound("cannot find this trace; list them with GET /traces")


@routes.get("/v1/trace/verify", access=needs("read"), listed=False)
async def verify(call: Call, head: list[str] = []) -> Response:  # noqa: B006 - never changed
    """Verify."""
    door(call).bodies.append(head)
    return said(door(call).chains)


@routes.get("/v1/trace/export", access=needs("read"), media="application/x-ndjson", listed=False)
async def export(call: Call, server: str = "", after: Annotated[int, Meta(ge=0)] = 0) -> Response:
    """Export."""
    door(call).bodies.append((server, after))
    lines = door(call).export.splitlines(keepends=True)[after:]

    async def chunks() -> AsyncIterator[bytes]:
        text = b"".join(lines)
        for start in range(0, len(text), 1000):
            yield text[start : start + 1000]

    return StreamingResponse(chunks(), media_type="application/x-ndjson")


@routes.post("/tool/{name}", access=needs("read"), listed=False)
async def call_tool(call: Call, name: str) -> Response:
    """Call."""
    body = await given(call, ToolCallBody)
    door(call).bodies.append((name, body))
    if name == "denied":
        raise Forbidden("cannot run denied: ask for something smaller")
    done = ToolReturned(
        result=body.params, trace_id="t1", approval_id=None, policy_rule="p:r", decided_by="policy"
    )
    return said(done)


CONSIDERED: dict[str, Any] = {
    "action": "deny",
    "policy_rule": "p:r",
    "policy_version": "v1",
    "reason": "so",
    "message": None,
    "injection_risk": False,
    "grant": None,
    "limit": None,
}


@routes.post("/decide", access=needs("read"), listed=False)
async def decide(call: Call) -> Response:
    """Decide."""
    body = await given(call, DecideBody)
    door(call).bodies.append(body)
    return said(Considered(**CONSIDERED))


@routes.get("/v1/policy", access=needs("read"), listed=False)
async def policy(call: Call) -> Response:
    """Policy."""
    return said(PolicyInfo(version="v1", source="policy.yaml", policies=[], problem=None, folders=[]))


@routes.post("/v1/policy/explain", access=needs("read"), listed=False)
async def explain(call: Call) -> Response:
    """Explain."""
    body = await given(call, DecideBody)
    door(call).bodies.append(body)
    return said(Explained(**CONSIDERED, steps=[]))


@routes.post("/v1/policy/replay", access=needs("read"), listed=False)
async def replay(call: Call, body: ReplayBody) -> Response:
    """Replay."""
    door(call).bodies.append(body)
    return said(door(call).replayed)


@routes.get("/v1/policy/hits", access=needs("read"), listed=False)
async def hits(call: Call, since: str = "") -> Response:
    """Hits."""
    door(call).bodies.append(since)
    return said([RuleHits(policy_rule="p:r", action="allow", hits=7, last_at=rfc3339(AT))])


async def authenticate(request: Request) -> Principal:
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        raise Unauthenticated("cannot tell who asks; send a token")
    return Principal(kind="token", id="user:usr_me", workspace="local", scopes=frozenset(SCOPES), level=2)


@dataclass
class CannedServer:
    """Its loop runs in a thread of its own."""

    door: Door
    url: str
    loop: asyncio.AbstractEventLoop

    def propose(self, made: ApprovalView) -> None:
        """As if an agent asked."""
        self.run(lambda: self._propose(made))

    def resolve(self, id_: str, status: ApprovalStatus, by: str = "user:usr_other") -> None:
        """As if somebody else answered."""
        self.run(lambda: self.door.change("resolved", id_, status=status, resolved_by=by))

    def run(self, work: Any) -> Any:
        done: Future[Any] = Future()

        def go() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - for the test's thread
                done.set_exception(error)

        self.loop.call_soon_threadsafe(go)
        return done.result(LIMIT)

    def _propose(self, made: ApprovalView) -> None:
        self.door.approvals[made.id] = made
        self.door.tell("decided", made)


@contextmanager
def canned(*pending: ApprovalView, **more: Any) -> Iterator[CannedServer]:
    door = Door({each.id: each for each in pending}, **more)
    started: Future[CannedServer] = Future()
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_main(door, started, over)))
    thread.start()
    try:
        yield started.result(LIMIT)
    finally:
        over.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


async def _main(door: Door, started: Future[CannedServer], over: threading.Event) -> None:
    async with EventLog(MemoryBackend()) as log, _serving(door, log) as url:
        started.set_result(CannedServer(door, url, asyncio.get_running_loop()))
        await asyncio.to_thread(over.wait)


@asynccontextmanager
async def _serving(door: Door, log: EventLog) -> AsyncIterator[str]:
    door.stream = await log.stream("approvals")
    hub = Hub(log, SystemClock())
    services = cast(Any, SimpleNamespace(log=log, hub=hub, door=door))
    app = make_app(
        [routes, streams.routes], services=services, authenticate=authenticate, options=AppOptions()
    )
    sock, ready = listen("127.0.0.1", 0), asyncio.Event()
    server = UvicornServer(app, ready.set, hub.close)
    task = asyncio.create_task(server.serve_on([sock]))
    async with asyncio.timeout(LIMIT):
        await ready.wait()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.stop()
        await task
