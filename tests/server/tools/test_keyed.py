"""Calls with an `Idempotency-Key`, and asks of programs that act by themselves."""

import asyncio
from typing import Any

import httpx2
import pytest
from tests.gateway.backend import Reply
from tests.server.tools.tool_calls import LIMIT, POLICY, Calls

from legation.approvals.admit import KEEP_MS
from legation.approvals.upkeep import FORGET_EVERY

pytestmark = pytest.mark.heavy

ARGS = {"params": {"n": 1}}


def keyed(
    calls: Calls, key: str, tool: str = "db.write", body: object = ARGS
) -> asyncio.Task[httpx2.Response]:
    return calls.start(tool, body, idempotency_key=key)


async def status_of(calls: Calls, key: str) -> str:
    (row,) = await calls.rig.rows(f"select status from keyed_call where key = '{key}'")
    return row["status"]  # type: ignore[no-any-return]


async def test_a_key_is_bound_to_its_agent_tool_and_arguments(calls: Calls) -> None:
    first = keyed(calls, "k1")
    approval = await calls.waiting()
    assert approval.waiter == f"call:{approval.id}"
    same = {"params": {"n": 1}, "session_id": "ses_9"}  # where it was asked is no part of it
    waits = keyed(calls, "k1", body=same)
    for tool, body in (("db.write", {"params": {"n": 2}}), ("db.read", ARGS), ("db.write", {"params": {}})):
        other = await keyed(calls, "k1", tool, body)
        assert other.status_code == 409, other.text
        assert "another call" in other.json()["detail"]
        assert other.json()["data"] == {"reason": "idempotency-key"}
    assert (await calls.answer(approval.id)).status_code == 200
    for response in (await first, await waits, await keyed(calls, "k1")):
        assert response.status_code == 200
        assert response.json()["result"] == {"got": {"n": 1}}
        assert (response.json()["approval_id"], response.json()["trace_id"]) == (
            approval.id,
            approval.trace_id,
        )
    assert (await keyed(calls, "k1", body={"params": {"n": 2}})).status_code == 409
    assert calls.backend.counts() == {approval.id: 1}
    await calls.must_verify()


async def test_other_callers_keys_are_theirs_alone(calls: Calls) -> None:
    mine = keyed(calls, "k1", "db.read")
    other = {**await calls.agents_token("other"), "idempotency-key": "k1"}
    theirs = calls.start_as(other, "db.read", {"params": {"n": 2}})
    assert [(await each).json()["result"]["got"]["n"] for each in (mine, theirs)] == [1, 2]
    assert len(calls.backend.seen) == 2


async def test_what_passes_at_once_is_run_once_and_its_result_kept(calls: Calls) -> None:
    answers = await asyncio.gather(*(keyed(calls, "k1", "db.read") for _ in range(5)))
    answers.append(await keyed(calls, "k1", "db.read"))
    assert {each.status_code for each in answers} == {200}
    assert len({each.text for each in answers}) == 1
    assert len(calls.backend.seen) == 1


async def test_a_tool_that_failed_is_not_called_again_under_the_key(calls: Calls) -> None:
    first = await keyed(calls, "k1", "slow.read")
    again = await keyed(calls, "k1", "slow.read")
    assert (first.status_code, again.status_code) == (200, 200)
    calls.backend.answers["/read"] = lambda _: (_ for _ in ()).throw(AssertionError)  # it answers nothing
    failed = await keyed(calls, "k2", "db.read")
    once_more = await keyed(calls, "k2", "db.read")
    assert failed.status_code == once_more.status_code == 502
    assert failed.json()["detail"] == once_more.json()["detail"]
    assert len([each for each in calls.backend.seen if each.path == "/read"]) == 1


async def test_what_is_refused_at_once_leaves_the_key_free(calls: Calls) -> None:
    for _ in range(2):
        assert (await keyed(calls, "k1", "db.drop")).status_code == 403
    assert (await keyed(calls, "k1", "db.read")).status_code == 200


