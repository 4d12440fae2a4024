"""The inbox over HTTP: what waits, went wrong and is ready across sessions, in one list and one stream, for each role."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import BOTH
from tests.server.sessions.session_client import LIMIT, SessionClient, open_session_client

pytestmark = pytest.mark.heavy

Items = list[dict[str, Any]]
ROLES = ("viewer", "approver", "operator", "owner")


@pytest.fixture(params=BOTH)
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    """On either database, where that is the subject."""
    async with asyncio.timeout(170), open_session_client(tmp_path, request, request.param) as made:
        yield made


async def inbox(talk: SessionClient, by: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await talk.call("GET", "/v1/inbox", headers=by)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def until(
    talk: SessionClient, fits: Callable[[Items], bool], by: dict[str, str] | None = None
) -> Items:
    """Read it again whenever its stream tells something, and at no other time, until it fits."""
    found = await inbox(talk, by)
    stream = await talk.rig.services.log.stream("inbox")
    async with asyncio.timeout(LIMIT):
        if fits(found["items"]):
            return found["items"]  # type: ignore[no-any-return]
        async for _ in stream.subscribe(found["seq"]):
            items = (await inbox(talk, by))["items"]
            if fits(items):
                return items  # type: ignore[no-any-return]
    raise AssertionError("the stream ended")


def of(items: Items, section: str) -> Items:
    return [item for item in items if item["section"] == section]


def ids(items: Items, *sections: str) -> list[str]:
    return [item["id"] for item in items if item["section"] in sections]


async def waits(talk: SessionClient, permission: str) -> dict[str, Any]:
    items = await until(talk, lambda found: permission in [item["id"] for item in found])
    return next(item for item in items if item["id"] == permission)


async def test_an_edit_of_a_session_is_shown_with_all_it_takes_to_decide_it(talk: SessionClient) -> None:
    await talk.created("s", directory=str(talk.work), title="Cache pages")
    (talk.work / "a.txt").write_text("old\n")
    permission = await talk.asked("s", "ask edit a.txt old => new")
    item = await waits(talk, permission)
    assert (item["verb"], item["object"], item["section"]) == ("Edit", "a.txt", "supervisor")
    assert (item["sessionTitle"], item["agent"], item["folder"]) == (
        "Cache pages", "rehearsal", str(talk.work)
    )  # fmt: skip
    assert (item["rule"], item["outside"], item["state"]) == ("p:edits", False, "pending")
    info = await talk.info("s")
    assert (info["pendingPermissions"], info["pendingQuestions"]) == ([permission], [])

    detail = (await talk.call("GET", f"/approvals/{permission}")).json()
    assert (detail["kind"], detail["workspace"], detail["cwd"]) == ("edit", str(talk.work), str(talk.work))
    (path,) = detail["paths"]
    assert path == {
        "path": str(talk.work / "a.txt"), "real": str(talk.work / "a.txt"), "inside": True, "link": False
    }  # fmt: skip
    (diff,) = detail["diffs"]
    assert (diff["old_text"], diff["new_text"], diff["source"]) == ("old\n", "new\n", "agent")
    assert detail["digest"] == item["digest"]
    assert detail["policy_version"] == talk.rig.services.policies.current.version
    assert detail["asked"]["policy"]["rule"] == "p:edits"
    assert detail["asked"]["policy"]["reason"]
    assert detail["asked"]["supervisor"]["state"] == "waiting"

    refused = await talk.call("POST", f"/approvals/{permission}/approve", {"digest": "0" * 64})
    assert (refused.status_code, refused.json()["data"]["digest"]) == (409, item["digest"])
    assert permission in ids((await inbox(talk))["items"], "supervisor")
    assert (await talk.call("POST", f"/v1/inbox/{permission}/looked-at")).status_code == 409
    answer = await talk.call("POST", f"/approvals/{permission}/approve", {"digest": item["digest"]})
    assert answer.status_code == 200, answer.text
    items = await until(talk, lambda found: ids(found, "ready") == ["s"])
    assert ids(items, "you", "supervisor", "others") == []
    assert (talk.work / "a.txt").read_text() == "new\n"
    assert (await talk.info("s"))["pendingPermissions"] == []


async def test_a_question_is_in_the_list_with_what_it_takes_to_answer_it(either: SessionClient) -> None:
    talk = either
    await talk.created("s", title="Tests")
    await talk.send("s", "elicit Which database? name:string size:integer")
    (item,) = await until(talk, bool)
    assert (item["kind"], item["section"], item["action"]) == ("question", "you", "answer")
    assert (item["verb"], item["object"]) == ("Answer", "Which database?")
    asked = item["question"]
    assert (asked["message"], asked["mode"]) == ("Which database?", "form")
    assert [(each["name"], each["type"]) for each in asked["fields"]] == [
        ("name", "string"), ("size", "integer")
    ]  # fmt: skip
    assert (await talk.info("s"))["pendingQuestions"] == [item["id"]]
    path = f"/v1/sessions/{item['sessionId']}/questions/{item['id']}/reply"
    looked = await talk.call("POST", f"/v1/inbox/{item['id']}/looked-at")
    assert looked.status_code == 409, "it waits for an answer"
    assert (await talk.call("POST", path, {"answers": [["pg"], ["3"]]})).status_code == 204
    items = await until(talk, lambda found: ids(found, "you") == [] and ids(found, "ready") == ["s"])
    assert items[0]["action"] == "read"


async def test_what_went_wrong_and_what_is_ready_is_told_apart(either: SessionClient) -> None:
    talk = either
    for name in ("fails", "crashes", "ends", "is-cancelled"):
        await talk.created(name, title=name)
    await talk.played("fails", "error -32000 the model answered 401")
    await talk.send("crashes", "crash 3")
    await talk.played("ends", "say done")
    await talk.send("is-cancelled", "stall 600")
    await talk.until("is-cancelled", "turn-state")
    await talk.call("POST", "/v1/sessions/is-cancelled/cancel")
    await talk.until("is-cancelled", "prompt-finished")

    def fits(items: Items) -> bool:
        states = {item["id"]: item["state"] for item in items}
        return states == {"fails": "failed", "crashes": "exited", "ends": "ended"}

    items = await until(talk, fits)
    by_id = {item["id"]: item for item in items}
    assert "401" in by_id["fails"]["why"]
    assert "3" in by_id["crashes"]["why"]
    assert "401" in (await talk.info("fails"))["failed"]["reason"]
    assert [item["section"] for item in items] == ["wrong", "wrong", "ready"]
    assert [item["since"] for item in of(items, "wrong")] == sorted(
        (item["since"] for item in of(items, "wrong")), reverse=True
    )
    await talk.played("fails", "say again")  # it goes on: what was wrong is over
    await until(talk, lambda found: {*ids(found, "ready")} == {"fails", "ends"})
    assert (await talk.info("fails"))["failed"] is None
    assert (await talk.call("DELETE", "/v1/sessions/ends")).status_code == 204
    await until(talk, lambda found: ids(found, "ready") == ["fails"])


async def test_what_the_turn_before_came_to_is_over_as_soon_as_the_next_one_runs(
    either: SessionClient,
) -> None:
    talk = either
    await talk.created("s")
    for _ in range(2):  # a turn that is cancelled leaves nothing, and does not bring back the one before
        await talk.played("s", "say one")
        await until(talk, lambda found: ids(found, "ready") == ["s"])
        await talk.send("s", "stall 600")
        await until(talk, lambda found: found == [])
        assert (await talk.call("POST", "/v1/inbox/s/looked-at")).status_code == 404
        after, _ = await talk.until("s", "turn-state")
        await talk.call("POST", "/v1/sessions/s/cancel")
        await talk.until("s", "prompt-finished", after=after)
        await until(talk, lambda found: found == [])
    await talk.played("s", "say two")
    await until(talk, lambda found: ids(found, "ready") == ["s"])


async def test_what_one_looked_at_is_gone_for_that_one_alone_until_something_happens(
    either: SessionClient,
) -> None:
    talk = either
    await talk.created("s")
    await talk.played("s", "say one")
    (item,) = await until(talk, lambda found: ids(found, "ready") == ["s"])
    viewer = await talk.rig.bearer(talk.rig.people["viewer"])
    path, early = "/v1/inbox/s/looked-at", {"since": item["since"] - 1}
    assert (await talk.call("POST", path, early)).status_code == 204
    assert ids((await inbox(talk))["items"], "ready") == ["s"], "what was shown then is older"
    for _ in range(2):
        assert (await talk.call("POST", path, {"since": item["since"]})).status_code == 204
    assert (await inbox(talk))["items"] == []
    again = await talk.rig.bearer(talk.rig.people["owner"])  # another device of the same person
    assert (await inbox(talk, again))["items"] == []
    assert ids((await inbox(talk, viewer))["items"], "ready") == ["s"]
    talk.rig.clock.advance(1)
    await talk.played("s", "say two")
    await until(talk, lambda found: ids(found, "ready") == ["s"])
    assert (await talk.call("POST", "/v1/inbox/none/looked-at")).status_code == 404
    assert (await talk.call("POST", path, {"sinse": 1})).status_code == 400


async def test_each_role_sees_what_it_can_do_something_about(either: SessionClient) -> None:
    talk = either
    await talk.created("s", directory=str(talk.work))
    await talk.created("q")
    await talk.created("done")
    await talk.played("done", "say done")
    permission = await talk.asked("s", "ask run rm -rf build")  # the rule goes to a person
    await talk.send("q", "elicit Which? name:string")
    await until(talk, lambda found: len(ids(found, "you")) == 2 and ids(found, "ready") == ["done"])
    seen = {}
    for role in ROLES:
        items = (await inbox(talk, await talk.rig.bearer(talk.rig.people[role])))["items"]
        assert ids(items, "ready") == ["done"], role
        seen[role] = {item["kind"]: (item["section"], item["action"]) for item in items}
    approves, answers, nothing = ("you", "approve"), ("you", "answer"), ("others", None)
    assert {role: (found["approval"], found["question"]) for role, found in seen.items()} == {
        "viewer": (nothing, nothing),
        "approver": (approves, nothing),
        "operator": (nothing, answers),
        "owner": (approves, answers),
    }
    supervisor = await talk.rig.bearer(talk.rig.people["owner"], "read", "approve", kind="supervisor")
    assert permission in ids((await inbox(talk, supervisor))["items"], "others")
    stranger = await talk.rig.bearer(talk.rig.people["stranger"], workspace=talk.rig.other)
    assert (await inbox(talk, stranger))["items"] == []
    assert (await talk.call("POST", "/v1/inbox/done/looked-at", headers=stranger)).status_code == 404


async def test_groups_stand_together_where_the_first_of_them_expires(talk: SessionClient) -> None:
    asked = {}
    for name, command in (("one", "make a"), ("two", "make b"), ("three", "make a")):
        await talk.created(name, directory=str(talk.work))
        asked[name] = await talk.asked(name, f"ask run {command}")
        await waits(talk, asked[name])
        talk.rig.clock.advance(1)
    found = await inbox(talk)
    assert ids(found["items"], "you") == [asked["one"], asked["three"], asked["two"]]
    groups = [item["group"] for item in found["items"]]
    assert groups[0] == groups[1] != groups[2]
    assert found["counts"] == {"you": 3, "wrong": 0, "ready": 0, "supervisor": 0, "others": 0}
    assert found["expiresNext"] == found["items"][0]["expiresAt"]
    assert found["working"] == 3
    assert (found["items"][0]["verb"], found["items"][0]["object"]) == ("Run", "make a")
    answer = await talk.call("POST", f"/approvals/groups/{groups[0]}/deny")
    assert {*answer.json()["answered"]} == {asked["one"], asked["three"]}
    await until(talk, lambda items: ids(items, "you") == [asked["two"]])


async def test_the_stream_says_nothing_that_anybody_said(talk: SessionClient) -> None:
    canary = "canary-inbox-9b1e"
    await talk.created("s", directory=str(talk.work), title=canary)
    await talk.asked("s", f"ask write {canary}.txt {canary}")
    items = await until(talk, lambda found: len(found) == 1)
    assert canary in items[0]["object"]
    stream = await talk.rig.services.log.stream("inbox")
    async with asyncio.timeout(LIMIT):
        await anext(aiter(stream.subscribe()))  # the list may have it before that is told
    told = [event async for event in stream.subscribe(follow=False)]
    assert all(event.type == "inbox-changed" and canary.encode() not in event.raw for event in told)
    for table in ("inbox_item", "inbox_look", "approval", "trace_step", "trace_content"):
        for row in await talk.rig.rows(f"select * from {table}"):
            assert canary not in repr([row[name] for name in row.keys()]), table  # noqa: SIM118


async def test_a_restart_keeps_what_was_looked_at_and_forgets_questions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(170):
        async with open_session_client(tmp_path, request) as talk:
            for name in ("seen", "unseen", "asks"):
                await talk.created(name)
            await talk.played("seen", "say one")
            await talk.played("unseen", "say one")
            await talk.send("asks", "elicit Which? name:string")
            await until(talk, lambda found: len(found) == 3)
            assert (await talk.call("POST", "/v1/inbox/seen/looked-at")).status_code == 204
            person = talk.rig.people["owner"]
        async with open_session_client(tmp_path, request) as talk:
            owner = await talk.rig.bearer(person)
            items = await until(talk, lambda found: len(found) == 2, owner)
            assert {item["id"]: item["state"] for item in items} == {"unseen": "ended", "asks": "cut"}
            assert "stopped" in next(item["why"] for item in items if item["id"] == "asks")


async def test_a_grant_for_here_lets_pass_what_waits_here_and_ends_with_its_session(
    talk: SessionClient,
) -> None:
    (talk.work / "src").mkdir()
    for name in ("s", "other"):
        await talk.created(name, directory=str(talk.work))
    inside = await talk.asked("s", "ask write src/a.txt x", "ask write b.txt x")
    elsewhere = await talk.asked("other", "ask write src/c.txt x")
    for permission in (inside, elsewhere):
        await waits(talk, permission)
    new = {"agent": "rehearsal", "tools": "*", "kinds": ["edit"], "duration": "15m"}
    here = {"session_id": "s", "folder": str(talk.work / "src")}
    given = await talk.call("POST", "/grants", {**new, **here})
    assert given.status_code == 201, given.text
    assert {name: given.json()[name] for name in here} == here
    await until(talk, lambda found: inside not in [item["id"] for item in found])
    # The next of the session, and the other session's.
    items = await until(talk, lambda found: len(found) == 2)
    assert (talk.work / "src/a.txt").is_file()
    assert {item["sessionId"]: item["object"] for item in items} == {"s": "b.txt", "other": "src/c.txt"}
    assert (await talk.call("POST", "/v1/sessions/s/terminate")).status_code == 204
    (grant,) = (await talk.call("GET", "/grants")).json()
    assert not grant["active"]
    refused = await talk.call("POST", "/grants", {**new, **here})
    assert (refused.status_code, refused.json()["detail"].startswith("cannot")) == (410, True)
