"""`POST /tool/{name}` and `POST /decide`, over a real backend, on both databases."""

import asyncio
import logging
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.approvals.doors import ASKER
from tests.approvals.installation import add_asker
from tests.gateway.backend import Backend, Reply
from tests.gateway.backend import backend as open_backend
from tests.server.rig import BOTH
from tests.server.tool_calls import LIMIT, POLICY, Calls, Leaving, open_calls, token_of

from legation.approvals.grants import new_grant_id
from legation.approvals.request import EffectToken
from legation.approvals.transitions import get
from legation.gateway.tools import trace_id_of
from legation.host.agent import Where
from legation.host.requests.door_approver import DoorApprover
from legation.server.routes import policy, tools
from legation.store.counters import Limit
from legation.wire.action import MAX_PLACES, Action
from legation.wire.api.approvals import NewGrant
from legation.wire.ask import Ask

pytestmark = pytest.mark.heavy

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NOTHING: dict[str, object] = {"params": {}}


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made


@pytest.fixture(params=BOTH)
async def calls(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls(request.param, tmp_path, request, backend, monkeypatch) as made:
        yield made


@pytest.fixture
async def embedded(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch) as made:
        yield made


@pytest.fixture
async def many(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    """One agent may have as many questions open as it likes."""
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, pending_per_agent=1000) as made:
        yield made


# What passes.


async def test_an_allowed_call_comes_back_with_its_result(calls: Calls) -> None:
    answer = await calls.call("db.read", {"params": {"id": 5}}, x_session_id="ses_1")
    assert answer.status_code == 200
    found = answer.json()
    assert found == {
        "result": {"got": {"id": 5}},
        "trace_id": found["trace_id"],
        "approval_id": None,
        "policy_rule": "p:reads",
        "decided_by": "policy",
    }
    trace = await calls.trace(found["trace_id"])
    assert [step.step for step in trace.steps] == ["proposed", "decided", "executed", "returned"]
    assert (trace.agent_id, trace.tool, trace.params) == ("claude", "db.read", {"id": 5})
    assert (trace.session_id, trace.status_code, trace.result) == ("ses_1", 200, {"got": {"id": 5}})
    (seen,) = calls.backend.seen
    assert seen.headers["legation-trace-id"] == found["trace_id"]
    assert (
        seen.key
        == EffectToken(found["trace_id"], None, "local").key
        != EffectToken(found["trace_id"], None, "other").key
    )
    await calls.must_verify()


async def test_d14_approving_over_http_executes_the_call_and_its_caller_gets_the_result(calls: Calls) -> None:
    waiting = calls.start("db.write", {"params": {"path": "notes.txt", "text": "hello"}})
    approval = await calls.waiting()
    assert calls.backend.seen == []
    assert (await calls.answer(approval.id, reasoning="it is mine")).status_code == 200
    answer = await asyncio.wait_for(waiting, LIMIT)
    assert answer.status_code == 200
    found = answer.json()
    assert found["result"] == {"got": {"path": "notes.txt", "text": "hello"}}
    assert (found["approval_id"], found["policy_rule"]) == (approval.id, "p:asks")
    assert found["decided_by"] == f"user:{calls.rig.people['approver']}"
    assert calls.backend.counts() == {approval.id: 1}
    steps = [step for step, _ in await calls.steps(found["trace_id"])]
    assert steps == ["proposed", "decided", "resolved", "consumed", "executed", "returned"]
    assert (await calls.answer(approval.id)).status_code == 409
    await calls.must_verify()


async def test_d3_a_grant_holds_on_every_way_in(calls: Calls, tmp_path: Path) -> None:
    """`POST /decide`, `POST /tool/{name}` and the permission of a session; and it lifts no denial on any of them."""
    given = {"agent": "claude", "tools": "db.*", "duration": "5m"}
    made = await calls.rig.client.post("/grants", json=given, headers=calls.person)
    grant = made.json()["id"]
    approver = DoorApprover(
        calls.rig.services.door, where=lambda _: Where(str(tmp_path)), requester_of=lambda _: ASKER
    )
    for tool, is_lifted in (("db.write", True), ("db.post", True), ("db.drop", False)):
        considered = await calls.rig.client.post(
            "/decide", json={"tool": tool, "params": {}}, headers=calls.agent
        )
        assert considered.json()["grant"] == (grant if is_lifted else None)
        called = await calls.call(tool, NOTHING)
        assert called.status_code == (200 if is_lifted else 403)
        action = Action(agent="claude", tool=tool, params={})
        ask = Ask(id=f"apr_{tool}", session_id="ses_1", action=action, options=(), title="t", asked_at=0)
        ruling = await asyncio.wait_for(approver.rule(ask), LIMIT)
        by = f"grant:{grant}" if is_lifted else "policy"
        assert (ruling.passed, ruling.by) == (is_lifted, by)
        decided_by = called.json()["decided_by"] if is_lifted else called.json()["data"]["decided_by"]
        assert decided_by == by
    assert calls.asked.empty()


async def test_a_grant_of_a_session_is_not_for_who_only_names_it(calls: Calls, tmp_path: Path) -> None:
    """An agent's credential could name any session, and with it the `bypass` that a person gave to another."""
    services = calls.rig.services
    person = await calls.rig.principal(calls.rig.people["owner"])
    new = NewGrant(agent="claude", tools="*", duration=300)
    now = calls.rig.clock.now_ms()
    given = await services.database.transact(
        services.grants.give, person, new, grant="grt_1", now_ms=now, session="ses_1"
    )
    asked = {"tool": "db.write", "params": {}, "session_id": "ses_1"}
    considered = await calls.rig.client.post("/decide", json=asked, headers=calls.agent)
    assert considered.json()["grant"] is None
    waiting = calls.start("db.write", NOTHING, x_session_id="ses_1")
    await calls.answer((await calls.waiting()).id, "deny")
    assert (await asyncio.wait_for(waiting, LIMIT)).status_code == 403
    approver = DoorApprover(services.door, where=lambda _: Where(str(tmp_path)), requester_of=lambda _: ASKER)
    action = Action(agent="claude", tool="db.write", params={})
    ask = Ask(id="apr_1", session_id="ses_1", action=action, options=(), title="t", asked_at=0)
    assert (await asyncio.wait_for(approver.rule(ask), LIMIT)).by == f"grant:{given.id}"


async def test_a_call_goes_on_with_the_arguments_that_were_approved(embedded: Calls) -> None:
    waiting = embedded.start("db.write", {"params": {"amount": 900}})
    approval = await embedded.waiting()
    edited = await embedded.answer(approval.id, params={"amount": 100})
    assert edited.status_code == 200
    answer = (await asyncio.wait_for(waiting, LIMIT)).json()
    assert answer["result"] == {"got": {"amount": 100}}
    assert embedded.backend.counts() == {edited.json()["id"]: 1}
    assert answer["approval_id"] == edited.json()["id"]


async def test_200_calls_that_wait_at_once_are_answered_in_any_order_each_with_its_own(
    many: Calls,
) -> None:
    waiting = {n: many.start("db.write", {"params": {"n": n}}) for n in range(200)}
    approvals = [await many.waiting() for _ in waiting]
    random.Random(7).shuffle(approvals)
    refused = {approval.id for approval in approvals[:50]}
    for approval in approvals:
        verb = "deny" if approval.id in refused else "approve"
        assert (await many.answer(approval.id, verb)).status_code == 200
    answers = {n: await asyncio.wait_for(task, LIMIT) for n, task in waiting.items()}
    passed = {n: answer.json() for n, answer in answers.items() if answer.status_code == 200}
    assert len(passed) == 150
    assert all(found["result"] == {"got": {"n": n}} for n, found in passed.items())
    denied = [answer.json() for answer in answers.values() if answer.status_code == 403]
    assert {found["data"]["approval_id"] for found in denied} == refused
    assert many.backend.counts() == {found["approval_id"]: 1 for found in passed.values()}
    await many.must_verify()


# What does not.


async def test_a_denied_call_is_403_with_the_message_for_the_agent(calls: Calls) -> None:
    answer = await calls.call("db.drop", NOTHING)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    found = answer.json()
    assert (found["code"], found["detail"]) == ("legation/forbidden", "dropping is for people")
    assert found["data"] == {
        "trace_id": found["data"]["trace_id"],
        "approval_id": None,
        "policy_rule": "p:never",
        "decided_by": "policy",
        "outcome": "denied",
    }
    assert [step for step, _ in await calls.steps(found["data"]["trace_id"])] == ["proposed", "decided"]
    assert calls.backend.seen == []


async def test_a_person_who_denies_is_heard_by_the_agent(calls: Calls) -> None:
    waiting = calls.start("db.write", NOTHING)
    approval = await calls.waiting()
    await calls.answer(approval.id, "deny", message="ask me on Monday", reasoning="it is late")
    answer = await asyncio.wait_for(waiting, LIMIT)
    assert (answer.status_code, answer.json()["detail"]) == (403, "ask me on Monday")
    data = answer.json()["data"]
    assert (data["approval_id"], data["outcome"]) == (approval.id, "denied")
    assert data["decided_by"] == f"user:{calls.rig.people['approver']}"
    assert calls.backend.seen == []


async def test_silence_is_408_and_no_consent(calls: Calls) -> None:
    waiting = calls.start("db.write", NOTHING)
    approval = await calls.waiting()
    calls.rig.clock.advance(601)  # whoever sleeps till then wakes up, and whoever is about to, does not sleep
    answer = await asyncio.wait_for(waiting, LIMIT)
    assert answer.status_code == 408
    found = answer.json()
    assert (found["status"], found["code"], found["data"]["outcome"]) == (408, "legation/timeout", "expired")
    assert (await calls.answer(approval.id)).status_code == 409
    assert calls.backend.seen == []


@pytest.mark.parametrize(
    ("limit", "retry"), [("max_per_minute: 1", True), ("max_total: 1", False)], ids=["a minute", "in all"]
)
async def test_a_limit_is_429_and_says_when_to_come_back_if_that_helps(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    retry: bool,
) -> None:
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, f"{POLICY}{limit}\n") as calls:
        assert (await calls.call("db.read", NOTHING)).status_code == 200
        answer = await calls.call("db.read", NOTHING)
        assert (answer.status_code, answer.json()["code"]) == (429, "legation/rate-limited")
        assert ("retry-after" in answer.headers) == retry
        if retry:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["data"]["outcome"] == "denied"
        assert len(backend.seen) == 1


