"""Every route of the real application, with every kind of credential: the expected answer, and nothing else."""

import re
from collections.abc import AsyncIterator
from itertools import count, cycle, islice
from pathlib import Path

import msgspec
import pytest
from tests.approvals.installation import proposal
from tests.server.credentials import Presented, Standing, all_presented
from tests.server.rig import BOTH, Answer, Rig, bearer, open_rig

from legation.approvals.approval import LONGEST_WAIT_MS, Approval, new_approval_id
from legation.approvals.grants import new_grant_id
from legation.clock import new_id
from legation.host.options import SessionMeta
from legation.runs.templates import add_template
from legation.server.http.routes import Operation
from legation.server.sessions.record import Details
from legation.wire.api.approvals import NewGrant
from legation.wire.api.identity import TokenKind
from legation.wire.api.runs import NewTemplate, RunSpec, RunSubmission
from legation.wire.universal.shapes import Metadata

pytestmark = pytest.mark.heavy

# Thousands of requests, whose answers are decided above the database: on Postgres only in the long run.
ON_SQLITE_DAILY = pytest.mark.parametrize(
    "rig",
    ["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    indirect=True,
)
Route = tuple[str, str]

# What was decided about each route. A new route fails the test until it stands here.
DECIDED: dict[Route, str] = {
    ("GET", "/"): "open",
    ("GET", "/ui"): "open",
    ("GET", "/ui/"): "open",
    ("GET", "/ui/{page}"): "open",
    ("GET", "/ui/{page}/{id}"): "open",
    ("GET", "/ui/{page}/{id}/{kind}/{name}"): "open",
    ("GET", "/ui/assets/{name}"): "open",
    ("GET", "/ui/assets/{folder}/{name}"): "open",
    ("GET", "/openapi.json"): "open",
    ("GET", "/docs"): "open",
    ("GET", "/docs/{name}"): "open",
    ("GET", "/metrics"): "read",
    ("GET", "/v1/health"): "open",
    ("GET", "/v1/ready"): "open",
    ("GET", "/v1/server"): "read",
    ("POST", "/v1/stop"): "instance",
    ("GET", "/v1/me"): "read",
    ("GET", "/sign-in"): "open",
    ("GET", "/sign-in/{name}"): "open",
    ("POST", "/v1/sign-in"): "open",
    ("GET", "/v1/sign-in-ways"): "open",
    ("POST", "/v1/sign-in-mails"): "open",
    ("POST", "/v1/sign-out"): "person",
    ("POST", "/v1/sign-in-links"): "signed in",
    ("GET", "/v1/users"): "instance",
    ("POST", "/v1/users"): "instance",
    ("GET", "/v1/users/{user}"): "instance",
    ("PATCH", "/v1/users/{user}"): "instance",
    ("GET", "/v1/workspaces"): "read",
    ("POST", "/v1/workspaces"): "instance",
    ("GET", "/v1/workspaces/{workspace}"): "read",
    ("GET", "/v1/workspaces/{workspace}/members"): "read",
    ("PUT", "/v1/workspaces/{workspace}/members/{user}"): "manage",
    ("DELETE", "/v1/workspaces/{workspace}/members/{user}"): "manage",
    ("GET", "/v1/tokens"): "manage",
    ("POST", "/v1/tokens"): "manage",
    ("DELETE", "/v1/tokens/{token}"): "manage",
    ("GET", "/v1/audit"): "manage",
    ("GET", "/v1/streams"): "read",
    ("GET", "/v1/streams/{name}/events"): "read",
    ("GET", "/v1/streams/{name}/sse"): "read",
    ("GET", "/v1/stream"): "read",
    ("GET", "/v1/blobs"): "open",
    ("POST", "/v1/keys/rotate"): "instance",
    ("GET", "/v1/backup"): "backup",
    ("GET", "/v1/sizes"): "instance",
    ("POST", "/v1/prune"): "manage",
    ("GET", "/approvals"): "read",
    ("GET", "/approvals/{approval}"): "read",
    ("POST", "/approvals/{approval}/approve"): "approve",
    ("POST", "/approvals/{approval}/deny"): "approve",
    ("POST", "/approvals/{approval}/escalate"): "approve",
    ("POST", "/approvals/{approval}/claim"): "approve",
    ("POST", "/approvals/groups/{group}/approve"): "approve",
    ("POST", "/approvals/groups/{group}/deny"): "approve",
    ("GET", "/v1/inbox"): "read",
    ("POST", "/v1/inbox/{item}/looked-at"): "read",
    ("GET", "/grants"): "read",
    ("POST", "/grants"): "approve",
    ("GET", "/grants/{grant}"): "read",
    ("DELETE", "/grants/{grant}"): "approve",
    ("GET", "/traces"): "read",
    ("GET", "/traces/{trace_id}"): "read",
    ("GET", "/v1/trace/verify"): "read",
    ("GET", "/v1/trace/export"): "read",
    ("GET", "/v1/policy"): "read",
    ("POST", "/v1/policy/explain"): "read",
    ("POST", "/v1/policy/replay"): "read",
    ("GET", "/v1/policy/hits"): "read",
    ("POST", "/tool/{name}"): "call",
    ("POST", "/decide"): "call",
    ("POST", "/v1/asks"): "call",
    ("GET", "/v1/asks/{ask}"): "call",
    ("POST", "/v1/asks/{ask}/use"): "call",
    ("DELETE", "/v1/asks/{ask}"): "call",
    ("GET", "/v1/trust"): "read",
    ("POST", "/v1/trust"): "approve",
    ("DELETE", "/v1/trust/{trust}"): "approve",
    ("GET", "/v1/agents"): "read",
    ("GET", "/v1/agents/{agent}"): "read",
    ("POST", "/v1/agents/{agent}/install"): "operate",
    ("POST", "/v1/agents/{agent}/install/stream"): "operate",
    ("GET", "/v1/agents/{agent}/modes"): "read",
    ("GET", "/v1/agents/{agent}/models"): "read",
    ("GET", "/v1/sessions"): "read",
    ("POST", "/v1/sessions/{id}"): "operate",
    ("GET", "/v1/sessions/{id}"): "read",
    ("PATCH", "/v1/sessions/{id}"): "operate",
    ("DELETE", "/v1/sessions/{id}"): "operate",
    ("POST", "/v1/sessions/{id}/messages"): "operate",
    ("POST", "/v1/sessions/{id}/messages/stream"): "operate",
    ("GET", "/v1/sessions/{id}/events"): "read",
    ("GET", "/v1/sessions/{id}/events/sse"): "read",
    ("GET", "/v1/sessions/{id}/snapshot"): "read",
    ("POST", "/v1/sessions/{id}/cancel"): "operate",
    ("POST", "/v1/sessions/{id}/steer"): "operate",
    ("POST", "/v1/sessions/{id}/terminate"): "operate",
    ("POST", "/v1/sessions/{id}/questions/{question}/reply"): "operate",
    ("POST", "/v1/sessions/{id}/questions/{question}/reject"): "operate",
    ("POST", "/v1/sessions/{id}/permissions/{permission}/reply"): "approve",
    ("POST", "/v1/runs/{id}/reports"): "open",
    ("GET", "/v1/runs/{id}/commands"): "open",
    ("POST", "/v1/runs/{id}/commands/{command}/use"): "open",
    ("POST", "/v1/runs"): "operate",
    ("POST", "/v1/runs:batch"): "operate",
    ("GET", "/v1/runs"): "read",
    ("GET", "/v1/runs/{id}"): "read",
    ("GET", "/v1/runs/{id}/details"): "read",
    ("GET", "/v1/runs/{id}/changes"): "read",
    ("POST", "/v1/runs/{id}/cancel"): "operate",
    ("POST", "/v1/runs/{id}/resume"): "operate",
    ("POST", "/v1/runs/{id}/messages"): "operate",
    ("POST", "/v1/runs/{id}/pause"): "operate",
    ("GET", "/v1/runs/{id}/events"): "read",
    ("GET", "/v1/runs/{id}/events/sse"): "read",
    ("POST", "/v1/templates"): "operate",
    ("GET", "/v1/templates"): "read",
    ("GET", "/v1/templates/{id}"): "read",
    ("GET", "/v1/acp"): "read",
    ("GET", "/v1/recordings"): "read",
    ("POST", "/acp"): "operate",
    ("GET", "/acp"): "operate",
    ("DELETE", "/acp"): "operate",
    ("POST", "/v1/acp/{server_id}"): "operate",
    ("GET", "/v1/acp/{server_id}"): "operate",
    ("DELETE", "/v1/acp/{server_id}"): "operate",
    ("GET", "/v1/fs/entries"): "operate",
    ("GET", "/v1/fs/stat"): "operate",
    ("GET", "/v1/fs/file"): "operate",
    ("PUT", "/v1/fs/file"): "operate",
    ("DELETE", "/v1/fs/entry"): "operate",
    ("POST", "/v1/fs/mkdir"): "operate",
    ("POST", "/v1/fs/move"): "operate",
    ("POST", "/v1/fs/upload-batch"): "operate",
    **{
        (method, f"/v1/config/{kind}"): "operate"
        for method in ("GET", "PUT", "DELETE")
        for kind in ("mcp", "skills")
    },
    **{
        (method, left_out + below): "open"
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        for left_out in ("/v1/desktop", "/opencode")
        for below in ("", "/{a}", "/{a}/{b}", "/{a}/{b}/{c}", "/{a}/{b}/{c}/{d}")
    },
    ("GET", "/v1/processes"): "operate",
    ("POST", "/v1/processes"): "operate",
    ("GET", "/v1/processes/config"): "operate",
    ("POST", "/v1/processes/config"): "operate",
    ("POST", "/v1/processes/run"): "operate",
    ("GET", "/v1/processes/{process}"): "operate",
    ("DELETE", "/v1/processes/{process}"): "operate",
    ("POST", "/v1/processes/{process}/stop"): "operate",
    ("POST", "/v1/processes/{process}/kill"): "operate",
    ("GET", "/v1/processes/{process}/logs"): "operate",
    ("POST", "/v1/processes/{process}/input"): "operate",
    ("POST", "/v1/processes/{process}/terminal/resize"): "operate",
    ("GET", "/v1/processes/{process}/terminal/ws"): "operate",
}
# As what one decides: on approvals and permissions as a supervisor at least, on grants and trust as a person.
LEVELS = {"/v1/trust": 2, "/approvals": 1, "/grants": 2, "/v1": 1}
# What is the machine's, not a workspace's.
SHARED = ("/v1/agents", "/v1/fs", "/v1/config")

AGENT = "test"  # as the rig labels its tokens: the name of the agent whose token it is
CALL = {"tool": "filesystem.read_file", "params": {"path": "/w/a"}, "agent": AGENT}
CHANGED = "name: changed\nagent: '*'\nrules:\n  - {id: all, tools: '*', action: deny}\n"

BODIES: dict[Route, object] = {
    ("POST", "/v1/sign-in"): {"code": "wrong"},
    ("POST", "/v1/sign-in-links"): {},
    ("POST", "/v1/users"): {"name": "New"},
    ("PATCH", "/v1/users/{user}"): {"name": "Changed"},
    ("POST", "/v1/workspaces"): {"name": "New"},
    ("PUT", "/v1/workspaces/{workspace}/members/{user}"): {"role": "operator"},
    ("POST", "/v1/tokens"): {"label": "new", "kind": "agent", "scopes": ["read"]},
    ("POST", "/grants"): {"agent": "claude", "tools": "filesystem.*", "duration": "30m"},
    ("POST", "/v1/trust"): {"folder": "trusted"},  # below the folder that the rig serves
    ("POST", "/v1/prune"): {"olderThan": "90d", "dryRun": True},
    ("POST", "/v1/policy/explain"): CALL,
    ("POST", "/v1/policy/replay"): {"policy": CHANGED},
    ("POST", "/tool/{name}"): {"params": {}, "agent": AGENT},
    ("POST", "/decide"): CALL,
    ("POST", "/v1/asks"): {**CALL, "waiter": "run:1"},
    ("POST", "/v1/agents/{agent}/install"): {},
    ("POST", "/v1/agents/{agent}/install/stream"): {},
    ("POST", "/v1/sessions/{id}"): {"agent": "rehearsal"},
    ("PATCH", "/v1/sessions/{id}"): {"title": "Another"},
    ("POST", "/v1/sessions/{id}/messages"): {"message": "go"},
    ("POST", "/v1/sessions/{id}/messages/stream"): {"message": "go"},
    ("POST", "/v1/sessions/{id}/steer"): {"message": "go"},
    ("POST", "/v1/sessions/{id}/questions/{question}/reply"): {"answers": []},
    ("POST", "/v1/sessions/{id}/permissions/{permission}/reply"): {"reply": "once"},
    ("POST", "/acp"): {"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}},
    ("POST", "/v1/acp/{server_id}"): {"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}},
    ("POST", "/v1/runs"): {"agent": "rehearsal", "prompt": "go"},
    ("POST", "/v1/runs:batch"): {"runs": [{"agent": "rehearsal", "prompt": "go"}]},
    ("POST", "/v1/runs/{id}/resume"): {},
    ("POST", "/v1/runs/{id}/messages"): {"message": "go on"},
    ("POST", "/v1/templates"): {"name": "t", "run": {"agent": "rehearsal", "prompts": ["go"]}},
    ("PUT", "/v1/config/mcp"): {"type": "local", "command": "x"},
    ("PUT", "/v1/config/skills"): {"sources": []},
    ("POST", "/v1/fs/move"): {"from": "there.txt", "to": "moved.txt", "overwrite": True},
    ("POST", "/v1/processes"): {"command": "true"},
    ("POST", "/v1/processes/run"): {"command": "true"},
    ("POST", "/v1/processes/config"): {},
    ("POST", "/v1/processes/{process}/input"): {"data": ""},
    ("POST", "/v1/processes/{process}/terminal/resize"): {"cols": 80, "rows": 24},
}
QUERIES: dict[Route, str] = {
    ("POST", "/v1/acp/{server_id}"): "?agent=rehearsal",
    ("GET", "/v1/stream"): "?streams=server",
    ("GET", "/v1/fs/stat"): "?path=.",
    ("GET", "/v1/fs/file"): "?path=there.txt",
    ("PUT", "/v1/fs/file"): "?path=new.txt",
    ("DELETE", "/v1/fs/entry"): "?path=there.txt",
    ("POST", "/v1/fs/mkdir"): "?path=new",
    **{(method, "/v1/config/mcp"): "?directory=.&mcpName=x" for method in ("GET", "PUT", "DELETE")},
    **{(method, "/v1/config/skills"): "?directory=.&skillName=x" for method in ("GET", "PUT", "DELETE")},
}

# Lists of what is in a workspace: whoever is elsewhere sees their own.
OWN_LISTS = {
    "/v1/workspaces", "/v1/tokens", "/v1/audit", "/v1/streams", "/approvals", "/grants", "/traces", "/v1/sessions",
    "/v1/acp", "/v1/recordings", "/v1/trust", "/v1/inbox", "/v1/runs", "/v1/templates",
}  # fmt: skip
# Postgres has tools of its own for it: there the answer is a Conflict.
NEEDS_A_TURN = {
    ("POST", "/v1/sessions/{id}/steer"),
    ("POST", "/v1/runs/{id}/resume"),
    ("POST", "/v1/runs/{id}/messages"),
    ("POST", "/v1/runs/{id}/pause"),
}  # or a failure, or an agent that is at work, of which there is none
ONLY_EMBEDDED = {("GET", "/v1/backup")}


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    make_repository(tmp_path / "served" / "trusted")
    async with open_rig(
        request.param, tmp_path / "data", request, folders=[str(tmp_path / "served")]
    ) as made:
        yield made


def route(operation: Operation) -> Route:
    return operation.method, operation.path


def decided(operation: Operation) -> str:
    if operation.access.person:
        return "person"
    return "open" if operation.access.open else operation.access.scope or "signed in"


async def target(rig: Rig, operation: Operation) -> str:
    """The operation's path with something real of the first workspace, made for this call alone."""
    path = operation.path.replace("{workspace}", "local").replace("{name}", "server")
    if "{user}" in path:
        path = path.replace("{user}", await rig.add_user("viewer"))
    if "{token}" in path:
        path = path.replace("{token}", (await rig.token(rig.people["owner"]))[0])
    if "{trust}" in path:
        path = path.replace("{trust}", await a_trust(rig))
    if "{grant}" in path:
        path = path.replace("{grant}", await a_grant(rig))
    if "{approval}" in path or "{group}" in path or "{trace_id}" in path:
        made = await an_approval(rig)
        path = path.replace("{approval}", made.id).replace("{group}", made.group_key)
        path = path.replace("{trace_id}", made.trace_id)
    if path.startswith("/v1/fs"):
        (rig.services.settings.folders[0] / "there.txt").write_text("there")
    if path.startswith("/v1/config"):
        kept = rig.services.settings.folders[0] / ".sandbox-agent/config"
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "mcp.json").write_text('{"x": {"type": "local", "command": "x"}}')
        (kept / "skills.json").write_text('{"x": {"sources": []}}')
    if "{server_id}" in path:
        server_id = new_id("srv")
        if operation.method != "POST":  # whose first message makes it
            await rig.services.acp.get("local", server_id, "rehearsal")
        path = path.replace("{server_id}", server_id)
    path = path.replace("{agent}", "rehearsal").replace("{question}", "qst_none")
    if "{permission}" in path:
        session = await a_session(rig)
        asked = await an_approval(rig, session_id=session)
        path = path.replace("{id}", session).replace("{permission}", asked.id)
    path = path.replace("{ask}", "apr_none")
    if "{item}" in path:
        path = path.replace("{item}", await an_item(rig))
    if path.startswith(("/v1/runs/{id}", "/v1/templates/{id}")):
        path = path.replace("{id}", await (a_run if path.startswith("/v1/runs") else a_template)(rig))
    if "{id}" in path:
        new = route(operation) == ("POST", "/v1/sessions/{id}")
        path = path.replace("{id}", new_id("new") if new else await a_session(rig))
    return path + QUERIES.get(route(operation), "")


async def a_session(rig: Rig) -> str:
    """One that no agent has."""
    name, agent = new_id("ses"), "rehearsal"
    details = Details(agent=agent, given=Metadata(agent), created_at=1, updated_at=1)
    meta = SessionMeta(
        agent_session_id="reh-1", cwd=str(rig.services.settings.folders[0]), details=details.plain()
    )
    stream = await rig.services.log.stream(name)
    await stream.set_meta(meta.encode())
    return name


async def an_item(rig: Rig) -> str:
    """Of the inbox: a session whose turn ended."""
    session, now = await a_session(rig), rig.clock.now_ms()
    columns = "workspace_id, id, kind, section, state, session_id, server, since"
    values = f"'local', '{session}', 'session', 'ready', 'ended', '{session}', '{rig.services.name}', {now}"
    await rig.rows(f"insert into inbox_item ({columns}) values ({values})")
    return session


async def a_run(rig: Rig) -> str:
    by = await rig.principal(rig.people["owner"])
    return (await rig.services.runs.submit(by, RunSubmission(agent="rehearsal", prompt="go"))).run_id


async def a_template(rig: Rig) -> str:
    by, now = await rig.principal(rig.people["owner"]), rig.clock.now_ms()
    new = NewTemplate(name="made", run=RunSpec(agent="rehearsal", prompts=["go"]))
    made = await rig.services.database.transact(add_template, rig.services.content, by, new, now_ms=now)
    return made.id


async def an_approval(rig: Rig, session_id: str | None = None) -> Approval:
    """That a supervisor may decide."""
    inbox, now = rig.services.inbox, rig.clock.now_ms()
    asked = proposal(
        id=new_approval_id(now),
        waiter=inbox.holder,
        look_at=now + LONGEST_WAIT_MS,  # nobody hands it to a person
        requester_kind="process",  # nobody revokes it
        requester="host",
        expires_at=now + LONGEST_WAIT_MS,
        session_id=session_id,
    )
    return await inbox.ledger.transact("local", inbox.life.propose, asked, now)


async def a_grant(rig: Rig) -> str:
    now, new = rig.clock.now_ms(), NewGrant(agent="claude", tools="filesystem.*", duration=3600)
    by = await rig.principal(rig.people["owner"])
    give = rig.services.grants.give
    return (await rig.services.database.transact(give, by, new, grant=new_grant_id(now), now_ms=now)).id


async def a_trust(rig: Rig) -> str:
    """Of a folder that nobody else trusts: each has one of its own."""
    folder = rig.services.settings.folders[0] / new_id("dir")
    make_repository(folder)
    trusted = rig.services.hosts.trusted("local")
    new = trusted.checked(str(folder), by="test", now_ms=rig.clock.now_ms())
    return trusted.add(new).id


def make_repository(folder: Path) -> None:
    for part in ("objects", "refs"):
        (folder / ".git" / part).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def expected(operation: Operation, each: Presented) -> int:
    """Computed from what the route declares, and from the few rules that go beyond it."""
    scope, standing = operation.access.scope, each.standing
    if standing is None:
        return 401
    if scope is not None and scope not in standing.scopes:
        return 403
    if operation.access.person and is_token(each.name):
        return 403
    if route(operation) == ("POST", "/v1/sign-in-links") and not may_make_a_link(each.name, standing):
        return 403
    if scope == "approve" and level(each) < next(
        least for start, least in LEVELS.items() if operation.path.startswith(start)
    ):
        return 403
    if operation.path == "/tool/{name}" or "{question}" in operation.path:
        return 404  # the rig has no such tool, and nobody asks anything
    if operation.path == "/acp":
        return 400  # they name no connection; tests/server/acp/test_streamable.py has some
    if operation.path == "/v1/fs/upload-batch":
        return 400  # nothing is no archive
    if operation.path.startswith(SHARED) or route(operation) == ("POST", "/v1/sessions/{id}"):
        return operation.status
    if operation.path == "/v1/acp/{server_id}" and operation.method != "GET":
        return operation.status  # an id of their own workspace, which need not be there to be deleted
    if operation.path.startswith("/v1/processes"):
        return 403  # off, unless the owner says otherwise; tests/server/processes has them on
    if standing.foreign and ("{" in operation.path or route(operation) in QUERIES):
        return 404
    return operation.status


def level(each: Presented) -> int:
    return {"agent token": 0, "agent token that reads": 0, "supervisor token": 1}.get(each.name, 2)


def may_make_a_link(name: str, standing: Standing) -> bool:
    """A session reaches every workspace of its user: a token of one of them is not enough for it."""
    return standing.is_person and standing.is_whole and (not is_token(name) or "instance" in standing.scopes)


def is_token(name: str) -> bool:
    """Of one workspace, and not the process'."""
    return "token" in name and name != "process token"


async def everything(rig: Rig) -> dict[str, list[str]]:
    """All rows of all tables, and whether the server was told to stop.

    When a token was last used is no effect, nor are the server's own sign of life and its time."""
    tables = {
        "sqlite": "select name from sqlite_master where type = 'table' and name not like 'sqlite%'",
        "postgres": "select tablename as name from pg_tables where schemaname = 'legation'",
    }[rig.services.database.dialect]
    found = {"stops": [*rig.stops]}
    for name in [
        row["name"]
        for row in await rig.rows(tables)
        if row["name"] not in ("holder", "pulse", "clock_mark", "server_address")
    ]:
        rows = [dict(row) for row in await rig.rows(f"select * from {name}")]
        for row in rows:
            row.pop("last_used_at", None)
        found[name] = sorted(map(repr, rows))
    return found


CALLS = count()


async def call(rig: Rig, operation: Operation, path: str, presented: Presented) -> Answer:
    """Rate limits have tests of their own: time goes on, though not at every call, since all that is done in time is done then."""
    if next(CALLS) % 8 == 0:
        rig.clock.advance(240)
    return await rig.knock(operation.method, path, presented.headers, BODIES.get(route(operation)))


def guarded(rig: Rig) -> list[Operation]:
    return [operation for operation in rig.app.operations if not operation.access.open]


async def test_every_route_has_a_decision(rig: Rig) -> None:
    """A route that fails here is new, gone or changed: decide it in DECIDED, and give it a body above if it has one."""
    assert {route(each): decided(each) for each in rig.app.operations} == DECIDED


@ON_SQLITE_DAILY
async def test_whoever_is_refused_changes_nothing(rig: Rig) -> None:
    cells = 0
    problems: list[tuple[object, ...]] = []
    presented = await all_presented(rig)
    for operation in guarded(rig):
        path = await target(rig, operation)
        refused = [each for each in presented if expected(operation, each) >= 400]
        before = await everything(rig)
        assert before["app_user"]
        for each in refused:
            wanted = expected(operation, each)
            answer = await call(rig, operation, path, each)
            if answer.status != wanted:
                problems.append((*route(operation), each.name, answer.status, wanted))
        cells += len(refused)
        after = await everything(rig)
        if {*after["bucket"]} <= {*before["bucket"]}:  # the sweeper forgets what is full again
            after["bucket"] = before["bucket"]
        if after != before:
            problems.append((*route(operation), [name for name in after if after[name] != before[name]]))
    assert problems == []
    assert cells > 15 * len(guarded(rig))


@ON_SQLITE_DAILY
async def test_whoever_may_is_let_through(rig: Rig) -> None:
    problems, cells = [], 0
    presented = await all_presented(rig)
    embedded = rig.services.database.dialect == "sqlite"
    for operation in guarded(rig):
        for each in presented:
            wanted = expected(operation, each)
            if wanted >= 400:
                continue
            cells += 1
            if route(operation) in (NEEDS_A_TURN if embedded else NEEDS_A_TURN | ONLY_EMBEDDED):
                wanted = 409
            if "{ask}" in operation.path:
                wanted = 404  # an ask is its asker's alone
            answer = await call(rig, operation, await target(rig, operation), each)
            if answer.status != wanted:
                problems.append((*route(operation), each.name, answer.status, wanted, answer.body[:300]))
    assert problems == []
    assert cells > 3 * len(guarded(rig))


@ON_SQLITE_DAILY
async def test_the_scope_call_opens_the_door_of_tools_and_nothing_else(rig: Rig) -> None:
    kinds: tuple[TokenKind, ...] = ("agent", "user", "supervisor")
    for kind in kinds:
        only = Presented(f"{kind} token", await rig.bearer(rig.people["owner"], "call", kind=kind), None)
        through = set()
        for operation in guarded(rig):
            answer = await call(rig, operation, await target(rig, operation), only)
            if answer.status != 403:
                through.add((*route(operation), answer.status))
        own = {(*each, 404) for each in DECIDED if "{ask}" in each[1]}  # and it has none
        door = {("POST", "/tool/{name}", 404), ("POST", "/decide", 200), ("POST", "/v1/asks", 200)}
        # Who is no agent asks for one with `operate`.
        assert through == own | (door if kind == "agent" else set())


async def test_a_token_speaks_of_itself_and_not_of_its_maker(rig: Rig) -> None:
    owner = rig.people["owner"]
    kinds: tuple[TokenKind, ...] = ("agent", "user", "supervisor")
    for kind in kinds:
        headers = await rig.bearer(owner, "read", kind=kind)
        for path in ("/v1/me", "/v1/workspaces", "/v1/workspaces/local"):
            answer = await rig.knock("GET", path, headers)
            assert answer.status == 200
            assert owner.encode() not in answer.body
            assert b'"owner"' not in answer.body  # its maker's role


@ON_SQLITE_DAILY
async def test_an_open_route_looks_at_no_credential(rig: Rig) -> None:
    problems = []
    presented = await all_presented(rig)
    for operation in rig.app.operations:
        if not operation.access.open:
            continue
        path = await target(rig, operation)
        plain = await call(rig, operation, path, presented[0])
        for each in presented[1:]:
            answer = await call(rig, operation, path, each)
            left_out = operation.status == answer.status == 501
            if answer.status != plain.status or (answer.status >= 500 and not left_out):
                problems.append((*route(operation), each.name, answer.status, plain.status))
    assert problems == []


# What is wrong with a request, in its path, its query, its headers or its body.
WRONG_SEGMENTS = ("%zz", "%ff", "%00", "%C3%28", "a%2Fb", "-" * 5000)
WRONG_QUERIES = ("?%zz", "?%ff=1", "?nobody=knows", "?limit=-1&after=%00", "?path=%00", "?" + "a=1&" * 2000)
WRONG_HEADERS: tuple[dict[str, str], ...] = (
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=latin-1"},
    {"content-encoding": "gzip"},
    {"content-length": "9" * 15},
    {"content-length": "9" * 5000},
    {"accept": "image/png"},
    {"last-event-id": "x"},
    {"x-session-id": "", "x-trace-id": "\x7f", "traceparent": "0"},
    {"prefer": "\xff"},
    {"legation-workspace": "wsp_none"},
    {"expect": "100-continue"},
)
NO_CREDENTIALS: tuple[dict[str, str], ...] = ({}, bearer("wrong"), {"cookie": "legation_session=wrong"})
WRONG_BODIES = (b"{", b"null", b"[" * 100_000, b"\xff", b'{"a":1,"a":2}', b"1" * 5000)


@ON_SQLITE_DAILY
@pytest.mark.parametrize("credentials", [1, pytest.param(len(NO_CREDENTIALS), marks=pytest.mark.slow)])
async def test_without_a_credential_nothing_else_is_wrong_with_a_request(rig: Rig, credentials: int) -> None:
    """Each request with so many of those that are none, another one for the next route."""
    problems: list[tuple[object, ...]] = []
    others = cycle(NO_CREDENTIALS)
    for operation in guarded(rig):
        next(others)
        plain = re.sub(r"\{\w+\}", "x", operation.path)
        paths = [plain, *(plain + query for query in WRONG_QUERIES)]
        if "{" in operation.path:
            paths += [re.sub(r"\{\w+\}", wrong, operation.path) for wrong in WRONG_SEGMENTS]
        tries: list[tuple[str, dict[str, str], object]] = [(path, {}, None) for path in paths]
        tries += [(plain, headers, {}) for headers in WRONG_HEADERS]
        tries += [(plain, {}, msgspec.Raw(body)) for body in WRONG_BODIES]
        for path, headers, body in tries:
            for credential in islice(others, credentials):
                answer = await rig.knock(operation.method, path, {**headers, **credential}, body)
                if answer.status != 401 or "www-authenticate" not in answer.headers:
                    problems.append((*route(operation), path[:60], headers, answer.status))
    assert problems == []


@ON_SQLITE_DAILY
async def test_a_member_named_twice_is_refused_on_every_route(rig: Rig) -> None:
    """The last one was taken, and another reader takes the first."""
    owner = bearer(rig.services.own_token.reveal())
    tried = 0
    problems: list[tuple[object, ...]] = []
    for operation in rig.app.operations:
        named = BODIES.get(route(operation))
        if not isinstance(named, dict) or not named:
            continue
        path = await target(rig, operation)
        before = await everything(rig)
        (first, value), text = next(iter(named.items())), msgspec.json.encode(named)
        spelt = b'"\\u%04x%b":' % (ord(first[0]), first[1:].encode())
        again = (msgspec.json.encode(first) + b":", spelt)
        bodies = [b"{" + each + msgspec.json.encode(value) + b"," + text[1:] for each in again]
        if b'"params":{' in text:
            bodies.append(text.replace(b'"params":{', b'"params":{"deep":[{"p":1,"\\u0070":2}],'))
            bodies[-1] = bodies[-1].replace(b"],}", b"]}")
        for body in bodies:
            rig.clock.advance(30)
            answer = await rig.knock(operation.method, path, owner, msgspec.Raw(body))
            if answer.status != 400 or b"once" not in answer.body:
                problems.append((*route(operation), body, answer.status, answer.body[:200]))
            tried += 1
        after = await everything(rig)
        if {*after["bucket"]} <= {*before["bucket"]} or operation.refused is not None:
            after["bucket"] = before["bucket"]
        if operation.refused is not None:  # whatever it refuses is on record, and counts
            after["audit"] = before["audit"]
        if after != before:
            problems.append((*route(operation), "changed something"))
    assert problems == []
    assert tried > 40


async def test_a_list_shows_nothing_of_another_workspace(rig: Rig) -> None:
    presented = [each for each in await all_presented(rig) if each.standing and each.standing.foreign]
    token, _ = await rig.token(rig.people["owner"])
    asked, grant = await an_approval(rig), await a_grant(rig)
    session, trusted = await a_session(rig), await a_trust(rig)
    here = [
        session,
        trusted,
        *rig.people.values(),
        token,
        '"local"',
        '"name":"server"',
        asked.id,
        asked.trace_id,
        grant,
    ]
    here.remove(rig.people["stranger"])
    mine = await rig.bearer(rig.people["owner"])
    shown = b"".join([(await rig.knock("GET", path, mine)).body for path in OWN_LISTS])
    assert [name for name in here if name.encode() not in shown] == []  # to somebody here they are shown
    for operation in guarded(rig):
        if operation.method != "GET" or operation.path not in OWN_LISTS:
            continue
        for each in presented:
            answer = await call(rig, operation, operation.path, each)
            assert answer.status == 200
            assert [name for name in here if name.encode() in answer.body] == [], operation.path


async def test_what_is_foreign_and_what_is_not_there_get_one_answer(rig: Rig) -> None:
    """For whoever is elsewhere, and for an owner here who asks for what is elsewhere."""
    foreign_token = (await rig.token(rig.people["stranger"], workspace=rig.other))[0]
    asked = await an_approval(rig)
    mine, gone = f"/approvals/{asked.id}", "/approvals/apr_none"
    group, grant = f"/approvals/groups/{asked.group_key}", f"/grants/{await a_grant(rig)}"
    theirs = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    before = await everything(rig)
    for method, foreign, absent in (
        ("GET", mine, gone),
        *(("POST", f"{mine}/{verb}", f"{gone}/{verb}") for verb in ("approve", "deny", "claim", "escalate")),
        *(("POST", f"{group}/{verb}", f"/approvals/groups/none/{verb}") for verb in ("approve", "deny")),
        ("GET", grant, "/grants/grt_none"),
        ("DELETE", grant, "/grants/grt_none"),
        ("GET", f"/traces/{asked.trace_id}", "/traces/none"),
    ):
        answers = [await rig.knock(method, path, theirs) for path in (foreign, absent)]
        assert [answer.status for answer in answers] == [404, 404], (method, foreign)
        assert len({answer.body.partition(b'"instance"')[0] for answer in answers}) == 1
    assert await everything(rig) == before

    pairs = [
        ("GET", f"/v1/workspaces/{rig.other}", "/v1/workspaces/wsp_none", None),
        ("GET", f"/v1/workspaces/{rig.other}/members", "/v1/workspaces/wsp_none/members", None),
        (
            "PUT",
            f"/v1/workspaces/{rig.other}/members/{rig.people['owner']}",
            f"/v1/workspaces/wsp_none/members/{rig.people['owner']}",
            {"role": "viewer"},
        ),
        (
            "DELETE",
            f"/v1/workspaces/{rig.other}/members/{rig.people['stranger']}",
            f"/v1/workspaces/{rig.other}/members/usr_none",
            None,
        ),
        (
            "DELETE",
            f"/v1/workspaces/local/members/{rig.people['stranger']}",
            "/v1/workspaces/local/members/usr_none",
            None,
        ),
        ("DELETE", f"/v1/tokens/{foreign_token}", "/v1/tokens/tok_none", None),
    ]
    for headers in (await rig.cookie(rig.people["owner"]), await rig.bearer(rig.people["owner"])):
        before = await everything(rig)
        for method, foreign, absent, body in pairs:
            answers = [await rig.knock(method, path, headers, body) for path in (foreign, absent)]
            told = {answer.body.partition(b'"instance"')[0] for answer in answers}
            assert [answer.status for answer in answers] == [404, 404], (method, foreign)
            assert len(told) == 1
        assert await everything(rig) == before
