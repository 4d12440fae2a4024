"""`POST /tool/{name}`: who asks, for what, under which trace, and how often."""

import asyncio
from pathlib import Path

import pytest
from tests.gateway.backend import Backend
from tests.server.rig import BOTH
from tests.server.tools.tool_calls import LIMIT, Calls, open_calls

from legation.approvals.request import EffectToken
from legation.gateway.tools import trace_id_of

pytestmark = pytest.mark.heavy

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NOTHING: dict[str, object] = {"params": {}}


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
