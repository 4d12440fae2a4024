"""Every route of the real application, with every kind of credential: the expected answer, and nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.presented import Presented, Standing, all_presented
from tests.server.rig import BOTH, Answer, Rig, open_rig

from legation.server.http.operations import Operation

pytestmark = pytest.mark.heavy

Route = tuple[str, str]

# What was decided about each route. A new route fails the test until it stands here.
DECIDED: dict[Route, str] = {
    ("GET", "/"): "open",
    ("GET", "/openapi.json"): "open",
    ("GET", "/docs"): "open",
    ("GET", "/docs/{name}"): "open",
    ("GET", "/metrics"): "read",
    ("GET", "/v1/health"): "open",
    ("GET", "/v1/ready"): "open",
    ("GET", "/v1/server"): "read",
    ("POST", "/v1/stop"): "instance",
    ("GET", "/v1/me"): "signed in",
    ("GET", "/sign-in"): "open",
    ("GET", "/sign-in/{name}"): "open",
    ("POST", "/v1/sign-in"): "open",
    ("POST", "/v1/sign-out"): "signed in",
    ("POST", "/v1/sign-in-links"): "signed in",
    ("GET", "/v1/users"): "instance",
    ("POST", "/v1/users"): "instance",
    ("GET", "/v1/users/{user}"): "instance",
    ("PATCH", "/v1/users/{user}"): "instance",
    ("GET", "/v1/workspaces"): "signed in",
    ("POST", "/v1/workspaces"): "instance",
    ("GET", "/v1/workspaces/{workspace}"): "signed in",
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
    ("GET", "/v1/backup"): "instance",
}

BODIES: dict[Route, object] = {
    ("POST", "/v1/sign-in"): {"code": "wrong"},
    ("POST", "/v1/sign-in-links"): {},
    ("POST", "/v1/users"): {"name": "New"},
    ("PATCH", "/v1/users/{user}"): {"name": "Changed"},
    ("POST", "/v1/workspaces"): {"name": "New"},
    ("PUT", "/v1/workspaces/{workspace}/members/{user}"): {"role": "operator"},
    ("POST", "/v1/tokens"): {"label": "new", "kind": "agent", "scopes": ["read"]},
}
QUERIES: dict[Route, str] = {("GET", "/v1/stream"): "?streams=server"}

# Lists of what is in a workspace: whoever is elsewhere sees their own.
OWN_LISTS = {"/v1/workspaces", "/v1/tokens", "/v1/audit", "/v1/streams"}
# Postgres has tools of its own for it: there the answer is a Conflict.
ONLY_EMBEDDED = {("GET", "/v1/backup")}


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(request.param, tmp_path, request) as made:
        yield made


def route(operation: Operation) -> Route:
    return operation.method, operation.path


def decided(operation: Operation) -> str:
    return "open" if operation.access.open else operation.access.scope or "signed in"


async def target(rig: Rig, operation: Operation) -> str:
    """The operation's path with something real of the first workspace, made for this call alone."""
    path = operation.path.replace("{workspace}", "local").replace("{name}", "server")
    if "{user}" in path:
        path = path.replace("{user}", await rig.add_user("viewer"))
    if "{token}" in path:
        path = path.replace("{token}", (await rig.token(rig.people["owner"]))[0])
    return path + QUERIES.get(route(operation), "")


def expected(operation: Operation, each: Presented) -> int:
    """Computed from what the route declares, and from the one rule that goes beyond it."""
    scope, standing = operation.access.scope, each.standing
    if standing is None:
        return 401
    if scope is not None and scope not in standing.scopes:
        return 403
    if route(operation) == ("POST", "/v1/sign-in-links") and not may_make_a_link(each.name, standing):
        return 403
    if standing.foreign and ("{" in operation.path or route(operation) in QUERIES):
        return 404
    return operation.status


def may_make_a_link(name: str, standing: Standing) -> bool:
    """A session reaches every workspace of its user: a token of one of them is not enough for it."""
    by_token = "token" in name and name != "process token"
    return standing.is_person and standing.is_whole and (not by_token or "instance" in standing.scopes)


async def everything(rig: Rig) -> dict[str, list[str]]:
    """All rows of all tables, and whether the server was told to stop. When a token was last used is no effect."""
    tables = {
        "sqlite": "select name from sqlite_master where type = 'table' and name not like 'sqlite%'",
        "postgres": "select tablename as name from pg_tables where schemaname = 'legation'",
    }[rig.services.database.dialect]
    found = {"stops": [*rig.stops]}
    for name in [row["name"] for row in await rig.rows(tables)]:
        rows = [dict(row) for row in await rig.rows(f"select * from {name}")]
        for row in rows:
            row.pop("last_used_at", None)
        found[name] = sorted(map(repr, rows))
    return found


async def call(rig: Rig, operation: Operation, path: str, presented: Presented) -> Answer:
    rig.clock.advance(30)  # rate limits have tests of their own
    return await rig.knock(operation.method, path, presented.headers, BODIES.get(route(operation)))


def guarded(rig: Rig) -> list[Operation]:
    return [operation for operation in rig.app.operations if not operation.access.open]


async def test_every_route_has_a_decision(rig: Rig) -> None:
    """A route that fails here is new, gone or changed: decide it in DECIDED, and give it a body above if it has one."""
    assert {route(each): decided(each) for each in rig.app.operations} == DECIDED


async def test_whoever_is_refused_changes_nothing(rig: Rig) -> None:
    cells = 0
    problems = []
    presented = await all_presented(rig)
    for operation in guarded(rig):
        path = await target(rig, operation)
        before = await everything(rig)
        assert before["app_user"]
        for each in presented:
            wanted = expected(operation, each)
            if wanted < 400:
                continue
            cells += 1
            answer = await call(rig, operation, path, each)
            after = await everything(rig)
            if {*after["bucket"]} <= {*before["bucket"]}:
                after["bucket"] = before[
                    "bucket"
                ]  # the clock moves on, and the sweeper forgets what is full again
            if route(operation) == ("POST", "/v1/sign-in-links") and wanted == 403:
                after["bucket"] = before["bucket"]  # counted before it is looked at
            if answer.status != wanted or after != before:
                changed = [name for name in after if after[name] != before[name]]
                problems.append((*route(operation), each.name, answer.status, wanted, changed))
    assert problems == []
    assert cells > 15 * len(guarded(rig))


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
            if not embedded and route(operation) in ONLY_EMBEDDED:
                wanted = 409
            answer = await call(rig, operation, await target(rig, operation), each)
            if answer.status != wanted:
                problems.append((*route(operation), each.name, answer.status, wanted, answer.body[:300]))
    assert problems == []
    assert cells > 3 * len(guarded(rig))


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
            if answer.status != plain.status or answer.status >= 500:
                problems.append((*route(operation), each.name, answer.status, plain.status))
    assert problems == []


async def test_a_list_shows_nothing_of_another_workspace(rig: Rig) -> None:
    presented = [each for each in await all_presented(rig) if each.standing and each.standing.foreign]
    token, _ = await rig.token(rig.people["owner"])
    here = [*rig.people.values(), token, '"local"', '"name":"server"']
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
