"""`POST /tool/{name}`, over a real backend, on both databases: what passes, what does not, and what fails."""

import asyncio
import logging
import random
from pathlib import Path

import pytest
from tests.approvals.doors import ASKER
from tests.gateway.backend import Backend, Reply
from tests.server.tools.tool_calls import LIMIT, POLICY, Calls, Leaving, open_calls

from legation.approvals.request import EffectToken
from legation.approvals.transitions import get
from legation.host.requests.door_approver import DoorApprover
from legation.wire.action import Action, Ask
from legation.wire.api.approvals import NewGrant

pytestmark = pytest.mark.heavy

NOTHING: dict[str, object] = {"params": {}}


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


def _ask(name: str, action: Action, folder: Path) -> Ask:
    return Ask(id=name, session_id="ses_1", action=action, options=(), title="t", asked_at=0, cwd=str(folder))


async def test_d3_a_grant_holds_on_every_way_in(calls: Calls, tmp_path: Path) -> None:
    """`POST /decide`, `POST /tool/{name}` and the permission of a session; and it lifts no denial on any of them."""
    given = {"agent": "claude", "tools": "db.*", "duration": "5m"}
    made = await calls.rig.client.post("/grants", json=given, headers=calls.person)
    grant = made.json()["id"]
    approver = DoorApprover(calls.rig.services.door, ASKER)
    for tool, is_lifted in (("db.write", True), ("db.post", True), ("db.drop", False)):
        considered = await calls.rig.client.post(
            "/decide", json={"tool": tool, "params": {}}, headers=calls.agent
        )
        assert considered.json()["grant"] == (grant if is_lifted else None)
        called = await calls.call(tool, NOTHING)
        assert called.status_code == (200 if is_lifted else 403)
        action = Action(agent="claude", tool=tool, params={})
        ask = _ask(f"apr_{tool}", action, tmp_path)
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
    approver = DoorApprover(services.door, ASKER)
    action = Action(agent="claude", tool="db.write", params={})
    ask = _ask("apr_1", action, tmp_path)
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
    approval = await embedded.waiting()
    await embedded.rig.services.inbox.cancel("local", [approval.id], "session-closed")
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