async def test_a_resend_with_its_trace_id_is_no_conflict(calls: Calls) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    for _ in range(2):
        answer = await calls.call("db.read", ARGS, idempotency_key="k1", x_trace_id=trace)
        assert (answer.status_code, answer.json()["trace_id"]) == (200, trace)


async def test_a_key_that_is_no_key_is_refused(calls: Calls) -> None:
    for key in ("", "a b", "x" * 256):
        answer = await calls.call("db.read", ARGS, idempotency_key=key)
        assert answer.status_code == 400, answer.text
    assert calls.backend.seen == []


async def test_the_answer_of_whoever_denies_is_told_again(calls: Calls) -> None:
    first = keyed(calls, "k1")
    approval = await calls.waiting()
    await calls.answer(approval.id, "deny", message="not on a Friday")
    denied, again = await first, await keyed(calls, "k1")
    assert denied.status_code == again.status_code == 403
    assert denied.json()["detail"] == again.json()["detail"] == "not on a Friday"
    assert denied.json()["data"] == again.json()["data"]


async def test_an_approval_with_other_arguments_runs_those_and_is_found_by_the_key(calls: Calls) -> None:
    first = keyed(calls, "k1")
    approval = await calls.waiting()
    edited = await calls.answer(approval.id, "approve", params={"n": 7})
    assert edited.status_code == 200
    for response in (await first, await keyed(calls, "k1")):
        assert response.json()["result"] == {"got": {"n": 7}}
        assert response.json()["approval_id"] == edited.json()["id"]
    assert calls.backend.counts() == {edited.json()["id"]: 1}


async def test_expired_it_is_over_for_whoever_returns(calls: Calls) -> None:
    first = keyed(calls, "k1")
    await calls.waiting()
    calls.rig.clock.advance(601)
    assert (await asyncio.wait_for(first, LIMIT)).status_code == 408
    assert (await keyed(calls, "k1")).status_code == 408
    assert calls.backend.seen == []


async def test_a_revoked_caller_takes_the_call_along(calls: Calls) -> None:
    first = keyed(calls, "k1")
    await calls.waiting()
    await calls.rig.rows("update api_token set revoked_at = 1 where label = 'claude'")
    await calls.rig.services.end_revoked()
    assert (await asyncio.wait_for(first, LIMIT)).status_code == 409
    assert await status_of(calls, "k1") == "refused"


async def test_a_result_is_kept_for_a_day_and_goes_with_its_content_key(calls: Calls) -> None:
    for key in ("k1", "k2"):
        assert (await keyed(calls, key, "db.read")).status_code == 200
    # Nothing that was said stands in the row itself.
    rows = await calls.rig.rows("select * from keyed_call")
    assert all("got" not in str(value) for row in rows for value in row)
    await calls.rig.rows("delete from content_key")
    purged = await keyed(calls, "k1", "db.read")
    assert purged.status_code == 502
    assert "purged" in purged.json()["detail"]
    calls.rig.clock.advance(KEEP_MS / 1000 + 1)
    calls.rig.clock.advance(FORGET_EVERY + 1)
    async with asyncio.timeout(LIMIT):
        while await calls.rig.rows("select id from keyed_call"):
            await asyncio.sleep(0.01)
    assert (await keyed(calls, "k1", "db.read")).status_code == 200  # a new call
    assert len(calls.backend.seen) == 3


async def test_a_tool_that_answers_nothing_is_told_the_same_again(calls: Calls) -> None:
    for key, reply in (("k1", Reply(204, media=None)), ("k2", Reply(body=b"null"))):
        calls.backend.answers["/read"] = lambda _, reply=reply: reply  # type: ignore[misc]
        first, again = await keyed(calls, key, "db.read"), await keyed(calls, key, "db.read")
        assert (first.status_code, first.json()["result"]) == (200, None)
        assert (again.status_code, again.json()) == (200, first.json())


