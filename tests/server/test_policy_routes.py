"""The policies over HTTP: what is in force, why it decides so, what another would have, and which rules do the work."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server import rig as rigs
from tests.server.rig import BOTH, Rig, open_rig

from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.request import DoorRequest
from legation.server.routes import ROUTES, policy, traces
from legation.wire.action import Action

pytestmark = pytest.mark.heavy

RULES = """
name: house
agent: "*"
loop: off
rules:
  - {id: reads, kind: read, action: allow}
  - {id: mail, tools: "mail.*", action: supervisor}
  - {id: rm, kind: execute, when: {field: command, op: glob, value: "rm *"}, action: deny, message: keep it}
"""
STRICTER = """
name: house
agent: "*"
rules:
  - {id: inside, kind: read, when: {field: paths, op: under, value: $WORKSPACE}, action: allow}
"""


@pytest.fixture
def surfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = (traces.routes, policy.routes)
    monkeypatch.setattr(rigs, "ROUTES", (*ROUTES, *(each for each in mine if each not in ROUTES)))


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path, surfaces: None) -> AsyncIterator[Rig]:
    (tmp_path / "policy.yaml").write_text(RULES)
    (tmp_path / "data").mkdir()
    async with open_rig(
        request.param, tmp_path / "data", request, policy=str(tmp_path / "policy.yaml")
    ) as made:
        yield made


@pytest.fixture
async def closed(request: pytest.FixtureRequest, tmp_path: Path, surfaces: None) -> AsyncIterator[Rig]:
    """With the starter policies, and no contents for programs."""
    async with open_rig("sqlite", tmp_path, request, expose_content="false") as made:
        yield made


async def get(rig: Rig, path: str) -> httpx2.Response:
    return await rig.client.get(path, headers=await rig.bearer(rig.people["viewer"], "read"))


async def post(rig: Rig, path: str, **body: Any) -> httpx2.Response:
    return await rig.client.post(path, json=body, headers=await rig.bearer(rig.people["viewer"], "read"))


async def decide(rig: Rig, path: str) -> str:
    """Through the real door."""
    request = DoorRequest(
        principal=await rig.principal(rig.people["operator"]),
        action=Action(agent="claude", tool="Read", kind="read", params={"file_path": path}, paths=(path,)),
        facts=Facts(workspace="/w", cwd="/w", home="/h", resolve=as_named),
    )
    return (await rig.services.door.decide(request)).trace_id


async def test_what_is_in_force_is_told_and_why_an_edit_is_not(rig: Rig, tmp_path: Path) -> None:
    info = (await get(rig, "/v1/policy")).json()
    assert info["version"] == rig.services.policies.current.version
    assert [(each["name"], each["agent"], each["rules"]) for each in info["policies"]] == [
        ("house", "*", ["reads", "mail", "rm"])
    ]
    assert info["policies"][0]["place"].endswith("policy.yaml:2")
    assert info["source"].endswith("policy.yaml")
    assert info["problem"] is None
    (tmp_path / "policy.yaml").write_text(RULES.replace("deny", "denny"))
    for _ in range(2):  # at the first look it may still be being written
        rig.services.policies.poll()
    after = (await get(rig, "/v1/policy")).json()
    assert "did you mean 'deny'" in after["problem"]
    assert after["version"] == info["version"]


async def test_explain_says_what_would_happen_and_why_rule_by_rule(rig: Rig) -> None:
    body = {"tool": "Bash", "kind": "execute", "agent": "claude", "params": {"command": "rm -r x"}}
    found = (await post(rig, "/v1/policy/explain", **body)).json()
    assert (found["action"], found["policy_rule"], found["message"]) == ("deny", "house:rm", "keep it")
    assert [(step["rule"], step["outcome"]) for step in found["steps"]] == [
        ("reads", "no match"), ("mail", "no match"), ("rm", "matches")
    ]  # fmt: skip
    assert found["policy_version"] == rig.services.policies.current.version
    assert (await get(rig, "/traces")).json() == []  # nothing was recorded


async def test_explain_reads_a_line_as_the_door_does(rig: Rig) -> None:
    line = "cat <<EOF\n$(rm -r x)\nEOF"
    body = {"tool": "Bash", "kind": "execute", "agent": "claude", "params": {"command": line}}
    found = (await post(rig, "/v1/policy/explain", **body)).json()
    assert (found["action"], found["policy_rule"]) == ("deny", "house:rm")
    assert "rm -r x" in {step["part"] for step in found["steps"]}


@pytest.mark.parametrize(
    "wrong",
    [{"agent": None}, {"agent": "a*"}, {"kind": "nonsense"}, {"cwd": "here"}, {"tool": ""}, {"typo": 1}],
)
async def test_a_question_that_is_not_understood_is_refused(closed: Rig, wrong: dict[str, Any]) -> None:
    body = {"tool": "Read", "agent": "claude", "params": {}} | wrong
    assert (await post(closed, "/v1/policy/explain", **body)).status_code == 400


async def test_d18_an_agent_asks_for_itself_alone(rig: Rig) -> None:
    body = {"tool": "Read", "kind": "read", "params": {"path": "/x"}}
    own = await rig.bearer(rig.people["owner"], "read", kind="agent")  # of the agent `test`
    allowed = await rig.client.post("/v1/policy/explain", json=body, headers=own)
    refused = await rig.client.post("/v1/policy/explain", json=body | {"agent": "codex"}, headers=own)
    assert (allowed.status_code, allowed.json()["action"], refused.status_code) == (200, "allow", 403)


async def test_explain_knows_grants(rig: Rig) -> None:
    from legation.approvals.grants import new_grant_id
    from legation.wire.api.approvals import NewGrant

    body = {"tool": "mail.send", "agent": "claude", "params": {}}
    assert (await post(rig, "/v1/policy/explain", **body)).json()["grant"] is None
    person = await rig.principal(rig.people["owner"])
    now = rig.clock.now_ms()
    await rig.services.database.transact(
        rig.services.grants.give,
        person,
        NewGrant(agent="claude", tools="mail.*", duration=60),
        grant=new_grant_id(now),
        now_ms=now,
    )
    found = (await post(rig, "/v1/policy/explain", **body)).json()
    assert found["action"] == "supervisor"
    assert found["grant"].startswith("grt_")


async def test_a_replay_of_what_the_door_recorded(rig: Rig) -> None:
    inside, outside = await decide(rig, "/w/a"), await decide(rig, "/etc/passwd")
    found = (await post(rig, "/v1/policy/replay", policy=STRICTER)).json()
    assert (found["calls"], found["unknown"], found["differing"]) == (2, 0, 1)
    assert found["counts"] == {"allow -> deny": 1}
    assert [(each["trace_id"], each["was_rule"], each["now_rule"]) for each in found["changed"]] == [
        (outside, "house:reads", "default:no-match")
    ]
    assert inside != outside
    same = (await post(rig, "/v1/policy/replay", policy=RULES)).json()
    assert (same["differing"], same["version"]) == (0, rig.services.policies.current.version)


async def test_a_replay_is_of_the_wanted_calls(rig: Rig) -> None:
    await decide(rig, "/etc/1")
    rig.clock.advance(3600)
    await decide(rig, "/etc/2")
    counted = [
        (await post(rig, "/v1/policy/replay", policy=STRICTER, **wanted)).json()["calls"]
        for wanted in ({}, {"since": "10m"}, {"limit": 1}, {"agent": "codex"}, {"tool": "Read"})
    ]
    assert counted == [2, 1, 1, 0, 2]


async def test_a_broken_policy_text_is_refused_with_every_problem_and_its_line(rig: Rig) -> None:
    broken = STRICTER.replace("allow", "alow").replace("under", "undr")
    answer = await post(rig, "/v1/policy/replay", policy=broken)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "legation/invalid-params")
    problems = problem["data"]["problems"]
    assert len(problems) == 2
    assert all(line.startswith("policy:5: ") for line in problems)
    assert (await post(rig, "/v1/policy/replay", policy=":\n\t-")).status_code == 400
    assert (await post(rig, "/v1/policy/replay", policy=STRICTER, since="soon")).status_code == 400


async def test_hidden_contents_cannot_be_asked_for_by_rules(closed: Rig) -> None:
    owner = closed.people["owner"]
    supervisor = await closed.bearer(owner, "read", "approve", kind="supervisor")
    body = {"policy": STRICTER}
    refused = await closed.client.post("/v1/policy/replay", json=body, headers=supervisor)
    allowed = await closed.client.post("/v1/policy/replay", json=body, headers=await closed.cookie(owner))
    assert (refused.status_code, allowed.status_code) == (403, 200)


async def test_hits_tell_which_rules_do_the_work(rig: Rig) -> None:
    await decide(rig, "/w/a")
    rig.clock.advance(7200)
    await decide(rig, "/w/b")
    every = {each["policy_rule"]: each for each in (await get(rig, "/v1/policy/hits")).json()}
    assert list(every) == ["house:reads", "house:mail", "house:rm", "default:no-match"]
    assert (every["house:reads"]["hits"], every["house:reads"]["action"]) == (2, "allow")
    assert every["house:mail"] == {
        "policy_rule": "house:mail", "action": "supervisor", "hits": 0, "last_at": None
    }  # fmt: skip
    (recent, *_) = (await get(rig, "/v1/policy/hits?since=1h")).json()
    assert (recent["policy_rule"], recent["hits"]) == ("house:reads", 1)
    assert (await get(rig, "/v1/policy/hits?since=x")).status_code == 400


async def test_the_starter_is_told_by_its_name(closed: Rig) -> None:
    assert (await get(closed, "/v1/policy")).json()["source"] == "starter careful"


async def test_one_replay_at_a_time_so_that_threads_are_left_for_everything_else(closed: Rig) -> None:
    owner = await closed.cookie(closed.people["owner"])
    async with closed.services.replaying:
        refused = await closed.client.post("/v1/policy/replay", json={"policy": STRICTER}, headers=owner)
    again = await closed.client.post("/v1/policy/replay", json={"policy": STRICTER}, headers=owner)
    assert (refused.status_code, again.status_code) == (429, 200)


async def test_a_replay_ends_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await decide(rig, "/w/a")
    monkeypatch.setattr(policy, "REPLAY_SECONDS", 0.0)
    answer = await post(rig, "/v1/policy/replay", policy=STRICTER)
    assert answer.status_code == 504
    assert not rig.services.replaying.locked()
