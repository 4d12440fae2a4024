"""Permissions of agents, answered over HTTP: each way, by whom, and what `always` and the modes let pass."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import BOTH
from tests.server.sessions.session_client import LIMIT, SessionClient, open_session_client

from legation.errors import SessionClosed
from legation.server.sessions.approvals import SessionApprovals
from legation.server.sessions.record import SessionRecords

pytestmark = pytest.mark.heavy

PENDING = "select id from approval where status = 'pending'"


@pytest.fixture(params=BOTH)
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request, request.param) as made:
        yield made


async def finished(talk: SessionClient, session: str) -> None:
    """The running turn is over."""
    turns = len(await talk.events(session, "prompt-started"))
    seen = 0
    after = 0
    while seen < turns:
        after, _ = await talk.until(session, "prompt-finished", after=after)
        seen += 1


async def answers(talk: SessionClient, session: str) -> list[tuple[str, str]]:
    found = await talk.events(session, "permission-answered")
    return [(each["outcome"], each["by"].partition(":")[0]) for each in found]


def written(talk: SessionClient, name: str) -> bool:
    return (talk.work / name).is_file()


async def opened(talk: SessionClient, session: str = "s", **body: Any) -> None:
    await talk.created(session, directory=str(talk.work), **body)


async def test_once_lets_one_call_pass(talk: SessionClient) -> None:
    await opened(talk)
    permission = await talk.asked("s", "ask write a.txt x", "ask write b.txt x")
    assert (await talk.reply("s", permission, "once")).status_code == 204
    seq, _ = await talk.until("s", "permission-answered")
    _, again = await talk.until("s", "permission-asked", after=seq)
    assert written(talk, "a.txt")
    assert (await talk.reply("s", again["id"], "reject")).status_code == 204
    await finished(talk, "s")
    assert not written(talk, "b.txt")
    assert await answers(talk, "s") == [("approved", "token"), ("denied", "token")]


async def test_a_permission_and_its_approval_say_the_same_end(talk: SessionClient) -> None:
    await opened(talk)
    permission = await talk.asked("s", "ask write a.txt x")
    assert (await talk.reply("s", permission, "reject")).status_code == 204
    await finished(talk, "s")
    [asked] = await talk.events("s", "permission-asked")
    [row] = await talk.rig.rows(f"select expires_at from approval where id = '{permission}'")
    assert asked["expiresAt"] == row["expires_at"]
    assert asked["expiresAt"] - asked["askedAt"] == 600_000  # the setting's, where the rule has none


LOOKED_UP = """
name: p
agent: "*"
loop: off
rules:
  - {id: apart, kind: edit, action: human_approval, timeout: 5m, when: {paths: {under: $WORKSPACE/elsewhere}}}
  - {id: edits, kind: edit, action: human_approval, timeout: 2h}
  - {id: publishes, kind: execute, action: human_approval, timeout: 5m, when: {command: {glob: "make publish *"}}}
  - {id: rest, action: human_approval, timeout: 2h}
