"""`POST /decide` and `POST /tool/{name}`: what would be decided, by which places of a call, and where they are looked up."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs
from msgspec.structs import replace
from tests.approvals.doors import ASKER
from tests.approvals.installation import add_asker
from tests.gateway.backend import Backend
from tests.server.rig import bearer
from tests.server.tools.tool_calls import LIMIT, Calls, open_calls, token_of

from legation.approvals.grants import new_grant_id
from legation.errors import Forbidden, InvalidParams
from legation.host.requests.door_approver import DoorApprover
from legation.server.http.routes import Call
from legation.server.routes import policy, tools
from legation.store.counters import Limit
from legation.wire.action import MAX_PLACES, Action, Ask
from legation.wire.api.approvals import DecideBody, NewGrant

pytestmark = pytest.mark.heavy

NOTHING: dict[str, object] = {"params": {}}


# What would be decided.


async def test_to_ask_what_would_be_decided_runs_counts_and_records_nothing(calls: Calls) -> None:
    before = await calls.recorded()
    expected = {
        "db.read": ("allow", "p:reads"),
        "db.write": ("human_approval", "p:asks"),
        "db.post": ("supervisor", "p:supervised"),
        "db.drop": ("deny", "p:never"),
        "unknown.read": ("allow", "p:reads"),  # it need not be one that Legation calls
        "unknown.tool": ("deny", "default:no-match"),
    }
    for tool, verdict in expected.items():
        body = {"tool": tool, "params": {"a": 1}}
        found = (await calls.rig.client.post("/decide", json=body, headers=calls.agent)).json()
        assert (found["action"], found["policy_rule"]) == verdict
        assert found["injection_risk"] is False
        assert (found["grant"], found["limit"]) == (None, None)
    assert await calls.recorded() == before
    assert calls.backend.seen == []


async def test_a_dry_run_sees_what_the_call_would_show(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = """
        name: p
        loop: off
        rules:
          - {id: inside, kind: edit, action: allow, when: {paths: {under: /srv/project}}}
          - {id: elsewhere, kind: edit, action: deny}
    """
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, policy) as calls:
        for path, rule in (
            ("a.txt", "p:inside"),
            ("../other/a.txt", "p:elsewhere"),
            ("/etc/passwd", "p:elsewhere"),
        ):
            body = {"tool": "db.write", "params": {"path": path}}
            found = (await calls.rig.client.post("/decide", json=body, headers=calls.agent)).json()
            assert found["policy_rule"] == rule
            real = await calls.call("db.write", {"params": {"path": path}})
            assert (real.status_code == 200) == (rule == "p:inside")
        body = {"tool": "Write", "kind": "edit", "cwd": "/srv/project", "params": {"path": "a.txt"}}
        found = (await calls.rig.client.post("/decide", json=body, headers=calls.agent)).json()
        assert found["policy_rule"] == "p:inside"
        for wrong in ({"kind": "edits"}, {"cwd": "project"}, {"tool": ""}, {"tool": "a\nb"}):
            answer = await calls.rig.client.post("/decide", json={**body, **wrong}, headers=calls.agent)
            assert answer.status_code == 400


async def test_paths_of_an_agent_on_another_machine_lead_where_it_says_they_lead_there(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = """
        name: p
        loop: off
        rules:
          - {id: keys, kind: edit, action: deny, when: {paths: {under: ~/.ssh}}}
          - {id: inside, kind: edit, action: allow, when: {paths: {under: $WORKSPACE}}}
          - {id: elsewhere, kind: edit, action: human_approval}
    """
    # On this disk the workspace is a link to what a rule denies: nobody may look at that.
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".ssh").mkdir(parents=True)
    work.symlink_to(home / ".ssh")
    folders = {str(each): str(each) for each in (home, work, home / ".ssh")}
    where = {"workspace": str(work), "cwd": str(work), "home": str(home), "folders": folders}
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, policy) as calls:
        body = {"tool": "Write", "kind": "edit", "params": {"path": "a.txt"}}

        async def decided(
            paths: object, headers: dict[str, str] = calls.agent, **more: object
        ) -> tuple[int, object]:
            asked = {**body, "resolved": {**where, "paths": paths}, **more}
            answer = await calls.rig.client.post("/decide", json=asked, headers=headers)
            return answer.status_code, answer.json().get("policy_rule") or answer.json().get("data")

        assert await decided([f"{work}/a.txt"]) == (200, "p:inside")
        assert await decided([f"{home}/.ssh/a.txt"]) == (200, "p:keys")
        assert await decided(["/tmp/a.txt"]) == (200, "p:elsewhere")
        for paths, place in (([], "$.resolved.paths"), (["a.txt"], "$.resolved.paths[0]")):
            status, data = await decided(paths)
            assert (status, data["path"]) == (400, place)  # type: ignore[index]
        status, _ = await decided([f"{work}/a.txt"], cwd="/srv")
        assert status == 400
        status, _ = await decided([f"{work}/a.txt"], tool="db.write")  # it is called from here
        assert status == 400
        # Without it the call is one on this machine; and whoever has this machine's own credential is on it.
        here = {**body, "cwd": str(home), "params": {"path": f"{work}/a.txt"}}
        found = (await calls.rig.client.post("/decide", json=here, headers=calls.agent)).json()
        assert found["policy_rule"] != "p:inside"
        own = bearer(calls.rig.services.process_tokens.add().reveal())
        assert (await decided([f"{work}/a.txt"], own, agent="claude"))[0] == 403
        listed = (await calls.rig.client.get("/v1/policy", headers=own)).json()
        assert listed["folders"] == ["$WORKSPACE", "~/.ssh"]


def test_a_question_from_anywhere_that_carries_nothing_is_looked_up_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For those who act by themselves: a token may be on any machine, so that this disk is no answer."""
    (tmp_path / "link").symlink_to("/etc")
    monkeypatch.setattr("legation.approvals.policy.facts.real_path", lambda path: pytest.fail(path))
    call = cast("Call", SimpleNamespace(principal=ASKER))
    body = DecideBody(tool="Write", kind="edit", cwd=str(tmp_path), params={"path": "link/passwd"})
    asked = tools.remote_question(call, body, "claude")
    assert asked.action.paths == (f"{tmp_path}/link/passwd",)
    assert asked.facts.once().places(asked.action.paths) == (None,)
    with pytest.raises(InvalidParams):
        tools.remote_question(call, structs.replace(body, kind="edits"), "claude")
    person = cast("Call", SimpleNamespace(principal=replace(ASKER, kind="user")))
    with pytest.raises(Forbidden, match="it acts on this machine"):
        tools.remote_question(person, body, "claude")