async def test_what_somebody_took_back_is_409_and_may_be_asked_again(embedded: Calls) -> None:
    waiting = embedded.start("db.write", NOTHING, x_session_id="ses_1")
    await embedded.waiting()
    await embedded.rig.services.inbox.cancel_session("local", "ses_1", None, "session-closed")
    answer = await asyncio.wait_for(waiting, LIMIT)
    assert (answer.status_code, answer.json()["data"]["outcome"]) == (409, "cancelled")
    assert answer.json()["detail"].endswith("ask again")


async def test_when_the_door_closes_whoever_waits_gets_503(embedded: Calls) -> None:
    waiting = [embedded.start("db.write", {"params": {"n": n}}) for n in range(5)]
    approvals = [await embedded.waiting() for _ in waiting]
    await embedded.rig.services.door.close()
    for task in waiting:
        answer = await asyncio.wait_for(task, LIMIT)
        assert (answer.status_code, answer.json()["code"]) == (503, "legation/unavailable")
    for approval in approvals:
        assert ("cancelled", "stopping") in await embedded.steps(approval.trace_id)
    assert (await embedded.call("db.read", NOTHING)).status_code == 503
    assert embedded.backend.seen == []


# A tool that fails.


async def test_a_tool_that_refuses_is_502_and_its_words_are_told_to_the_caller_alone(
    embedded: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    embedded.backend.answers["/read"] = lambda _: Reply(422, b"canary: no such row", "text/plain")
    answer = await embedded.call("db.read", {"params": {"q": "canary-argument"}})
    assert (answer.status_code, answer.headers["content-type"]) == (502, "application/problem+json")
    found = answer.json()
    assert found["detail"] == "cannot get a result of db.read: it answered 422: canary: no such row"
    assert (found["data"]["status"], found["data"]["outcome"]) == (422, "approved")
    trace = await embedded.trace(found["data"]["trace_id"])
    assert (trace.status_code, trace.error) == (502, "it answered 422: canary: no such row")
    assert found["data"]["trace_id"] in caplog.text  # where to look it up, for whoever may
    assert "canary" not in caplog.text


async def test_a_tool_that_is_too_slow_is_504_and_its_outcome_is_said_to_be_unknown(embedded: Calls) -> None:
    embedded.backend.free.clear()
    answer = await embedded.call("slow.read", NOTHING)
    assert (answer.status_code, answer.json()["code"]) == (504, "legation/timeout")
    assert "not known" in answer.json()["detail"]
    assert (await embedded.trace(answer.json()["data"]["trace_id"])).status_code == 504
    assert len(embedded.backend.seen) == 1


@pytest.mark.parametrize("status", [200, 500])
async def test_no_secret_of_a_header_is_answered_or_kept(embedded: Calls, status: int) -> None:
    embedded.backend.answers["/keyed"] = lambda seen: Reply(
        status, f"you sent {seen.headers['authorization']}".encode(), "text/plain"
    )
    answer = await embedded.call("keyed.read", NOTHING)
    assert embedded.backend.seen[0].headers["authorization"] == "Bearer sk-KEPT-very-secret"
    assert "[redacted:TEST_TOOL_KEY]" in answer.text
    trace_id = answer.json().get("trace_id") or answer.json()["data"]["trace_id"]
    trace = await embedded.trace(trace_id)
    assert "[redacted:TEST_TOOL_KEY]" in f"{trace.result}{trace.error}"
    assert "KEPT" not in f"{answer.text}{trace}"


# A caller that leaves.


async def test_d13_a_caller_that_leaves_takes_the_question_along(calls: Calls) -> None:
    caller = Leaving(calls, "db.write", NOTHING)
    approval = await calls.waiting()
    await caller.leave()
    assert caller.status == 499
    await calls.rig.services.inbox.settle()
    while (await calls.rig.services.database.read(get, "local", approval.id)).status == "pending":
        await asyncio.sleep(0)  # the door's own task takes it back, within the test's limit
    answer = await calls.answer(approval.id)
    assert answer.status_code == 409
    assert await calls.steps(approval.trace_id) == [
        ("proposed", None),
        ("decided", None),
        ("cancelled", "caller-gone"),
    ]
    assert calls.backend.seen == []


async def test_an_effect_that_began_is_brought_to_its_end_without_its_caller(embedded: Calls) -> None:
    embedded.backend.free.clear()
    caller = Leaving(embedded, "db.read", {"params": {"n": 1}})
    await asyncio.to_thread(embedded.backend.wait_for, 1)
    await caller.leave()
    embedded.backend.free.set()
    trace_id = embedded.backend.seen[0].headers["legation-trace-id"]
    while (await embedded.trace(trace_id)).result is None:
        await asyncio.sleep(0.01)
    assert (await embedded.trace(trace_id)).result == {"got": {"n": 1}}
    assert len(embedded.backend.seen) == 1


# Who asks.


async def test_d18_an_agents_token_asks_for_that_agent_only(calls: Calls) -> None:
    before = await calls.recorded()
    for path, body in (("/tool/db.read", {}), ("/decide", {"tool": "db.read"})):
        named = {"params": {}, "agent": "codex", **body}
        answer = await calls.rig.client.post(path, json=named, headers=calls.agent)
        assert answer.status_code == 403
        same = await calls.rig.client.post(path, json={**named, "agent": "claude"}, headers=calls.agent)
        assert same.status_code == 200
    assert len(calls.backend.seen) == 1
    agents = {row["agent"] for row in await calls.rig.rows("select agent from trace_step")}
    assert agents == {"claude"}
    assert before["trace_step"] == 0


async def test_any_other_credential_says_for_whom_it_asks(calls: Calls) -> None:
    operator = await calls.rig.bearer(calls.rig.people["operator"])
    for path, body in (("/tool/db.read", {}), ("/decide", {"tool": "db.read"})):
        silent = await calls.rig.client.post(path, json={"params": {}, **body}, headers=operator)
        assert (silent.status_code, "name it with `agent`" in silent.json()["detail"]) == (400, True)
        malformed = await calls.rig.client.post(
            path, json={"params": {}, "agent": "cla*", **body}, headers=operator
        )
        assert malformed.status_code == 400
        named = await calls.rig.client.post(
            path, json={"params": {}, "agent": "codex", **body}, headers=operator
        )
        assert named.status_code == 200
    for role in ("approver", "viewer"):
        headers = await calls.rig.bearer(calls.rig.people[role])
        answer = await calls.rig.client.post(
            "/tool/db.read", json={"params": {}, "agent": "codex"}, headers=headers
        )
        assert answer.status_code == 403
    assert len(calls.backend.seen) == 1


async def test_an_agents_token_calls_and_does_nothing_else(embedded: Calls) -> None:
    waiting = embedded.start("db.write", NOTHING)
    approval = await embedded.waiting()
    client = embedded.rig.client
    for verb in ("approve", "deny", "escalate", "claim"):
        for headers in (
            embedded.agent,
            await embedded.agents_token("claude", "read", "call", "operate", "approve"),
        ):
            answer = await client.post(f"/approvals/{approval.id}/{verb}", json={}, headers=headers)
            assert answer.status_code == 403
    new = {"label": "another", "kind": "agent"}
    assert (await client.post("/v1/tokens", json=new, headers=embedded.agent)).status_code == 403
    for path in ("/approvals", "/v1/tokens", "/v1/streams", "/v1/audit"):
        assert (await client.get(path, headers=embedded.agent)).status_code == 403
    await embedded.answer(approval.id, "deny")
    assert (await asyncio.wait_for(waiting, LIMIT)).status_code == 403


async def test_the_label_of_an_agents_token_is_a_plain_name_and_it_never_manages(embedded: Calls) -> None:
    owner = await embedded.rig.cookie(embedded.rig.people["owner"])
    client = embedded.rig.client
    for label in ("my agent", "*", "a/b", "-x", "ä"):
        answer = await client.post("/v1/tokens", json={"label": label, "kind": "agent"}, headers=owner)
        assert (answer.status_code, "write letters" in answer.json()["detail"]) == (400, True)
        plain = await client.post("/v1/tokens", json={"label": label, "scopes": ["read"]}, headers=owner)
        assert plain.status_code == 201  # of another kind it is but a label
        embedded.rig.clock.advance(60)
    made = await client.post("/v1/tokens", json={"label": "bot@ci.example", "kind": "agent"}, headers=owner)
    assert made.json()["token"]["scopes"] == ["call"]
    body = {"label": "bot", "kind": "agent", "scopes": ["call", "manage"]}
    answer = await client.post("/v1/tokens", json=body, headers=owner)
    assert (answer.status_code, answer.json()["data"]) == (400, {"scopes": ["manage"]})


async def test_an_older_token_with_another_label_is_an_agent_all_the_same(embedded: Calls) -> None:
    headers = await embedded.agents_token("old", "call", "operate")
    await embedded.rig.rows("update api_token set label = 'my old agent' where label = 'old' returning id")
    body = {"params": {}, "agent": "claude"}
    client = embedded.rig.client
    assert (await client.post("/tool/db.read", json=body, headers=headers)).status_code == 403
    found = (await client.post("/tool/db.read", json=NOTHING, headers=headers)).json()
    assert (await embedded.trace(found["trace_id"])).agent_id.startswith("tok_")


# What is asked.


@pytest.mark.parametrize(
    "body",
    [
        {"amount": 5},
        {},
        {"params": None},
        {"params": [1]},
        {"params": "x"},
        {"params": {}, "amount": 5},
        {"params": {}, "session": "x"},
        {"params": {}, "agent": 5},
        [],
        "x",
        None,
    ],
)
async def test_d19_bare_arguments_are_400_and_nothing_runs(embedded: Calls, body: object) -> None:
    before = await embedded.recorded()
    assert (await embedded.call("db.read", body)).status_code == 400
    assert await embedded.recorded() == before
    assert embedded.backend.seen == []


async def test_a_body_that_is_no_json_runs_nothing(embedded: Calls) -> None:
    for content in (
        b"",
        b"{",
        b'{"params": {}} {}',
        b'{"params": {"a": NaN}}',
        b'{"params": {"a": "\\ud800"}}',
    ):
        answer = await embedded.rig.client.post(
            "/tool/db.read", content=content, headers={**embedded.agent, "content-type": "application/json"}
        )
        assert answer.status_code == 400
    deep = b'{"params": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"
    answer = await embedded.rig.client.post(
        "/tool/db.read", content=deep, headers={**embedded.agent, "content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert embedded.backend.seen == []


@pytest.mark.parametrize("name", ["db.reads", "db", "DB.read", "db.read%20", "mcp__db__read", "*"])
async def test_an_unknown_tool_is_404_before_anything_is_counted(embedded: Calls, name: str) -> None:
    before = await embedded.recorded()
    assert (await embedded.call(name, NOTHING)).status_code == 404
    assert await embedded.recorded() == before


async def test_the_session_is_named_once(embedded: Calls) -> None:
    body = {"params": {}, "session_id": "ses_1"}
    assert (await embedded.call("db.read", body, x_session_id="ses_2")).status_code == 400
    found = (await embedded.call("db.read", body, x_session_id="ses_1")).json()
    assert (await embedded.trace(found["trace_id"])).session_id == "ses_1"
    assert (await embedded.call("db.read", {"params": {}, "session_id": "a\nb"})).status_code == 400
    assert (await embedded.call("db.read", NOTHING, x_session_id="s" * 257)).status_code == 400
    assert len(embedded.backend.seen) == 1


# Trace ids.


async def test_a_traceparent_gives_the_trace_its_id_and_the_tool_hears_of_it(embedded: Calls) -> None:
    found = (await embedded.call("db.read", NOTHING, traceparent=PARENT)).json()
    assert found["trace_id"] == TRACE
    assert trace_id_of(embedded.backend.seen[0].headers["traceparent"]) == TRACE


async def test_the_next_call_of_the_same_w3c_trace_gets_an_id_of_its_own(calls: Calls) -> None:
    answers = await asyncio.gather(
        *(calls.call("db.read", {"params": {"n": n}}, traceparent=PARENT) for n in range(3))
    )
    later = await calls.call("db.read", {"params": {"n": 3}}, traceparent=PARENT)
    ids = [answer.json()["trace_id"] for answer in (*answers, later)]
    assert len(set(ids)) == 4
    assert ids.count(TRACE) == 1
    for n, trace_id in enumerate(ids):
        assert (await calls.trace(trace_id)).params == {"n": n}
    await calls.must_verify()


@pytest.mark.parametrize("header", ["", "00-xyz", f"00-{'0' * 32}-00f067aa0ba902b7-01", PARENT.upper()])
async def test_a_malformed_traceparent_is_ignored(embedded: Calls, header: str) -> None:
    found = (await embedded.call("db.read", NOTHING, traceparent=header)).json()
    assert found["trace_id"] not in (TRACE, "0" * 32)


async def test_an_x_trace_id_names_one_call_and_a_second_is_refused(calls: Calls) -> None:
    answers = await asyncio.gather(*(calls.call("db.read", NOTHING, x_trace_id=TRACE) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    assert (await calls.call("db.read", NOTHING, x_trace_id=TRACE)).status_code == 409
    assert calls.backend.counts() == {EffectToken(TRACE, None).key: 1}
    await calls.must_verify()


@pytest.mark.parametrize("header", ["abc", "0" * 32, TRACE.upper(), f"{TRACE}0"])
async def test_a_malformed_x_trace_id_is_400(embedded: Calls, header: str) -> None:
    assert (await embedded.call("db.read", NOTHING, x_trace_id=header)).status_code == 400
    assert embedded.backend.seen == []


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
    where = Where("/srv/project", "/home/you")
    approver = DoorApprover(services.door, where=lambda _: where, requester_of=lambda _: ASKER)

    def ask(at: int) -> Ask:
        action = Action(
            agent="claude", tool="fs.write", kind="edit", params={"at": at}, paths=(f"/srv/project/{at}/a",)
        )
        return Ask(id=f"apr_{at}", session_id="s", action=action, options=(), title="t", asked_at=0)

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


# A flood.


@pytest.mark.parametrize("dialect", BOTH)
async def test_an_agent_has_so_many_questions_open_and_no_more(
    dialect: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_calls(dialect, tmp_path, request, backend, monkeypatch, pending_per_agent=2) as calls:
        flood = [calls.start("db.write", {"params": {"n": n}}) for n in range(12)]
        pending = [await calls.waiting(), await calls.waiting()]
        done = 0
        while done < 10:
            await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
            done = sum(each.done() for each in flood)
        refused = [each.result() for each in flood if each.done()]
        assert {each.status_code for each in refused} == {429}
        assert {each.headers["retry-after"] for each in refused} == {"30"}
        problem = refused[0].json()
        assert "wait until some are answered" in problem["detail"]
        assert (problem["data"]["limit"], problem["data"]["policy_rule"]) == ("pending", "door:pending")
        assert await calls.steps(problem["data"]["trace_id"]) == [("proposed", None), ("decided", "pending")]
        assert calls.asked.empty()
        other = await calls.agents_token("codex")
        theirs = calls.start_as(other, "db.write", {"params": {}})  # it is a limit of each agent
        pending.append(await calls.waiting())
        assert (await calls.answer(pending[0].id)).status_code == 200
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
        again = calls.start("db.write", {"params": {"n": 99}})
        pending.append(await calls.waiting())
        for approval in pending[1:]:
            assert (await calls.answer(approval.id)).status_code == 200
        answers = [each for each in await asyncio.gather(*flood, theirs, again) if each.status_code == 200]
        assert len(answers) == len(backend.seen) == 4


@pytest.mark.parametrize("dialect", BOTH)
async def test_more_tokens_and_named_sessions_give_an_agent_no_more_questions(
    dialect: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_calls(dialect, tmp_path, request, backend, monkeypatch, pending_per_agent=2) as calls:
        second, third = await calls.agents_token("claude"), await calls.agents_token("claude")
        waiting = [
            calls.start("db.write", {"params": {"n": 1}}),
            calls.start_as(second, "db.write", {"params": {"n": 2}, "session_id": "s1"}),
        ]
        pending = [await calls.waiting(), await calls.waiting()]
        for number, token in enumerate((calls.agent, second, third), 3):
            for named in ({}, {"session_id": f"s{number}"}):
                body = {"params": {"n": number}, **named}
                refused = await asyncio.wait_for(calls.start_as(token, "db.write", body), LIMIT)
                assert refused.status_code == 429
                assert refused.json()["data"]["limit"] == "pending"
        other = calls.start_as(await calls.agents_token("codex"), "db.write", {"params": {}})
        pending.append(await calls.waiting())
        for approval in pending:
            assert (await calls.answer(approval.id)).status_code == 200
        assert {each.status_code for each in await asyncio.gather(*waiting, other)} == {200}


async def test_what_a_grant_covers_is_no_question(embedded: Calls) -> None:
    grant = {"agent": "claude", "tools": "db.*", "duration": 60}
    assert (await embedded.rig.client.post("/grants", json=grant, headers=embedded.person)).is_success
    many = [embedded.start("db.write", {"params": {"n": n}}) for n in range(40)]
    assert {each.status_code for each in await asyncio.gather(*many)} == {200}
