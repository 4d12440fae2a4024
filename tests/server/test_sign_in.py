"""Links, signing in and out, through the real application."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.requests import Request
from tests.approvals.notify.mail_server import sinking
from tests.server.rig import BOTH, PUBLIC_URL, Rig, bearer, cookie, open_rig

from legation.server.routes.rates import LINK_MAILS_TO_ADDRESS, LINKS, WRONG_SIGN_INS_OF_ADDRESS, address_of
from legation.server.routes.sign_in import make_link
from legation.wire.api.identity import TokenKind, UserChange
from legation.wire.principal import SCOPES, Scope

pytestmark = pytest.mark.heavy


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(request.param, tmp_path, request) as made:
        yield made


async def new_link(rig: Rig, headers: dict[str, str], **body: object) -> str:
    answer = await rig.client.post("/v1/sign-in-links", headers=headers, json=body)
    assert answer.status_code == 201, answer.text
    url: str = answer.json()["url"]
    assert url.startswith(f"{PUBLIC_URL}/sign-in#")
    return url.partition("#")[2]


async def sign_in(rig: Rig, code: str, **headers: str) -> httpx2.Response:
    answer = await rig.client.post("/v1/sign-in", json={"code": code}, headers=headers)
    rig.client.cookies.clear()
    return answer


def session_of(answer: httpx2.Response) -> dict[str, str]:
    return cookie(answer.headers["set-cookie"].partition(";")[0].removeprefix("legation_session="))


async def test_a_link_becomes_a_session(rig: Rig) -> None:
    rig.clock.advance(1)  # rows of one moment have no order
    code = await new_link(rig, await rig.cookie(rig.people["owner"]))
    rig.clock.advance(1)
    answer = await sign_in(rig, code)
    assert (answer.status_code, answer.content) == (204, b"")
    me = (await rig.client.get("/v1/me", headers=session_of(answer))).json()
    assert (me["kind"], me["user"], me["workspace"]) == ("user", rig.people["owner"], "local")
    assert (await rig.actions())[-2:] == ["link.created", "user.signed-in"]


async def test_the_server_makes_a_link_by_itself(rig: Rig) -> None:
    made = await make_link(rig.services, rig.people["admin"], "local")
    assert made.expires_at == rig.clock.now_ms() + 600_000
    answer = await sign_in(rig, made.url.partition("#")[2])
    me = (await rig.client.get("/v1/me", headers=session_of(answer))).json()
    assert "instance" in me["scopes"]


async def test_used_old_and_unknown_links_get_one_answer(rig: Rig) -> None:
    owner = await rig.cookie(rig.people["owner"])
    used, old = await new_link(rig, owner), await new_link(rig, owner)
    assert (await sign_in(rig, used)).status_code == 204
    rig.clock.advance(600)
    answers = []
    for code in (used, old, "x" * 32, "é ü"):
        answer = await sign_in(rig, code)
        body = answer.json()
        del body["instance"]
        answers.append((answer.status_code, str(body), "set-cookie" in answer.headers))
    assert answers[0][0] == 401
    assert not answers[0][2]
    assert len(set(answers)) == 1
    assert "legation users link" in answers[0][1]


async def test_of_many_who_post_a_code_together_one_gets_in(rig: Rig) -> None:
    code = await new_link(rig, await rig.cookie(rig.people["owner"]))
    answers = await asyncio.gather(*(sign_in(rig, code) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [204, 401, 401, 401, 401]


async def test_an_admin_signs_somebody_else_in(rig: Rig) -> None:
    admin = bearer(rig.services.own_token.reveal())
    code = await new_link(rig, admin, user=rig.people["stranger"])
    me = (await rig.client.get("/v1/me", headers=session_of(await sign_in(rig, code)))).json()
    assert (me["user"], me["workspace"]) == (rig.people["stranger"], rig.other)


@pytest.mark.parametrize("user", ["usr_none", "stranger"])
async def test_an_owner_makes_links_for_nobody_else(rig: Rig, user: str) -> None:
    headers = await rig.bearer(rig.people["owner"])
    body = {"user": rig.people.get(user, user)}
    answer = await rig.client.post("/v1/sign-in-links", headers=headers, json=body)
    assert answer.status_code == 403
    assert "instance" in answer.json()["detail"]


async def test_an_unknown_user_is_not_found_by_an_admin(rig: Rig) -> None:
    admin = bearer(rig.services.own_token.reveal())
    answer = await rig.client.post("/v1/sign-in-links", headers=admin, json={"user": "usr_none"})
    assert answer.status_code == 404
    answer = await rig.client.post("/v1/sign-in-links", headers=admin, json={"user": "a\0b"})
    assert answer.status_code == 400


async def test_signing_out_clears_the_cookie(rig: Rig) -> None:
    answer = await rig.client.post("/v1/sign-out", headers=await rig.cookie(rig.people["owner"]))
    assert answer.status_code == 204
    assert answer.headers["set-cookie"].startswith("legation_session=; Max-Age=0; Path=/")


async def test_signing_out_everywhere_ends_sessions_and_links(rig: Rig) -> None:
    owner = rig.people["owner"]
    session, token = await rig.cookie(owner), await rig.bearer(owner)
    code = await new_link(rig, session)
    await rig.change_user(owner, UserChange(sign_out=True))
    assert (await rig.client.get("/v1/me", headers=session)).status_code == 401
    assert (await sign_in(rig, code)).status_code == 401
    assert (await rig.client.get("/v1/me", headers=token)).status_code == 200


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.test"}])
async def test_no_other_site_signs_a_browser_in(rig: Rig, headers: dict[str, str]) -> None:
    code = await new_link(rig, await rig.cookie(rig.people["owner"]))
    assert (await sign_in(rig, code, **headers)).status_code == 403
    assert (await sign_in(rig, code, **{"sec-fetch-site": "same-origin"})).status_code == 204  # not used up


async def test_wrong_codes_are_counted_and_never_keep_the_right_one_out(rig: Rig) -> None:
    code = await new_link(rig, await rig.cookie(rig.people["owner"]))
    for _ in range(WRONG_SIGN_INS_OF_ADDRESS.capacity):
        assert (await sign_in(rig, "wrong")).status_code == 401
    answer = await sign_in(rig, "wrong")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "6")
    assert (await sign_in(rig, code)).status_code == 204


async def test_one_ends_ones_own_sessions_everywhere(rig: Rig) -> None:
    here, there = [await rig.cookie(rig.people["viewer"]) for _ in range(2)]
    answer = await rig.client.post("/v1/sign-out?everywhere=true", headers=here)
    assert answer.status_code == 204
    rig.client.cookies.clear()
    for session in (here, there):
        assert (await rig.client.get("/v1/me", headers=session)).status_code == 401
    assert "user.signed-out" in await rig.actions()


@pytest.mark.parametrize("query", ["", "?everywhere=true"])
async def test_no_token_ends_its_makers_sessions(rig: Rig, query: str) -> None:
    owner = rig.people["owner"]
    session, code = await rig.cookie(owner), await new_link(rig, await rig.cookie(owner))
    tokens: list[tuple[TokenKind, list[Scope]]] = [
        ("agent", ["call"]), ("user", ["read"]), ("supervisor", []), ("user", []),
    ]  # fmt: skip
    for kind, scopes in tokens:
        token = await rig.bearer(owner, *scopes, kind=kind)
        answer = await rig.client.post(f"/v1/sign-out{query}", headers=token)
        assert answer.status_code == 403
        # Nor with the session beside it: the header is what counts.
        answer = await rig.client.post(f"/v1/sign-out{query}", headers={**session, **token})
        assert answer.status_code == 403
    assert (await rig.client.get("/v1/me", headers=session)).status_code == 200
    assert (await sign_in(rig, code)).status_code == 204


async def test_no_agent_uses_up_its_makers_links(rig: Rig) -> None:
    owner = rig.people["owner"]
    agent = await rig.bearer(owner, kind="agent")
    for _ in range(LINKS.capacity + 1):
        assert (await rig.client.post("/v1/sign-in-links", headers=agent, json={})).status_code == 403
    await new_link(rig, await rig.cookie(owner))


async def test_a_token_makes_no_link_that_is_stronger_than_itself(rig: Rig) -> None:
    admin, there = rig.people["admin"], rig.people["stranger"]
    whole, some = await rig.bearer(admin, *SCOPES), await rig.bearer(admin, "instance", "read", "approve")
    expiring = await rig.bearer(admin, *SCOPES, days=1)

    async def status(token: dict[str, str], user: str | None) -> int:
        return (await rig.client.post("/v1/sign-in-links", headers=token, json={"user": user})).status_code

    assert await status(some, rig.people["approver"]) == 201  # has as much
    for more in (rig.people["owner"], rig.people["operator"], admin, None, there):
        assert await status(some, more) == 403
    assert await status(whole, rig.people["owner"]) == 201
    assert await status(whole, None) == 201
    assert await status(whole, there) == 403  # whose workspace the token is not of
    for user in (rig.people["viewer"], None):
        assert await status(expiring, user) == 403  # whose session it would not outlast
    await rig.rows(
        "insert into membership (workspace_id, user_id, role, created_at) "
        f"values ('{rig.other}', '{rig.people['viewer']}', 'viewer', 1)"
    )
    assert await status(whole, rig.people["viewer"]) == 403  # a session reaches there, too
    assert await status(await rig.cookie(admin), rig.people["viewer"]) == 201


async def test_a_token_that_can_do_less_makes_nobody_an_admin(rig: Rig) -> None:
    """By a workspace of their own an admin can do everything: with a link for them, the token could."""
    admin = rig.people["admin"]
    some, whole = await rig.bearer(admin, "instance", "read", "approve"), await rig.bearer(admin, *SCOPES)
    viewer, new = f"/v1/users/{rig.people['viewer']}", {"name": "New", "instanceAdmin": True}
    assert (await rig.client.patch(viewer, headers=some, json={"instanceAdmin": True})).status_code == 403
    assert (await rig.client.post("/v1/users", headers=some, json=new)).status_code == 403
    assert (await rig.client.patch(viewer, headers=some, json={"name": "V"})).status_code == 200
    assert (await rig.client.patch(viewer, headers=whole, json={"instanceAdmin": True})).status_code == 200
    assert (await rig.client.post("/v1/users", headers=whole, json=new)).status_code == 201


async def test_a_token_of_one_workspace_does_not_become_a_session_in_all(rig: Rig) -> None:
    answer = await rig.client.post(
        "/v1/sign-in-links", headers=await rig.bearer(rig.people["owner"]), json={}
    )
    assert answer.status_code == 403


async def test_links_are_limited_for_each_person(rig: Rig) -> None:
    owner = await rig.cookie(rig.people["owner"])
    for _ in range(LINKS.capacity):
        await new_link(rig, owner)
    answer = await rig.client.post("/v1/sign-in-links", headers=owner, json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "20")
    made = len(await rig.rows("select hash from sign_in_link"))
    assert made == LINKS.capacity
    await new_link(rig, await rig.cookie(rig.people["viewer"]))


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::"),
        (("2001:db8:1:2::9", 1), "2001:db8:1:2::"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("fe80::1%eth0", 1), "fe80::"),
        (("127.0.0.1", 1), "loopback"),
        (("127.255.3.9", 1), "loopback"),
        (("::1", 1), "loopback"),
        (("::ffff:127.0.0.2", 1), "loopback"),
        (("", 0), "unknown"),
        (None, "unknown"),
    ],
)
def test_callers_are_told_apart_by_their_network(client: tuple[str, int] | None, address: str) -> None:
    assert address_of(Request({"type": "http", "headers": [], "client": client})) == address


async def test_the_code_is_in_no_table_and_no_answer_but_one(rig: Rig) -> None:
    code = await new_link(rig, await rig.cookie(rig.people["owner"]))
    tables = [
        str([dict(row) for row in await rig.rows(f"select * from {name}")])
        for name in ("sign_in_link", "audit")
    ]
    assert len(tables[0]) > 50
    assert code not in "".join(tables)


async def test_the_page_and_its_files_are_strict(rig: Rig) -> None:
    page = await rig.client.get("/sign-in")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "<script>" not in page.text
    for name, kind in (("sign-in.js", "text/javascript"), ("sign-in.css", "text/css")):
        assert f"sign-in/{name}" in page.text
        found = await rig.client.get(f"/sign-in/{name}")
        assert (found.status_code, found.headers["content-type"].partition(";")[0]) == (200, kind)
    assert (await rig.client.get("/sign-in/rig.py")).status_code == 404


# Links by mail.


async def ask_for_mail(rig: Rig, email: str) -> httpx2.Response:
    return await rig.client.post("/v1/sign-in-mails", json={"email": email})


async def test_without_a_mail_server_no_link_is_sent_and_the_page_is_told(rig: Rig) -> None:
    assert (await rig.client.get("/v1/sign-in-ways")).json() == {"mail": False}
    answer = await ask_for_mail(rig, "ada@example.org")
    assert (answer.status_code, "no mail server is set" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_known_address_gets_a_link_and_every_address_the_same_answer(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with sinking() as sink:
        flags = {
            "notify_smtp": sink.url(),
            "notify_from": "legation@example.org",
            "notify_to": "ops@example.org",
        }
        async with open_rig(dialect, tmp_path, request, **flags) as rig:
            admin = await rig.cookie(rig.people["admin"])
            for name, role in (("Ada", "approver"), ("Nobody's", None), ("Gone", "viewer")):
                body = {"name": name, "email": f"{name[:3]}@Example.org", "role": role}
                made = (await rig.client.post("/v1/users", headers=admin, json=body)).json()
            gone = await rig.client.patch(f"/v1/users/{made['id']}", headers=admin, json={"disabled": True})
            assert gone.status_code == 200, gone.text
            assert (await rig.client.get("/v1/sign-in-ways")).json() == {"mail": True}
            answers = [
                await ask_for_mail(rig, f"{who}@example.org") for who in ("ADA", "nob", "gon", "stranger")
            ]
            assert {(each.status_code, each.content) for each in answers} == {(202, b"")}
            await rig.services.mail_tasks.settle()
            (letter,) = sink.letters
            assert letter.recipients == ["ADA@example.org"]
            (code,) = re.findall(r"/sign-in#(\S+)", letter.message.get_content())
            answer = await sign_in(rig, code)
            me = (await rig.client.get("/v1/me", headers=session_of(answer))).json()
            assert "approve" in me["scopes"]
            assert (await sign_in(rig, code)).status_code == 401  # once
            # Whoever asks again and again is stopped, whatever they ask for; no address is flooded, and nothing tells so.
            assert (await ask_for_mail(rig, "stranger@example.org")).status_code == 202
            refused = await ask_for_mail(rig, "ada@example.org")
            assert (refused.status_code, "retryAfter" in refused.text) == (429, True)
            for _ in range(4):
                rig.clock.advance(121)
                assert (await ask_for_mail(rig, "ada@example.org")).status_code == 202
            await rig.services.mail_tasks.settle()
            assert len(sink.letters) == 1 + LINK_MAILS_TO_ADDRESS.capacity
            assert "example.org" not in str(await rig.rows("select * from bucket"))


async def test_another_sites_page_asks_for_no_mail(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with sinking() as sink:
        flags = {
            "notify_smtp": sink.url(),
            "notify_from": "legation@example.org",
            "notify_to": "ops@example.org",
        }
        async with open_rig("sqlite", tmp_path, request, **flags) as rig:
            answer = await rig.client.post(
                "/v1/sign-in-mails",
                json={"email": "a@example.org"},
                headers={"Origin": "https://evil.example"},
            )
            assert answer.status_code == 403
