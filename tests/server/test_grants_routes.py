"""Grants over HTTP: given and revoked by people, bounded (D22), and in the audit log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import BOTH
from tests.server.waiting_calls import Desk, open_desk, outcome

from legation.wire.action import Action

pytestmark = pytest.mark.heavy

NEW = {"agent": "claude", "tools": "filesystem.*", "duration": 1800}


@pytest.fixture(params=BOTH)
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path, request) as made:
        yield made


async def give(desk: Desk, **changed: Any) -> dict[str, Any]:
    answer = await desk.post("/grants", {**NEW, **changed})
    assert answer.status_code == 201, answer.text
    given: dict[str, Any] = answer.json()
    return given


async def test_a_grant_is_given_read_listed_used_and_revoked(desk: Desk) -> None:
    grant = await give(desk, reason="the migration tonight", kinds=["edit"])
    assert list(grant)[:6] == ["id", "agent", "tools", "expires_at", "remaining", "granted_by"]
    assert (grant["remaining"], grant["active"], grant["reason"]) == ("30m0s", True, "the migration tonight")
    assert grant["granted_by"].startswith("token:tok_")
    assert (await desk.get(f"/grants/{grant['id']}", by=desk.supervisor)).json() == grant
    assert (await desk.get("/grants")).json() == [grant]
    ruling, _ = await outcome(desk.calls.start())
    assert (ruling.outcome, ruling.by) == ("approved", f"grant:{grant['id']}")
    denied, _ = await outcome(desk.calls.start("shell.rm"))
    assert denied.outcome == "denied"

    removed = await desk.rig.client.delete(f"/grants/{grant['id']}", headers=desk.person)
    assert removed.status_code == 204
    (ended,) = (await desk.get("/grants")).json()
    assert (ended["active"], ended["remaining"], ended["revoked_by"]) == (False, "0s", grant["granted_by"])
    again = await desk.rig.client.delete(f"/grants/{grant['id']}", headers=desk.person)
    assert again.status_code == 409
    await desk.calls.ask()  # it is asked again


async def test_an_ended_grant_is_shown_as_such(desk: Desk) -> None:
    grant = await give(desk, duration=60)
    desk.rig.clock.advance(60)
    shown = (await desk.get(f"/grants/{grant['id']}")).json()
    assert (shown["active"], shown["remaining"], shown["revoked_at"]) == (False, "0s", None)


@pytest.mark.parametrize(
    ("duration", "remaining"),
    [
        (90, "1m30s"),
        ("30m", "30m0s"),
        ("1h30m", "1h30m0s"),
        ("1.5h", "1h30m0s"),
        ("24h", "24h0m0s"),
        ("+90s", "1m30s"),
    ],
)
async def test_d22_a_duration_is_seconds_or_as_go_writes_it(
    desk: Desk, duration: int | str, remaining: str
) -> None:
    assert (await give(desk, duration=duration))["remaining"] == remaining


@pytest.mark.parametrize(
    "duration",
    [0, -60, 86401, "9000h", "24h1s", "-30m", "0s", "500ms", "30", "30 m", "m30", "1h30", "soon", "1d", "", None, 1.5, "1e3s", "٣0m"],
)  # fmt: skip
async def test_d22_any_other_duration_is_refused(desk: Desk, duration: object) -> None:
    answer = await desk.post("/grants", {**NEW, "duration": duration})
    assert answer.status_code == 400, answer.text
    assert (await desk.get("/grants")).json() == []


async def test_d22_malformed_grants_are_refused(desk: Desk) -> None:
    malformed: tuple[dict[str, object], ...] = (
        {"agent": "["},
        {"tools": "a\\"},
        {"tools": ""},
        {"agent": "x" * 300},
        {"agent": 5},
        {"kinds": []},
        {"kinds": ["writing"]},
        {"until": "tomorrow"},
    )
    for wrong in malformed:
        assert (await desk.post("/grants", {**NEW, **wrong})).status_code == 400, wrong
    assert (await desk.post("/grants")).status_code == 400
    assert (await desk.get("/grants")).json() == []


async def test_only_a_person_gives_and_revokes(desk: Desk) -> None:
    grant = await give(desk)
    for by in (desk.supervisor, await desk.rig.bearer(desk.rig.people["viewer"])):
        assert (await desk.post("/grants", NEW, by=by)).status_code == 403
        removed = await desk.rig.client.delete(f"/grants/{grant['id']}", headers=by)
        assert removed.status_code == 403
    assert [each["active"] for each in (await desk.get("/grants")).json()] == [True]


async def test_another_workspaces_grant_is_not_there(desk: Desk) -> None:
    grant = await give(desk)
    stranger = await desk.rig.bearer(desk.rig.people["stranger"], workspace=desk.rig.other)
    assert (await desk.get("/grants", by=stranger)).json() == []
    for path in (f"/grants/{grant['id']}", "/grants/grt_none", f"/grants/{grant['id'][:-1]}"):
        by = stranger if path.endswith(grant["id"]) else desk.person
        assert (await desk.get(path, by=by)).status_code == 404
        assert (await desk.rig.client.delete(path, headers=by)).status_code == 404


async def test_giving_and_revoking_stand_in_the_audit_log(desk: Desk) -> None:
    grant = await give(desk, reason="words")
    await desk.post("/grants", {**NEW, "duration": "9000h"})
    await desk.rig.client.delete(f"/grants/{grant['id']}", headers=desk.person)
    await desk.rig.client.delete(f"/grants/{grant['id']}", headers=desk.person)
    rows = await desk.rig.rows(
        "select action, target, actor, details from audit where action like 'grant.%' order by id"
    )
    assert [(row["action"], row["target"]) for row in rows] == [
        ("grant.created", grant["id"]),
        ("grant.revoked", grant["id"]),
    ]
    assert {f"token:{row['actor']}" for row in rows} == {grant["granted_by"]}
    assert "words" not in str([dict(row) for row in rows])


async def test_a_long_list_goes_on_in_the_link_header(desk: Desk) -> None:
    made = [(await give(desk))["id"] for _ in range(5)]
    found, path = [], "/grants?limit=2"
    while path:
        answer = await desk.get(path)
        found += [each["id"] for each in answer.json()]
        path = answer.links.get("next", {}).get("url", "")
    assert found == made[::-1]


async def test_a_clock_set_back_or_standing_still_prolongs_no_grant_and_no_approval(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_desk("sqlite", tmp_path, request) as desk:
        clock = desk.rig.clock
        began = clock.now_ms()
        grant = {"agent": "claude", "tools": "gmail.*", "duration": 300}
        given = (await desk.post("/grants", grant)).json()
        approval, waiting = await desk.calls.ask(timeout=300)
        clock.set_wall(began - 86_400_000)  # somebody sets the date back by a day
        for _ in range(62):
            clock.advance(5)
            clock.set_wall(began - 86_400_000)  # and it stands still
            await asyncio.sleep(0)
        [listed] = [each for each in (await desk.get("/grants")).json() if each["id"] == given["id"]]
        assert not listed["active"]
        assert (await desk.post(f"/approvals/{approval.id}/approve")).status_code == 409
        ruling, _ = await outcome(waiting)
        assert (ruling.outcome, desk.calls.counter.calls) == ("expired", [])
        mail, _ = await desk.calls.ask("gmail.send")  # the grant covers it no more: somebody is asked
        assert mail.needs == "person"


async def test_a_grant_of_a_folder_lets_pass_what_lies_there_alone(desk: Desk) -> None:
    grant = await give(desk, folder="/w/src/", kinds=["edit"])
    assert (grant["folder"], grant["session_id"]) == ("/w/src", None)

    def write(path: str) -> Action:
        return Action(
            agent="claude", tool="filesystem.write_file", kind="edit", params={"path": path}, paths=(path,)
        )

    ruling, _ = await outcome(desk.calls.start(action=write("/w/src/a")))
    assert (ruling.outcome, ruling.by) == ("approved", f"grant:{grant['id']}")
    approval, _ = await desk.calls.ask(action=write("/w/other/a"))
    (active,) = (await desk.get(f"/approvals/{approval.id}")).json()["active_grants"]
    assert (active["id"], active["folder"]) == (grant["id"], "/w/src")
    (listed,) = (await desk.get("/grants")).json()
    assert listed == grant


async def test_a_grant_for_no_session_or_no_folder_is_refused(desk: Desk) -> None:
    for changed, status in (
        ({"session_id": "none"}, 404),
        ({"session_id": ""}, 400),
        ({"session_id": 1}, 400),
        ({"folder": "src"}, 400),
        ({"folder": "/"}, 400),
        ({"folder": ""}, 400),
        ({"sesion_id": "s"}, 400),
    ):
        refused = await desk.post("/grants", {**NEW, **changed})
        assert refused.status_code == status, (changed, refused.text)
        assert refused.json()["detail"].startswith("cannot")
    no_person = await desk.post("/grants", {**NEW, "session_id": "none"}, by=desk.supervisor)
    assert no_person.status_code == 403
    assert (await desk.get("/grants")).json() == []
