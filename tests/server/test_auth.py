"""From a credential to a principal, through the real application."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.rig import BOTH, Rig, bearer, cookie, open_rig

from legation.server.auth import TokenUses
from legation.store.identity import members
from legation.wire.api.identity import UserChange
from legation.wire.principal import SCOPES

pytestmark = pytest.mark.heavy


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(request.param, tmp_path, request) as made:
        yield made


async def me(rig: Rig, headers: dict[str, str]) -> dict[str, object]:
    answer = await rig.client.get("/v1/me", headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_a_token_says_who_it_is(rig: Rig) -> None:
    owner = rig.people["owner"]
    token, secret = await rig.token(owner)
    assert await me(rig, bearer(secret)) == {
        "kind": "token",
        "id": token,
        "workspace": "local",
        "scopes": ["approve", "call", "manage", "operate", "read"],
        "level": 2,
        "user": None,  # it acts for itself
    }
    basic = base64.b64encode(f"x:{secret}".encode()).decode()
    for header in (f"Token {secret}", f"bearer {secret}", f"Basic {basic}"):
        assert (await me(rig, {"authorization": header}))["id"] == token


async def test_a_cookie_says_who_it_is(rig: Rig) -> None:
    for role, level in (("owner", 2), ("operator", 0), ("approver", 2), ("viewer", 0)):
        found = await me(rig, await rig.cookie(rig.people[role]))
        assert (found["kind"], found["id"], found["level"]) == ("user", rig.people[role], level)


async def test_an_admin_who_is_signed_in_has_the_installation_too(rig: Rig) -> None:
    assert (await me(rig, await rig.cookie(rig.people["admin"])))["scopes"] == sorted(SCOPES)


async def test_the_process_token_is_the_owner(rig: Rig) -> None:
    found = await me(rig, bearer(rig.services.own_token.reveal()))
    assert (found["kind"], found["workspace"], found["level"]) == ("process", "local", 2)
    assert (found["scopes"], found["user"]) == (sorted(SCOPES), rig.people["admin"])
    text = str([dict(row) for row in await rig.rows("select * from api_token")])
    assert text == "[]"  # it is in no table


async def test_the_owner_may_choose_the_token_of_the_process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    chosen = "chosen-by-the-owner-of-the-machine"
    async with open_rig("sqlite", tmp_path, request, token=chosen) as rig:
        assert (await me(rig, bearer(chosen)))["kind"] == "process"
        assert (await rig.client.get("/v1/me", headers=bearer(chosen + "x"))).status_code == 401


async def test_all_wrong_credentials_get_one_answer(rig: Rig) -> None:
    revoked_id, revoked = await rig.token(rig.people["owner"])
    await rig.client.delete(f"/v1/tokens/{revoked_id}", headers=await rig.bearer(rig.people["owner"]))
    signed_out = await rig.cookie(rig.people["viewer"])
    await rig.change_user(rig.people["viewer"], UserChange(sign_out=True))
    answers = set()
    for headers in (
        bearer("lgn_" + "x" * 32),
        bearer(revoked),
        {"authorization": "Nonsense"},
        cookie("v1.x.y"),
        signed_out,
    ):
        answer = await rig.client.get("/v1/me", headers=headers)
        body = answer.json()
        del body["instance"]
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        answers.add(str(body))
    assert len(answers) == 1


async def test_no_credential_is_told_how_to_get_one(rig: Rig) -> None:
    answer = await rig.client.get("/v1/me")
    assert answer.status_code == 401
    assert "Authorization: Bearer" in answer.json()["detail"]


async def test_a_wrong_authorization_is_not_mended_by_a_cookie(rig: Rig) -> None:
    both = {**await rig.cookie(rig.people["owner"]), **bearer("wrong")}
    assert (await rig.client.get("/v1/me", headers=both)).status_code == 401
    both |= await rig.bearer(rig.people["viewer"])
    found = await me(rig, both)
    assert (found["kind"], found["scopes"]) == ("token", ["read"])


async def test_a_disabled_user_is_out_at_once_and_for_good(rig: Rig) -> None:
    viewer = rig.people["viewer"]
    token, session = await rig.bearer(viewer), await rig.cookie(viewer)
    await rig.change_user(viewer, UserChange(disabled=True))
    for headers in (token, session):
        assert (await rig.client.get("/v1/me", headers=headers)).status_code == 401
    await rig.change_user(viewer, UserChange(disabled=False))
    assert (await rig.client.get("/v1/me", headers=token)).status_code == 200
    assert (await rig.client.get("/v1/me", headers=session)).status_code == 401


async def test_a_new_role_counts_at_the_next_request(rig: Rig) -> None:
    owner = rig.people["owner"]
    headers = [await rig.bearer(owner), await rig.cookie(owner)]
    await rig.services.database.transact(members.put, rig.server, owner, "viewer", now_ms=rig.clock.now_ms())
    for each in headers:
        assert (await me(rig, each))["scopes"] == ["read"]
        assert (await rig.client.get("/v1/tokens", headers=each)).status_code == 403


async def test_a_person_chooses_among_their_workspaces(rig: Rig) -> None:
    stranger = rig.people["stranger"]
    await rig.services.database.transact(
        members.put, rig.server, stranger, "viewer", now_ms=rig.clock.now_ms()
    )
    session = await rig.cookie(stranger, rig.other)
    assert (await me(rig, session))["workspace"] == rig.other
    there = await me(rig, {**session, "Legation-Workspace": "local"})
    assert (there["workspace"], there["scopes"]) == ("local", ["read"])


@pytest.mark.parametrize("kind", ["cookie", "token", "process"])
async def test_a_foreign_workspace_in_the_header_is_as_one_that_is_not_there(rig: Rig, kind: str) -> None:
    owner = rig.people["owner"]
    headers = {
        "cookie": await rig.cookie(owner),
        "token": await rig.bearer(owner),
        "process": bearer(rig.services.own_token.reveal()),
    }[kind]
    answers = []
    for workspace in (rig.other, "wsp_none", "no such\x7f"):
        answer = await rig.client.get("/v1/me", headers={**headers, "Legation-Workspace": workspace})
        answers.append((answer.status_code, answer.json()["detail"]))
    assert answers[0][0] == 403
    assert len(set(answers)) == 1
    assert (await me(rig, {**headers, "Legation-Workspace": "local"}))["workspace"] == "local"


async def test_the_process_token_gets_to_every_workspace_of_its_user(rig: Rig) -> None:
    own = bearer(rig.services.own_token.reveal())
    made = (await rig.client.post("/v1/workspaces", headers=own, json={"name": "Second"})).json()["id"]
    assert (await me(rig, {**own, "Legation-Workspace": made}))["workspace"] == made
    assert (await rig.client.get(f"/v1/workspaces/{made}/members", headers=own)).status_code == 200
    assert (await rig.client.get(f"/v1/workspaces/{rig.other}/members", headers=own)).status_code == 404


async def test_a_session_whose_workspace_is_gone_still_opens_the_others(rig: Rig) -> None:
    stranger = rig.people["stranger"]
    await rig.services.database.transact(
        members.put, rig.server, stranger, "viewer", now_ms=rig.clock.now_ms()
    )
    session = await rig.cookie(stranger)
    await rig.remove(stranger)
    assert (await rig.client.get("/v1/me", headers=session)).status_code == 401
    assert (await me(rig, {**session, "Legation-Workspace": rig.other}))["workspace"] == rig.other


# No browser writes them so: whoever reads them leniently reads our name out of them.
BROKEN_ORIGINS = [
    "http://[::1",
    "http://::1]",
    "http://[legation.test]",
    "http://[fe80::1%25eth0]",
    "http://legation.test:evil",
    "http://legation.test:",
    "http://legation.test:0",
    "http://legation.test:65616",
    "http://legation.test:80:80",
    "http://legation.test/",
    "http://legation.test\t",
    "http://evil.test@legation.test",
    "http://legation.test@evil.test",
    "http://legation.test, http://evil.test",
    "http://legation.test http://evil.test",
    "http://legation.test\\evil.test",
    "http://l\xe9gation.test",
    "http://" + "a" * 5000,
    "http:legation.test",
    "//legation.test",
    "legation.test",
    "ws://legation.test",
    "file://legation.test",
]
HOSTILE_ORIGINS = [
    *BROKEN_ORIGINS,
    "https://legation.test",  # another scheme is another page
    "https://legation.test:80",
    "http://legation.test:443",
    "http://legation.test.",
    "http://127.0.0.1",
    "http://xn--lgation-bya.test",
]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 204),
        ({"sec-fetch-site": "none"}, 204),
        ({"sec-fetch-site": "same-site"}, 403),  # another port of this machine
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://evil.test"}, 403),
        ({"origin": "http://legation.test"}, 204),
        ({"origin": "http://LEGATION.test"}, 204),
        ({"origin": "http://legation.test:81"}, 403),
        ({"origin": "http://legation.test.evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({}, 403),
        ({"origin": "http://127.0.0.1:9", "host": "127.0.0.1:9"}, 204),  # by another name of ours
        ({"origin": "http://[0:0::1]:9", "host": "[::1]:9"}, 204),
        ({"origin": "http://legation.test:80"}, 204),
    ],
)
async def test_a_cookie_changes_things_only_from_our_own_pages(
    rig: Rig, headers: dict[str, str], status: int
) -> None:
    session = await rig.cookie(rig.people["owner"])
    del session["sec-fetch-site"]
    answer = await rig.client.post("/v1/sign-out", headers={**session, **headers})
    assert answer.status_code == status
    assert (await rig.client.get("/v1/me", headers={**session, **headers})).status_code == 200


async def test_a_token_may_come_from_anywhere(rig: Rig) -> None:
    headers = {**await rig.bearer(rig.people["owner"]), "sec-fetch-site": "cross-site"}
    answer = await rig.client.post("/v1/tokens", headers=headers, json={"label": "new"})
    assert answer.status_code == 201


async def test_a_page_that_is_named_twice_is_not_ours(rig: Rig) -> None:
    session = await rig.cookie(rig.people["owner"])
    for name, ours in (("origin", "http://legation.test"), ("sec-fetch-site", "same-origin")):
        for pair in ([ours, ours], [ours, "http://evil.test"], ["http://evil.test", ours]):
            headers = [("cookie", session["cookie"]), *((name, each) for each in pair)]
            assert (await rig.client.post("/v1/sign-out", headers=headers)).status_code == 403


async def test_no_spelling_of_an_origin_is_ours_or_a_defect(rig: Rig) -> None:
    """Neither for a cookie, nor without a credential, where one of them was a 500."""
    cookie = (b"cookie", (await rig.cookie(rig.people["owner"]))["cookie"].encode())
    told = (b"sec-fetch-site", b"same-origin")
    for each in HOSTILE_ORIGINS:
        origin = (b"origin", each.encode("latin-1"))
        signed_in = await rig.client.post("/v1/sign-in", headers=[origin], json={"code": "wrong"})
        assert signed_in.status_code == 403, each
        tries = [[cookie, origin], [cookie, origin, told]] if each in BROKEN_ORIGINS else [[cookie, origin]]
        for headers in tries:
            assert (await rig.client.post("/v1/sign-out", headers=headers)).status_code == 403, each


async def test_an_old_session_is_renewed_by_a_visit(rig: Rig) -> None:
    session = await rig.cookie(rig.people["viewer"])
    assert "set-cookie" not in (await rig.client.get("/v1/me", headers=session)).headers
    rig.clock.advance(29 * 86_400)
    answer = await rig.client.get("/v1/me", headers=session)
    value = answer.headers["set-cookie"].partition(";")[0].removeprefix("legation_session=")
    rig.client.cookies.clear()
    rig.clock.advance(2 * 86_400)
    assert (await rig.client.get("/v1/me", headers=session)).status_code == 401
    assert (await rig.client.get("/v1/me", headers=cookie(value))).status_code == 200
    token = await rig.bearer(rig.people["viewer"])
    assert "set-cookie" not in (await rig.client.get("/v1/me", headers={**cookie(value), **token})).headers


async def test_the_last_use_of_a_token_is_noted_beside_the_requests(rig: Rig) -> None:
    token, secret = await rig.token(rig.people["owner"])
    first = rig.clock.now_ms()
    await me(rig, bearer(secret))
    await until_noted(rig, token, first)
    await rig.clock.until_sleeping()
    rig.clock.advance(1)
    await me(rig, bearer(secret))
    assert await last_used(rig, token) == first  # at most once a minute
    rig.clock.advance(60)
    await until_noted(rig, token, first + 1000)


async def test_what_is_left_is_noted_at_the_end(rig: Rig) -> None:
    token, secret = await rig.token(rig.people["owner"])
    async with TokenUses(rig.services.database, rig.clock) as uses:
        uses.note(token)
    assert await last_used(rig, token) == rig.clock.now_ms()
    assert secret


async def last_used(rig: Rig, token: str) -> int | None:
    (row,) = await rig.rows(f"select last_used_at from api_token where id = '{token}'")
    found: int | None = row["last_used_at"]
    return found


async def until_noted(rig: Rig, token: str, at: int) -> None:
    async with asyncio.timeout(10):
        while await last_used(rig, token) != at:
            await asyncio.sleep(0)