async def test_what_failed_is_not_told_as_done_when_its_words_are_purged(calls: Calls) -> None:
    calls.backend.answers["/read"] = lambda _: Reply(500, b"no", "text/plain")
    assert (await keyed(calls, "k1", "db.read")).status_code == 502
    await calls.rig.rows("delete from content_key")
    again = await keyed(calls, "k1", "db.read")
    assert again.status_code == 502, again.text
    assert "purged" in again.json()["detail"]


# Asks.

ASK: dict[str, Any] = {"tool": "db.write", "params": {"path": "/srv/a"}, "waiter": "run:7"}


async def send(
    calls: Calls, method: str, path: str, body: object = None, key: str | None = None, **by: str
) -> httpx2.Response:
    headers = by or dict(calls.agent)
    if key is not None:
        headers["idempotency-key"] = key
    return await calls.rig.client.request(method, path, json=body, headers=headers, timeout=LIMIT)


async def asked(calls: Calls, key: str = "k", **more: object) -> dict[str, Any]:
    answer = await send(calls, "POST", "/v1/asks", {**ASK, **more}, key)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_an_ask_is_answered_waited_for_and_used_once(calls: Calls) -> None:
    ask = await asked(calls)
    path = f"/v1/asks/{ask['id']}"
    assert (ask["status"], ask["waiter"]) == ("pending", "run:7")
    assert await asked(calls) == ask | {"decided_by": None, "why": None}  # sent again it is the same
    early = await send(calls, "POST", f"{path}/use")
    assert early.status_code == 409
    looks = [asyncio.create_task(send(calls, "GET", f"{path}?wait=60")) for _ in range(2)]
    approval = await calls.waiting()
    assert (approval.id, approval.waiter) == (ask["id"], "run:7")
    assert (await calls.answer(ask["id"])).status_code == 200
    for look in looks:
        assert (await look).json()["status"] == "approved"
    used = await send(calls, "POST", f"{path}/use", key="u1")
    assert (used.status_code, used.json()["status"]) == (200, "used")
    assert (await send(calls, "POST", f"{path}/use", key="u1")).json() == used.json()  # a resend
    for key in ("u2", None):
        assert (await send(calls, "POST", f"{path}/use", key=key)).status_code == 409
    assert [step for step, _ in await calls.steps(approval.trace_id)] == [
        "proposed", "decided", "resolved", "consumed",
    ]  # fmt: skip
    assert calls.backend.seen == []  # whoever asks acts
    await calls.must_verify()


async def test_a_use_without_a_key_is_the_one_use(calls: Calls) -> None:
    ask = await asked(calls)
    assert (await calls.answer(ask["id"])).status_code == 200
    for status in (200, 409):
        assert (await send(calls, "POST", f"/v1/asks/{ask['id']}/use")).status_code == status
    assert (await send(calls, "DELETE", f"/v1/asks/{ask['id']}")).status_code == 409
    assert (await send(calls, "GET", f"/v1/asks/{ask['id']}")).json()["status"] == "used"


async def test_a_key_of_an_ask_is_none_of_a_call_nor_of_another_waiter(calls: Calls) -> None:
    await asked(calls, "k1")
    for answer in (
        await keyed(calls, "k1", body={"params": ASK["params"]}),
        await send(calls, "POST", "/v1/asks", ASK | {"waiter": "run:8"}, "k1"),
    ):
        assert answer.status_code == 409
        assert answer.json()["data"] == {"reason": "idempotency-key"}