async def test_a_supervisors_token_asks_for_no_agent(embedded: Calls) -> None:
    headers = await token_of(embedded.rig, "watch", "supervisor", "read", "approve")
    assert (await embedded.rig.client.post("/tool/db.read", json=NOTHING, headers=headers)).status_code == 403


# What nobody can judge, and where the looking is done.

PLACES = """
name: p
loop: off
rules:
  - {id: secrets, action: deny, when: {paths: {glob: "**/.env"}}}
  - {id: inside, tools: "*.write", action: human_approval, when: {paths: {under: $WORKSPACE}}}
  - {id: reads, action: allow, when: {paths: {under: [/marked, $WORKSPACE]}}}
"""


@pytest.fixture
async def placed(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, PLACES) as made:
        yield made


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that look on the disk for what the calls of a test name."""
    found: set[int] = set()

    def watched(look: Callable[..., object]) -> Callable[..., object]:
        def seen(path: object, *more: object, **options: object) -> object:
            if isinstance(path, str) and path.startswith(("/marked", "/srv/project")):
                found.add(threading.get_ident())
            return look(path, *more, **options)

        return seen

    for name in ("open", "lstat", "stat", "readlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return found


async def test_a5_no_path_of_a_call_is_looked_up_on_the_loop(placed: Calls, looking: set[int]) -> None:
    paths = [f"/marked/{at}/../{at}/a" for at in range(100)]
    body = {"tool": "t", "kind": "read", "params": {"paths": paths}, "cwd": "/marked/x/.."}
    client, loops = placed.rig.client, threading.get_ident()
    asked = await client.post("/decide", json=body, headers=placed.agent)
    assert asked.json()["action"] == "allow"
    assert len(looking) >= 1
    assert loops not in looking
    looking.clear()
    reader = await placed.rig.bearer(placed.rig.people["viewer"], "read")
    told = await client.post("/v1/policy/explain", json={**body, "agent": "claude"}, headers=reader)
    assert told.json()["steps"][-1]["outcome"] == "matches"
    assert len(looking) >= 1
    assert loops not in looking


async def test_a5_nor_one_of_a_call_that_waits_and_is_lifted_by_a_grant(
    placed: Calls, looking: set[int]
) -> None:
    services = placed.rig.services
    await add_asker(services.database, ASKER.id)
    approver = DoorApprover(services.door, ASKER)

    def ask(at: int) -> Ask:
        action = Action(
            agent="claude", tool="fs.write", kind="edit", params={"at": at}, paths=(f"/srv/project/{at}/a",)
        )
        asked = Ask(id=f"apr_{at}", session_id="s", action=action, options=(), title="t", asked_at=0)
        return structs.replace(asked, cwd="/srv/project", home="/home/you")

    waiting = asyncio.create_task(approver.rule(ask(1)))
    await placed.waiting()
    grants, now = services.grants, placed.rig.clock.now_ms()
    new = NewGrant(agent="*", tools="*", kinds=["edit"], duration=60)
    person = await placed.rig.principal(placed.rig.people["approver"])
    giving = services.database.transact(
        grants.give, person, new, grant=new_grant_id(now), now_ms=now, session="s"
    )
    await services.inbox.granting("local", giving, session="s")
    assert (await asyncio.wait_for(waiting, LIMIT)).by.startswith("grant:")
    assert (await approver.rule(ask(2))).by.startswith("grant:")
    assert len(looking) >= 1
    assert threading.get_ident() not in looking


@pytest.mark.parametrize(
    "params",
    [
        {"paths": [f"/marked/{'a/' * 400}{at}" for at in range(1000)]},
        {"paths": [f"/marked/{at}" for at in range(MAX_PLACES + 1)]},
        {"commands": ["ls"] * (MAX_PLACES + 1)},
        {"x": [{"url": f"https://a.test/{at}"} for at in range(MAX_PLACES + 1)]},
    ],
    ids=["long", "many", "commands", "urls"],
)
async def test_a5_more_places_than_can_be_judged_are_400_and_none_is_looked_up(
    placed: Calls, looking: set[int], params: dict[str, object]
) -> None:
    reader = await placed.rig.bearer(placed.rig.people["viewer"], "read")
    for path, headers, more in (
        ("/decide", placed.agent, {"tool": "t"}),
        ("/v1/policy/explain", reader, {"tool": "t", "agent": "claude"}),
        ("/tool/db.read", placed.agent, {}),
    ):
        answer = await placed.rig.client.post(path, json={**more, "params": params}, headers=headers)
        assert answer.status_code == 400, path
        assert answer.json()["detail"].startswith("cannot judge a tool call of claude")
    assert not looking
    assert (await placed.recorded())["trace_step"] == 0


async def test_a5_one_caller_asks_only_so_often(placed: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "DECISIONS", Limit(2, 3600))
    monkeypatch.setattr(policy, "EXPLANATIONS", Limit(2, 3600))
    reader = await placed.rig.bearer(placed.rig.people["viewer"], "read")
    for path, headers in (("/decide", placed.agent), ("/v1/policy/explain", reader)):
        body = {"tool": "t", "params": {}} | ({} if path == "/decide" else {"agent": "claude"})
        found = [
            (await placed.rig.client.post(path, json=body, headers=headers)).status_code for _ in range(3)
        ]
        assert found == [200, 200, 429]


async def test_b2_a_decoy_is_asked_about_or_judged(placed: Calls) -> None:
    async def verdict(**params: object) -> str:
        body = {"tool": "t", "kind": "other", "params": params, "cwd": "/marked/work"}
        answer = await placed.rig.client.post("/decide", json=body, headers=placed.agent)
        return str(answer.json()["action"])

    assert await verdict(path="a") == "allow"
    assert await verdict(path="a", whither="/etc/passwd") == "human_approval"
    assert await verdict(path="a", filename="/etc/passwd") == "deny"  # nothing is said of it
    assert await verdict(paths=["a", {"p": "/etc/passwd"}]) == "deny"


async def test_b2_the_owner_of_a_tool_says_what_its_arguments_are(placed: Calls) -> None:
    async def verdict(**params: object) -> str:
        body = {"tool": "put.declared", "params": params}
        answer = await placed.rig.client.post("/decide", json=body, headers=placed.agent)
        return str(answer.json()["action"])

    assert await verdict(whither="/marked/a") == "allow"
    assert await verdict(whither="/etc/passwd") == "deny"
    assert await verdict(whither="/marked/a", note="/etc/passwd") == "allow"
    assert await verdict(whither="/marked/a", other="/etc/passwd") == "human_approval"
    called = await placed.call("put.declared", {"params": {"whither": "/etc/passwd"}})
    assert called.status_code == 403


async def test_b2_other_arguments_are_read_as_the_owner_of_the_tool_declared_them(placed: Calls) -> None:
    waiting = placed.start("put.declared", {"params": {"whither": "/marked/a", "other": "/marked/b"}})
    approval = await placed.waiting()
    refused = await placed.answer(approval.id, params={"whither": "/etc/.env"})
    assert refused.status_code == 403
    assert (await placed.answer(approval.id, params={"whither": "/marked/c"})).status_code == 200
    answer = (await asyncio.wait_for(waiting, LIMIT)).json()
    assert answer["result"] == {"got": {"whither": "/marked/c"}}


async def test_b2_the_folder_of_a_question_is_the_one_that_its_path_leads_to(
    placed: Calls, tmp_path: Path
) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    body = {"tool": "t", "kind": "read", "params": {"path": "a"}, "cwd": f"{tmp_path}/link/.."}
    reader = await placed.rig.bearer(placed.rig.people["viewer"], "read")
    answer = await placed.rig.client.post(
        "/v1/policy/explain", json={**body, "agent": "claude"}, headers=reader
    )
    assert "/link" not in answer.json()["steps"][-1]["why"]
    assert answer.json()["action"] == "allow"
    for cwd in ("a/b", "/a\0b"):
        bad = await placed.rig.client.post("/decide", json={**body, "cwd": cwd}, headers=placed.agent)
        assert bad.status_code == 400