"""


@pytest.mark.parametrize("step", ["ask write link/a.txt x", "ask run case a in a) make publish;; esac"])
async def test_they_do_where_a_link_or_the_parser_leads_to_a_rule_with_less_time(
    talk: SessionClient, step: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(LOOKED_UP)
    policies = talk.rig.services.door.policies
    policies.poll()
    assert policies.poll()
    (talk.work / "elsewhere").mkdir()
    (talk.work / "link").symlink_to("elsewhere")
    await opened(talk)
    permission = await talk.asked("s", step)
    assert (await talk.reply("s", permission, "reject")).status_code == 204
    await finished(talk, "s")
    [asked] = await talk.events("s", "permission-asked")
    [row] = await talk.rig.rows(f"select expires_at, policy_rule from approval where id = '{permission}'")
    assert row["policy_rule"] in ("p:apart", "p:publishes")
    assert asked["expiresAt"] == row["expires_at"] == asked["askedAt"] + 300_000


async def test_always_lets_the_same_tool_pass_in_this_session_only(talk: SessionClient) -> None:
    await opened(talk)
    await opened(talk, "other")
    permission = await talk.asked("s", "ask write a.txt x", "ask write b.txt x")
    assert (await talk.reply("s", permission, "always")).status_code == 204
    await finished(talk, "s")
    assert written(talk, "a.txt")
    assert written(talk, "b.txt")
    await talk.played("s", "ask write c.txt x")
    assert written(talk, "c.txt")
    assert await answers(talk, "s") == [("approved", "token"), ("approved", "grant"), ("approved", "grant")]
    await talk.asked("other", "ask write d.txt x")  # it waits
    await talk.asked("s", "ask run false")  # another tool does too
    assert not written(talk, "d.txt")


async def all_asked(talk: SessionClient, session: str, *names: str) -> dict[str, str]:
    """Permissions that an agent waits for at the same time, by the name of the file."""
    await talk.created(session, agent="mirror", directory=str(talk.work))
    answer = await talk.call(
        "POST", f"/v1/sessions/{session}/messages", {"message": f"ask {' '.join(names)}"}
    )
    assert answer.status_code == 204, answer.text
    found: dict[str, str] = {}
    after = 0
    while len(found) < len(names):
        after, asked = await talk.until(session, "permission-asked", after=after)
        found[asked["toolCallId"]] = asked["id"]
    await pending(talk, *found.values())
    return found


async def pending(talk: SessionClient, *permissions: str) -> None:
    """The session says that it asks before the door has written it down: until then a grant would count at once."""
    async with asyncio.timeout(LIMIT):
        while not {row["id"] for row in await talk.rig.rows(PENDING)}.issuperset(permissions):
            await asyncio.sleep(0.005)


async def test_always_lets_pass_what_waits_already_in_this_session_only(talk: SessionClient) -> None:
    asked = await all_asked(talk, "s", "a.txt", "b.txt", "c.txt")
    other = await all_asked(talk, "other", "d.txt")
    assert (await talk.reply("s", asked["b.txt"], "always")).status_code == 204
    await finished(talk, "s")
    assert sorted(await answers(talk, "s")) == [*[("approved", "grant")] * 2, ("approved", "token")]
    [grant] = await talk.rig.rows("select id from approval_grant")
    for name in ("a.txt", "c.txt"):
        shown = (await talk.call("GET", f"/approvals/{asked[name]}")).json()
        assert (shown["status"], shown["resolved_by"]) == ("approved", f"grant:{grant['id']}")
        assert (await talk.reply("s", asked[name], "reject")).status_code == 409
    assert await answers(talk, "other") == []
    assert (await talk.reply("other", other["d.txt"], "reject")).status_code == 204


async def test_always_lifts_no_deny(talk: SessionClient) -> None:
    await opened(talk)
    permission = await talk.asked("s", "ask write a.txt x")
    await talk.reply("s", permission, "always")
    await finished(talk, "s")
    await talk.played("s", "ask write forbidden.txt x")
    assert not written(talk, "forbidden.txt")
    assert (await answers(talk, "s"))[-1] == ("denied", "policy")


async def test_the_first_answer_stands(talk: SessionClient) -> None:
    await opened(talk)
    permission = await talk.asked("s", "ask write a.txt x")
    replies = [await talk.reply("s", permission, reply) for reply in ("reject", "once", "always")]
    assert [reply.status_code for reply in replies] == [204, 409, 409]
    await finished(talk, "s")
    assert not written(talk, "a.txt")
    assert await talk.rig.rows("select * from approval_grant") == []


async def test_who_may_answer(talk: SessionClient) -> None:
    """A supervisor what is left to supervisors, and nothing for ever; an operator nothing at all."""
    rig = talk.rig
    supervisor = await rig.bearer(rig.people["owner"], "read", "approve", kind="supervisor")
    operator = await rig.bearer(rig.people["operator"])
    await opened(talk)
    permission = await talk.asked("s", "ask write a.txt x", "ask run false")
    assert (await talk.reply("s", permission, "once", operator)).status_code == 403
    assert (await talk.reply("s", permission, "always", supervisor)).status_code == 403
    assert (await talk.reply("s", permission, "once", supervisor)).status_code == 204
    seq, _ = await talk.until("s", "permission-answered")
    _, for_people = await talk.until("s", "permission-asked", after=seq)
    assert (await talk.reply("s", for_people["id"], "once", supervisor)).status_code == 403
    assert (await talk.reply("s", for_people["id"], "reject")).status_code == 204


async def test_a_permission_of_another_session_is_not_found(talk: SessionClient) -> None:
    await opened(talk)
    await opened(talk, "other")
    permission = await talk.asked("s", "ask write a.txt x")
    assert (await talk.reply("other", permission, "once")).status_code == 404
    assert (await talk.reply("s", "apr_none", "once")).status_code == 404


# Modes.


async def test_accept_edits_lets_edits_pass_and_asks_for_the_rest(talk: SessionClient) -> None:
    await opened(talk, permissionMode="acceptEdits")
    assert (await talk.info("s"))["permissionMode"] == "acceptEdits"
    await talk.played("s", "ask write a.txt x")
    assert written(talk, "a.txt")
    await talk.asked("s", "ask run false")


async def test_bypass_lets_all_pass_but_what_is_denied(talk: SessionClient) -> None:
    await opened(talk, permissionMode="bypass")
    await talk.played(
        "s", "ask write a.txt x", "ask run touch b.txt", "ask something", "ask write forbidden.txt x"
    )
    assert written(talk, "a.txt")
    assert written(talk, "b.txt")
    assert not written(talk, "forbidden.txt")
    outcomes = await answers(talk, "s")
    assert outcomes == [*[("approved", "grant")] * 3, ("denied", "policy")]
    await opened(talk, "other")
    await talk.asked("other", "ask write c.txt x")


async def test_a_mode_can_be_left_and_entered(talk: SessionClient) -> None:
    await opened(talk, permissionMode="bypass")
    operator = await talk.rig.bearer(talk.rig.people["operator"])
    for mode, status in (("default", 200), ("bypass", 403), ("acceptEdits", 403)):
        answer = await talk.call("PATCH", "/v1/sessions/s", {"permissionMode": mode}, operator)
        assert answer.status_code == status, answer.text
    assert (await talk.info("s"))["permissionMode"] == "default"
    permission = await talk.asked("s", "ask write a.txt x")
    await talk.reply("s", permission, "reject")
    await finished(talk, "s")
    await talk.call("PATCH", "/v1/sessions/s", {"permissionMode": "acceptEdits"})
    await talk.played("s", "ask write b.txt x")
    assert written(talk, "b.txt")


@pytest.mark.parametrize("mode", ["acceptEdits", "bypass"])
async def test_a_mode_that_is_entered_lets_pass_what_waits_already(talk: SessionClient, mode: str) -> None:
    await opened(talk)
    await pending(talk, await talk.asked("s", "ask write a.txt x"))
    assert (await talk.call("PATCH", "/v1/sessions/s", {"permissionMode": mode})).status_code == 200
    await finished(talk, "s")
    assert written(talk, "a.txt")
    assert await answers(talk, "s") == [("approved", "grant")]


async def test_a_grant_lets_pass_what_waits_already(talk: SessionClient) -> None:
    await opened(talk)
    await pending(talk, await talk.asked("s", "ask write a.txt x"))
    given = {"agent": "rehearsal", "tools": "*", "duration": 60}
    assert (await talk.call("POST", "/grants", given)).status_code == 201
    await finished(talk, "s")
    assert written(talk, "a.txt")
    assert await answers(talk, "s") == [("approved", "grant")]


async def test_changes_at_once_leave_no_grant_that_nobody_can_withdraw(talk: SessionClient) -> None:
    await opened(talk)

    async def change(**body: str) -> None:
        assert (await talk.call("PATCH", "/v1/sessions/s", body)).status_code == 200

    await asyncio.gather(
        *[change(permissionMode="bypass") for _ in range(3)], change(model="rehearsal-terse")
    )
    info = await talk.info("s")
    assert (info["permissionMode"], info["model"]) == ("bypass", "rehearsal-terse")
    await change(permissionMode="default")
    rows = await talk.rig.rows("select id from approval_grant where revoked_at is null")
    assert rows == []
    await talk.asked("s", "ask write a.txt x")


async def test_a_mode_that_lets_calls_pass_takes_a_person(talk: SessionClient) -> None:
    operator = await talk.rig.bearer(talk.rig.people["operator"])
    for mode in ("bypass", "acceptEdits"):
        body = {"agent": "rehearsal", "permissionMode": mode}
        assert (await talk.call("POST", "/v1/sessions/s", body, operator)).status_code == 403
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []


async def test_what_was_granted_ends_with_the_session(talk: SessionClient) -> None:
    await opened(talk, permissionMode="bypass")
    await talk.call("POST", "/v1/sessions/s/terminate")
    [row] = await talk.rig.rows("select revoked_at, session_id from approval_grant")
    assert row["session_id"] == "s"
    assert row["revoked_at"] is not None


async def test_a_mode_that_comes_too_late_is_not_granted_to_a_session_that_ended(talk: SessionClient) -> None:
    """It was open when the change began."""
    await opened(talk)
    services = talk.rig.services
    records = SessionRecords(services.log)
    before = await records.get("local", "s")
    await talk.call("POST", "/v1/sessions/s/terminate")
    before.let_go(closed=True)
    owner = await talk.rig.principal(talk.rig.people["owner"])
    modes = SessionApprovals(services.inbox, services.grants, records, services.clock)
    with pytest.raises(SessionClosed):
        await modes.give_mode(owner, before, "bypass")
    assert await talk.rig.rows("select id from approval_grant where revoked_at is null") == []
