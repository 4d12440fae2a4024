"""The approvals of seed 001 over HTTP, and the defects of the original that are not repeated (D8 to D12, D23, D26)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import BOTH, bearer
from tests.server.waiting_calls import LIMIT, Desk, open_desk, outcome

from legation.wire.principal import Principal

pytestmark = pytest.mark.heavy

CANARY = "canary-7f3a-ignore-this"
SEED = [
    "id", "agent_id", "tool", "params", "policy_rule", "status", "created_at", "remaining", "injection_risk",
]  # fmt: skip


@pytest.fixture(params=BOTH)
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture(params=BOTH)
async def isolated(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path, request, expose_content="false") as made:
        yield made


async def ids(desk: Desk, query: str = "") -> list[str]:
    answer = await desk.get(f"/approvals{query}")
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()]


async def test_d23_a_list_is_a_bare_array_as_the_seed_prints_it(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    (shown,) = (await desk.get("/approvals?status=pending")).json()
    assert list(shown)[: len(SEED)] == SEED
    assert shown["id"] == approval.id
    assert shown["injection_risk"] is False
    assert shown["params"] == {"path": "/w/main.go", "content": "package main"}
    assert (shown["policy_rule"], shown["status"], shown["remaining"]) == ("p:writes", "pending", "5m0s")
    assert shown["created_at"].endswith("Z")
    desk.rig.clock.advance(30)
    (shown,) = (await desk.get("/approvals")).json()
    assert shown["remaining"] == "4m30s"


async def test_a_detail_has_the_agents_other_calls_and_its_grants(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    context = (await desk.get(f"/approvals/{approval.id}")).json()
    assert context["recent_traces"] == [], "its own call is no history"
    await outcome(desk.calls.start("filesystem.read_file", params={"path": "/w/a"}))
    await outcome(desk.calls.start("filesystem.read_file", agent="codex", params={"path": "/w/a"}))
    grant = {"agent": "cl*", "tools": "db.*", "duration": "30m"}
    assert (await desk.post("/grants", grant)).status_code == 201
    context = (await desk.get(f"/approvals/{approval.id}")).json()
    assert list(context)[: len(SEED)] == SEED
    (recent,) = context["recent_traces"]
    assert list(recent) == ["trace_id", "tool", "policy", "timestamp"]
    assert (recent["tool"], recent["policy"]) == ("filesystem.read_file", "allow")
    (active,) = context["active_grants"]
    seed = ["id", "agent", "tools", "expires_at", "remaining", "granted_by"]
    assert list(active) == [*seed, "session_id", "folder", "granted_by_name"]
    assert active["granted_by_name"]  # a person's, and no id
    assert active["granted_by_name"] not in active["granted_by"]
    assert (active["tools"], active["remaining"]) == ("db.*", "30m0s")


async def test_approved_it_is_done_and_denied_the_agent_is_told_why(desk: Desk) -> None:
    approval, call = await desk.calls.ask()
    body = {"resolved_by": "agent:supervisor", "reasoning": "in the project", "confidence": 0.95}
    answer = await desk.post(f"/approvals/{approval.id}/approve", body, by=desk.supervisor)
    assert (answer.status_code, answer.json()["status"]) == (200, "approved")
    ruling, returned = await outcome(call)
    assert (ruling.outcome, returned and returned.result) == ("approved", {"done": True})
    assert len(desk.calls.counter.calls) == 1

    approval, call = await desk.calls.ask()
    answer = await desk.post(f"/approvals/{approval.id}/deny", {"message": "Not in this folder."})
    assert (answer.status_code, answer.json()["status"]) == (200, "denied")
    ruling, returned = await outcome(call)
    assert (ruling.outcome, ruling.message, returned) == ("denied", "Not in this folder.", None)
    assert len(desk.calls.counter.calls) == 1


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_body_may_be_left_out(desk: Desk, answer: str) -> None:
    sent: tuple[dict[str, Any], ...] = ({}, {"json": {}}, {"content": b""})
    for options in sent:
        approval, call = await desk.calls.ask()
        path = f"/approvals/{approval.id}/{answer}"
        given = await desk.rig.client.post(path, headers=desk.person, **options)
        assert given.status_code == 200
        await outcome(call)


async def test_d9_who_decided_comes_from_the_credential(desk: Desk) -> None:
    approval, call = await desk.calls.ask()
    body = {"resolved_by": "human:alice"}
    answer = (await desk.post(f"/approvals/{approval.id}/approve", body, by=desk.supervisor)).json()
    await outcome(call)
    assert answer["resolved_by"].startswith("token:tok_")
    for path in ("/approvals", f"/approvals/{approval.id}", "/traces"):
        shown = (await desk.get(path)).text
        assert "alice" not in shown, path
        assert answer["resolved_by"] in shown


async def test_d10_an_id_counts_whole_or_not_at_all(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    for given in ("", approval.id[:-1], approval.id[:6], "apr_", "%20", approval.id.upper(), "groups"):
        for verb in ("approve", "deny", "claim", "escalate"):
            assert (await desk.post(f"/approvals/{given}/{verb}")).status_code == 404, (given, verb)
    for given in (approval.id[:-1], "apr_"):
        assert (await desk.get(f"/approvals/{given}")).status_code == 404
    assert await ids(desk, "?status=pending") == [approval.id]


async def test_another_workspaces_approval_is_not_there(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    stranger = await desk.rig.bearer(desk.rig.people["stranger"], workspace=desk.rig.other)
    assert (await desk.get("/approvals", by=stranger)).json() == []
    assert (await desk.get(f"/approvals/{approval.id}", by=stranger)).status_code == 404
    for verb in ("approve", "deny", "claim", "escalate"):
        assert (await desk.post(f"/approvals/{approval.id}/{verb}", by=stranger)).status_code == 404
    group = f"/approvals/groups/{approval.group_key}/approve"
    assert (await desk.post(group, by=stranger)).status_code == 404
    assert await ids(desk, "?status=pending") == [approval.id]


@pytest.mark.parametrize(
    "body",
    [
        b'{"reasoning": "fine"',
        b"approve",
        b"null",
        b"[]",
        b'{"confidence": 7.5}',
        b'{"confidence": -0.1}',
        b'{"confidence": "high"}',
        b'{"confidence": true}',
        b'{"confidence": NaN}',
        b'{"confidence": 1e999}',
        b'{"reasoning": 5}',
        b'{"reasonning": "misspelt"}',
        b'{"resolved_by": {"name": "x"}}',
        b'{"params": []}',
    ],
)
async def test_d11_a_body_that_is_not_understood_resolves_nothing(desk: Desk, body: bytes) -> None:
    approval, _ = await desk.calls.ask()
    headers = {**desk.person, "content-type": "application/json"}
    for path in (f"{approval.id}/approve", f"{approval.id}/deny", f"groups/{approval.group_key}/approve"):
        answer = await desk.rig.client.post(f"/approvals/{path}", headers=headers, content=body)
        assert answer.status_code == 400, (path, answer.text)
    assert await ids(desk, "?status=pending") == [approval.id]
    assert desk.calls.counter.calls == []


async def test_d12_every_status_can_be_asked_for_and_no_other_word(desk: Desk) -> None:
    made = {}
    for verb, status in (("approve", "approved"), ("deny", "denied")):
        approval, call = await desk.calls.ask()
        await desk.post(f"/approvals/{approval.id}/{verb}")
        await outcome(call)
        made[status] = approval.id
    approval, call = await desk.calls.ask()
    call.cancel()
    async with asyncio.timeout(LIMIT):
        while not await ids(desk, "?status=cancelled"):
            await asyncio.sleep(0.01)
    made["cancelled"] = approval.id
    approval, _ = await desk.calls.ask(editable=True)
    edited = await desk.post(f"/approvals/{approval.id}/approve", {"params": {"path": "/w/b"}})
    made["superseded"] = approval.id
    approval, call = await desk.calls.ask(timeout=1)
    async with asyncio.timeout(LIMIT):
        while not call.done():  # whoever waits may not have begun to
            desk.rig.clock.advance(1)
            await asyncio.sleep(0.01)
    made["expired"] = approval.id
    approval, _ = await desk.calls.ask()
    made["pending"] = approval.id
    for status in ("pending", "denied", "expired", "superseded", "cancelled"):
        assert await ids(desk, f"?status={status}") == [made[status]], status
    assert await ids(desk, "?status=approved") == [edited.json()["id"], made["approved"]]
    assert sorted(await ids(desk)) == sorted([*made.values(), edited.json()["id"]])
    for wrong in ("", "timeout", "PENDING", "pending,denied", "%00"):
        assert (await desk.get(f"/approvals?status={wrong}")).status_code == 400, wrong


async def test_tools_are_chosen_by_patterns_and_a_malformed_one_is_refused(desk: Desk) -> None:
    write, _ = await desk.calls.ask()
    mail, _ = await desk.calls.ask("gmail.send", agent="codex", params={"to": "a@example.org"})
    assert await ids(desk, "?status=pending&tool=filesystem.*") == [write.id]
    assert await ids(desk, "?status=pending&tool=gmail.*") == [mail.id]
    assert await ids(desk, "?tool=*") == [mail.id, write.id]
    assert await ids(desk, "?tool=filesystem") == []
    assert await ids(desk, "?agent=codex") == [mail.id]
    for wrong in ("[", "a%5C", "filesystem.[a-", ""):
        assert (await desk.get(f"/approvals?tool={wrong}")).status_code == 400, wrong
    assert (await desk.get("/approvals?tools=gmail.*")).status_code == 400, (
        "a misspelt filter shows not everything"
    )


async def test_a_long_list_goes_on_in_the_link_header(desk: Desk) -> None:
    made = [(await desk.calls.ask(params={"path": f"/w/{n}"}))[0].id for n in range(5)]
    found, path = [], "/approvals?status=pending&tool=filesystem.*&limit=2"
    while path:
        answer = await desk.get(path)
        found += [each["id"] for each in answer.json()]
        path = answer.links.get("next", {}).get("url", "")
    assert found == made


async def test_the_first_answer_stands_and_a_later_one_is_told_whose_it_was(desk: Desk) -> None:
    approval, call = await desk.calls.ask()
    first = (await desk.post(f"/approvals/{approval.id}/deny", by=desk.supervisor)).json()
    await outcome(call)
    for verb in ("approve", "deny", "claim", "escalate"):
        second = await desk.post(f"/approvals/{approval.id}/{verb}")
        assert second.status_code == 409
        problem = second.json()
        assert problem["code"] == "legation/already-answered"
        assert problem["data"] == {
            "status": "denied",
            "resolvedBy": first["resolved_by"],
            "resolvedAt": first["resolved_at"],
            "replacedBy": None,
        }
        assert f"it is denied by {first['resolved_by']}" in problem["detail"]


async def test_fifty_at_once_are_one_answer(desk: Desk) -> None:
    approval, call = await desk.calls.ask()
    verbs = ["approve", "deny"] * 25
    by = [desk.person, desk.supervisor, desk.second, desk.person, desk.supervisor] * 10
    answers = await asyncio.gather(
        *(
            desk.post(f"/approvals/{approval.id}/{verb}", by=each)
            for verb, each in zip(verbs, by, strict=True)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 49
    (won,) = (answer.json() for answer in answers if answer.status_code == 200)
    ruling, _ = await outcome(call)
    assert ruling.outcome == won["status"]
    assert {answer.json()["data"]["status"] for answer in answers if answer.status_code == 409} == {
        won["status"]
    }
    assert len(desk.calls.counter.calls) == (1 if won["status"] == "approved" else 0)


async def test_what_needs_a_person_is_refused_to_a_supervisor(desk: Desk) -> None:
    mail, first = await desk.calls.ask("gmail.send", params={"to": "a@example.org"})
    write, second = await desk.calls.ask()
    escalated = await desk.post(
        f"/approvals/{write.id}/escalate", {"reasoning": "outside of the project"}, by=desk.supervisor
    )
    assert (escalated.status_code, escalated.json()["needs"]) == (200, "person")
    for approval in (mail, write):
        for verb in ("approve", "deny", "claim"):
            answer = await desk.post(f"/approvals/{approval.id}/{verb}", by=desk.supervisor)
            assert (answer.status_code, answer.json()["data"]) == (403, {"needs": "person"})
        answer = await desk.post(
            f"/approvals/{approval.id}/approve", {"params": {"path": "/w/b"}}, by=desk.supervisor
        )
        assert answer.status_code in (403, 409)
    assert desk.calls.counter.calls == []
    for approval, call in ((mail, first), (write, second)):
        assert (await desk.post(f"/approvals/{approval.id}/approve")).status_code == 200
        assert (await outcome(call))[0].passed


async def test_nobody_answers_its_own(desk: Desk) -> None:
    """Neither the credential that asked nor a program without a level; whatever scopes it has."""
    token, secret = await desk.rig.token(
        desk.rig.people["owner"], "read", "approve", "call", "operate", kind="supervisor"
    )
    by = {"authorization": f"Bearer {secret}"}
    asker = Principal(kind="token", id=token, workspace="local", scopes=frozenset({"approve"}), level=1)
    approval, call = await desk.calls.ask(by=asker)
    agent = await desk.rig.bearer(desk.rig.people["owner"], "read", "approve", kind="agent")
    for who in (by, agent):
        for verb in ("approve", "deny", "claim", "escalate"):
            assert (await desk.post(f"/approvals/{approval.id}/{verb}", by=who)).status_code == 403
        group = f"/approvals/groups/{approval.group_key}/approve"
        assert (await desk.post(group, by=who)).status_code == 403
    assert (await desk.post(f"/approvals/{approval.id}/approve", by=desk.supervisor)).status_code == 200
    assert (await outcome(call))[0].passed


async def test_d26_a_claim_keeps_other_supervisors_off_for_its_lease(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    path = f"/approvals/{approval.id}"
    claimed = await desk.post(f"{path}/claim", {"lease_seconds": 20}, by=desk.supervisor)
    assert claimed.status_code == 200
    mine = claimed.json()["claimed_by"]
    assert (await desk.get(path)).json()["claimed_by"] == mine
    for verb in ("claim", "approve", "deny", "escalate"):
        kept_off = await desk.post(f"{path}/{verb}", by=desk.second)
        assert (kept_off.status_code, kept_off.json()["data"]["claimedBy"]) == (409, mine)
    for wrong in (0, 601, "60", None):
        assert (await desk.post(f"{path}/claim", {"lease_seconds": wrong})).status_code == 400
    desk.rig.clock.advance(20)
    assert (await desk.get(path)).json()["claimed_by"] is None
    assert (await desk.post(f"{path}/claim", by=desk.second)).status_code == 200
    assert (await desk.post(f"{path}/approve")).status_code == 200, "a person is never kept off"


async def test_d26_approved_with_other_arguments_these_are_used(desk: Desk) -> None:
    approval, call = await desk.calls.ask(editable=True)
    params = {"path": "/w/other.go", "content": "package other"}
    answer = (
        await desk.post(f"/approvals/{approval.id}/approve", {"params": params, "reasoning": "there"})
    ).json()
    assert (answer["status"], answer["params"]) == ("approved", params)
    ruling, returned = await outcome(call)
    assert (ruling.outcome, returned and returned.status_code) == ("approved", 200)
    ((action, _),) = desk.calls.counter.calls
    assert action.params == params
    old = (await desk.get(f"/approvals/{approval.id}")).json()
    assert (old["status"], old["replaced_by"]) == ("superseded", answer["id"])
    again = await desk.post(f"/approvals/{approval.id}/approve")
    assert (again.status_code, again.json()["data"]["replacedBy"]) == (409, answer["id"])


async def test_arguments_of_an_agent_that_acts_itself_cannot_be_edited(desk: Desk) -> None:
    approval, _ = await desk.calls.ask()
    answer = await desk.post(f"/approvals/{approval.id}/approve", {"params": {"path": "/w/b"}})
    assert answer.status_code == 409
    assert await ids(desk, "?status=pending") == [approval.id]


async def test_all_that_ask_for_the_very_same_are_answered_together(desk: Desk) -> None:
    same = [await desk.calls.ask() for _ in range(3)]
    other, _ = await desk.calls.ask(params={"path": "/w/other"})
    group = (await desk.get(f"/approvals/{same[0][0].id}")).json()["group"]
    await desk.post(f"/approvals/{same[2][0].id}/escalate", by=desk.supervisor)
    answer = await desk.post(f"/approvals/groups/{group}/approve", by=desk.supervisor)
    assert answer.status_code == 200
    assert answer.json() == {"answered": [same[0][0].id, same[1][0].id], "refused": [same[2][0].id]}
    for _, call in same[:2]:
        assert (await outcome(call))[0].passed
    denied = await desk.post(f"/approvals/groups/{group}/deny", {"reasoning": "enough"})
    assert denied.json() == {"answered": [same[2][0].id], "refused": []}
    assert (await outcome(same[2][1]))[0].outcome == "denied"
    assert (await desk.post(f"/approvals/groups/{group}/deny")).status_code == 404
    assert await ids(desk, "?status=pending") == [other.id]


async def test_a_supervisor_that_looks_is_there_for_those_tools(desk: Desk) -> None:
    last = desk.rig.services.attendance.last
    await desk.get("/approvals?status=pending")
    await desk.get("/approvals?status=denied", by=desk.supervisor)
    assert await last("local", "filesystem.write_file") == 0, "neither a person nor a look at what is over"
    desk.rig.clock.advance(10)
    await desk.get("/approvals?status=pending&tool=filesystem.*", by=desk.supervisor)
    assert await last("local", "filesystem.write_file") == desk.rig.clock.now_ms()
    assert await last("local", "gmail.send") == 0
    desk.rig.clock.advance(10)
    await desk.get("/approvals?status=pending&tool=[", by=desk.supervisor)
    assert await last("local", "gmail.send") == 0


HIDDEN = {
    "path": "/w/main.go",
    "content": CANARY,
    "Body": {"inner": [CANARY]},
    "edits": [{"text": CANARY, "line": 3}, [{"DATA": [CANARY]}], CANARY * 20],
    "note": CANARY * 20,
    CANARY * 20: 1,
    "file_content": 7,
}


async def test_d8_hidden_content_is_in_no_answer_to_a_supervisor(isolated: Desk) -> None:
    desk = isolated
    approval, call = await desk.calls.ask(params=HIDDEN, editable=True)
    other, _ = await desk.calls.ask(params=HIDDEN)
    desk.calls.counter.calls.clear()
    paths = ["/approvals", "/approvals?status=pending", f"/approvals/{approval.id}", "/traces"]
    paths.append(f"/traces/{approval.trace_id}")
    for path in paths:
        seen = await desk.get(path, by=desk.supervisor)
        assert seen.status_code == 200
        assert CANARY not in seen.text, path
        assert approval.id in seen.text, path
        assert CANARY in (await desk.get(path)).text, "a person sees all"
    shown = (await desk.get(f"/approvals/{approval.id}", by=desk.supervisor)).json()
    assert shown["recent_traces"], "the other call"
    assert shown["params"]["path"] == "/w/main.go"
    assert shown["params"]["content"]["content_length"] == len(CANARY)
    assert shown["params"]["edits"][0]["line"] == 3
    for path, body in (
        (f"/approvals/{approval.id}/claim", None),
        (f"/approvals/{approval.id}/approve", {"params": {**HIDDEN, "path": "/w/b"}}),
        (f"/approvals/{other.id}/escalate", None),
    ):
        answer = await desk.post(path, body, by=desk.supervisor)
        assert answer.status_code == 200, answer.text
        assert CANARY not in answer.text
    await outcome(call)
    assert CANARY not in (await desk.get("/v1/trace/export", by=desk.supervisor)).text


async def test_content_is_shown_unless_that_is_set(desk: Desk) -> None:
    approval, _ = await desk.calls.ask(params=HIDDEN)
    (shown,) = (await desk.get("/approvals", by=desk.supervisor)).json()
    assert shown["params"] == HIDDEN
    assert shown["id"] == approval.id


async def test_half_a_character_breaks_no_list(desk: Desk) -> None:
    """Agents in JavaScript send lone surrogates; no JSON in UTF-8 can hold one."""
    approval, _ = await desk.calls.ask(params={"path": "/w/\ud800", "\udfff": 2**70})
    for path in ("/approvals", f"/approvals/{approval.id}"):
        answer = await desk.get(path)
        assert answer.status_code == 200
        assert "/w/?" in answer.text
    assert (await desk.post(f"/approvals/{approval.id}/deny")).status_code == 200


async def test_a_supervisor_that_edits_what_is_hidden_from_it_keeps_the_content_or_is_refused(
    isolated: Desk,
) -> None:
    desk = isolated
    params = {"path": "/w/a", "content": "package main", "edits": [{"text": "one"}]}
    approval, waiting = await desk.calls.ask(editable=True, params=params)
    path = f"/approvals/{approval.id}"
    shown = (await desk.get(path, by=desk.supervisor)).json()["params"]
    assert shown["content"] != "package main"
    bad = [
        {**shown, "path": shown["content"]},
        {**shown, "path": f"/w/{shown['content']['content_sha256']}.go"},
        {**shown, "edits": [{"text": "two"}]},
        {"path": "/w/a"},
    ]
    for edited in bad:
        answer = await desk.post(f"{path}/approve", {"params": edited}, by=desk.supervisor)
        assert answer.status_code == 400, answer.text
        assert "hidden from you" in answer.json()["detail"]
    assert (await desk.get(path)).json()["status"] == "pending"
    answer = await desk.post(f"{path}/approve", {"params": {**shown, "path": "/w/b"}}, by=desk.supervisor)
    assert answer.status_code == 200
    assert answer.json()["params"]["content"] == shown["content"]  # still hidden
    ruling, _ = await outcome(waiting)
    assert ruling.action.params == {**params, "path": "/w/b"}
    assert [action.params for action, _ in desk.calls.counter.calls] == [{**params, "path": "/w/b"}]


# By name.


async def test_what_the_local_cli_decides_is_the_owners_by_name(desk: Desk) -> None:
    rig, cli = desk.rig, bearer(desk.rig.services.own_token.reveal())
    owner = rig.services.installed.user
    approval, waiting = await desk.calls.ask()
    answered = (await desk.post(f"/approvals/{approval.id}/approve", by=cli)).json()
    assert (answered["resolved_by"], answered["resolved_by_name"]) == (f"user:{owner}", "owner")
    ruling, _ = await outcome(waiting)
    assert (ruling.outcome, ruling.by, ruling.by_name) == ("approved", f"user:{owner}", "owner")
    trace = (await desk.get(f"/traces/{ruling.trace_id}")).json()
    assert (trace["approved_by"], trace["approved_by_name"]) == (f"user:{owner}", "owner")
    assert [(step["by"], step["by_name"]) for step in trace["steps"] if step["step"] == "resolved"] == [
        (f"user:{owner}", "owner")
    ]
    grant = (await desk.post("/grants", {"agent": "x", "tools": "y", "duration": 60}, by=cli)).json()
    assert grant["granted_by"] == f"user:{owner}"
    audit = (await desk.get("/v1/audit", by=cli)).json()["items"]
    given = next(each for each in audit if each["target"] == grant["id"])
    assert (given["actorKind"], given["actor"], given["actorName"]) == ("user", owner, "owner")
    assert given["details"]["via"] == "server"


async def test_a_supervisors_maker_is_not_named_as_the_one_who_decided(desk: Desk) -> None:
    approval, waiting = await desk.calls.ask()
    answered = (await desk.post(f"/approvals/{approval.id}/approve", by=desk.supervisor)).json()
    assert answered["resolved_by"].startswith("token:")
    assert answered["resolved_by_name"] is None
    await outcome(waiting)


async def test_who_asks_by_the_local_cli_does_not_answer_by_it_but_in_the_browser(desk: Desk) -> None:
    """The credential that asked never answers, whoever has it; its owner by another credential may, as ever."""
    rig, owner = desk.rig, desk.rig.services.process_tokens.owner
    approval, waiting = await desk.calls.ask(by=owner)
    refused = await desk.post(f"/approvals/{approval.id}/approve", by=bearer(rig.services.own_token.reveal()))
    assert refused.status_code == 403
    assert "whoever asks does not answer" in refused.json()["detail"]
    browser = await rig.cookie(rig.services.installed.user)
    assert (await desk.post(f"/approvals/{approval.id}/approve", by=browser)).status_code == 200
    assert (await outcome(waiting))[0].passed