async def test_an_ask_is_decided_at_once_where_nobody_is_asked(calls: Calls) -> None:
    allowed = await asked(calls, tool="db.read")
    assert (allowed["status"], await asked(calls, tool="db.read")) == (
        "approved",
        allowed | {"decided_by": None},
    )
    path = f"/v1/asks/{allowed['id']}"
    assert (await send(calls, "POST", f"{path}/use", key="u")).json()["status"] == "used"
    assert (await send(calls, "POST", f"{path}/use", key="u")).status_code == 200
    assert (await send(calls, "POST", f"{path}/use")).status_code == 409
    denied = await asked(calls, "other", tool="db.drop")
    assert (denied["id"], denied["status"], denied["why"]) == (None, "denied", "dropping is for people")


async def test_an_ask_is_its_askers_alone(calls: Calls) -> None:
    ask = await asked(calls)
    other = await calls.agents_token("other")
    for method, path in (("GET", ""), ("POST", "/use"), ("DELETE", "")):
        answer = await send(calls, method, f"/v1/asks/{ask['id']}{path}", **other)
        assert answer.status_code == 404, answer.text
    call = keyed(calls, "k9")
    of_call = [await calls.waiting(), await calls.waiting()][-1]
    assert (await send(calls, "GET", f"/v1/asks/{of_call.id}")).status_code == 404  # no ask
    assert (await send(calls, "POST", "/v1/asks", ASK | {"params": {"path": "/b"}}, "k")).status_code == 409
    await calls.answer(of_call.id, "deny")
    await call


async def test_an_ask_that_is_taken_back_cannot_be_answered_or_used(calls: Calls) -> None:
    ask = await asked(calls)
    assert (await send(calls, "DELETE", f"/v1/asks/{ask['id']}")).status_code == 204
    assert (await calls.answer(ask["id"])).status_code == 409
    assert (await send(calls, "POST", f"/v1/asks/{ask['id']}/use")).status_code == 409
    assert (await send(calls, "GET", f"/v1/asks/{ask['id']}?wait=5")).json()["status"] == "cancelled"


async def test_a_denied_ask_is_told_so_and_not_used(calls: Calls) -> None:
    ask = await asked(calls)
    await calls.answer(ask["id"], "deny", message="no")
    assert (await send(calls, "GET", f"/v1/asks/{ask['id']}?wait=5")).json()["status"] == "denied"
    refused = await send(calls, "POST", f"/v1/asks/{ask['id']}/use")
    assert (refused.status_code, refused.json()["detail"]) == (403, "no")


async def test_paths_of_a_program_elsewhere_are_resolved_again_when_it_acts(calls: Calls) -> None:
    there = {"workspace": "/there", "cwd": "/there", "folders": {"/there": "/there"}}
    for key, leads, status in (("a", "/there/a", 200), ("b", "/etc/passwd", 403), ("c", None, 403)):
        where = {**there, "paths": ["/there/a"]}
        ask = await asked(calls, key, tool="elsewhere.write", params={"path": "/there/a"}, resolved=where)
        assert ask["status"] == "pending"
        assert (await calls.answer(ask["id"])).status_code == 200
        by_now = None if leads is None else {"resolved": {**there, "paths": [leads]}}
        used = await send(calls, "POST", f"/v1/asks/{ask['id']}/use", by_now)
        assert used.status_code == status, used.text


async def test_whoever_waits_under_other_rules_is_decided_anew_while_it_looks(calls: Calls) -> None:
    for action, status in (("allow", "approved"), ("deny", "cancelled")):
        ask = await asked(calls, action)
        look = asyncio.create_task(send(calls, "GET", f"/v1/asks/{ask['id']}?wait=60"))
        await calls.waiting()
        path = calls.rig.services.settings.policy
        assert path is not None
        path.write_text(POLICY.replace("human_approval, timeout: 10m", action))
        policies = calls.rig.services.policies
        policies.poll()
        assert policies.poll()
        assert (await asyncio.wait_for(look, LIMIT)).json()["status"] == status
        used = await send(calls, "POST", f"/v1/asks/{ask['id']}/use", key="u")
        assert used.status_code == (200 if action == "allow" else 409), used.text
        path.write_text(POLICY)
        policies.poll()
        assert policies.poll()


async def test_what_a_grant_let_pass_is_used_only_while_it_counts(calls: Calls) -> None:
    who = {"agent": "claude", "tools": "db.*", "duration": "10m"}
    owner = await calls.rig.cookie(calls.rig.people["owner"])
    for revokes in (False, True):
        ask = await asked(calls, f"k{revokes}")
        look = asyncio.create_task(send(calls, "GET", f"/v1/asks/{ask['id']}?wait=60"))
        await calls.waiting()
        given = await calls.rig.client.post("/grants", json=who, headers=owner)
        assert given.status_code == 201
        told = (await asyncio.wait_for(look, LIMIT)).json()
        assert (told["status"], told["decided_by"]) == ("approved", f"grant:{given.json()['id']}")
        if revokes:
            await calls.rig.client.delete(f"/grants/{given.json()['id']}", headers=owner)
        used = await send(calls, "POST", f"/v1/asks/{ask['id']}/use", key="u")
        assert used.status_code == (409 if revokes else 200), used.text
        if not revokes:
            await calls.rig.client.delete(f"/grants/{given.json()['id']}", headers=owner)


def edit_rules(calls: Calls, text: str) -> None:
    path, policies = calls.rig.services.settings.policy, calls.rig.services.policies
    assert path is not None
    path.write_text(text)
    policies.poll()
    assert policies.poll()


async def test_what_passed_at_once_is_used_only_while_rules_and_grants_say_so(calls: Calls) -> None:
    who = {"agent": "claude", "tools": "db.write", "duration": "10m"}
    owner = await calls.rig.cookie(calls.rig.people["owner"])
    given = await calls.rig.client.post("/grants", json=who, headers=owner)
    by_grant = [await asked(calls, f"g{n}") for n in range(2)]
    by_rule = [await asked(calls, f"r{n}", tool="db.read") for n in range(3)]
    assert {ask["status"] for ask in (*by_grant, *by_rule)} == {"approved"}

    async def use(ask: dict[str, Any], key: str = "u") -> httpx2.Response:
        return await send(calls, "POST", f"/v1/asks/{ask['id']}/use", key=key)

    assert (await use(by_grant[0])).status_code == (await use(by_rule[0])).status_code == 200
    await calls.rig.client.delete(f"/grants/{given.json()['id']}", headers=owner)
    revoked = await use(by_grant[1])
    assert (revoked.status_code, "ask again" in revoked.json()["detail"]) == (409, True)
    for action, status in (("deny", 403), ("human_approval", 409)):
        edit_rules(calls, POLICY.replace('"*.read", action: allow', f'"*.read", action: {action}'))
        assert (await use(by_rule[1])).status_code == status
    assert (await use(by_rule[0])).status_code == 200  # a resend of what was used before
    edit_rules(calls, POLICY)
    assert (await use(by_rule[1])).status_code == 200


async def test_paths_of_what_passed_at_once_are_resolved_again_when_it_acts(calls: Calls) -> None:
    rule = "  - {id: inside, tools: elsewhere.write, action: allow, when: {paths: {under: /there}}}\n"
    edit_rules(calls, POLICY.replace("rules:\n", f"rules:\n{rule}"))
    there = {"workspace": "/there", "cwd": "/there", "folders": {"/there": "/there"}}
    for key, leads, status in (("a", "/there/a", 200), ("b", "/etc/passwd", 409), ("c", None, 409)):
        where = {**there, "paths": ["/there/a"]}
        ask = await asked(calls, key, tool="elsewhere.write", params={"path": "/there/a"}, resolved=where)
        assert ask["status"] == "approved"
        by_now = None if leads is None else {"resolved": {**there, "paths": [leads]}}
        used = await send(calls, "POST", f"/v1/asks/{ask['id']}/use", by_now)
        assert used.status_code == status, used.text
