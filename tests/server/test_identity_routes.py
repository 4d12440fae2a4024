"""Users, workspaces, members, tokens and the audit log over HTTP."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.rig import BOTH, Rig, bearer, open_rig

from legation.server.routes.rates import TOKENS, USERS
from legation.wire.api.identity import UserChange

pytestmark = pytest.mark.heavy


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def admin(rig: Rig) -> dict[str, str]:
    return bearer(rig.services.own_token.reveal())


async def test_users_are_made_read_listed_and_changed(rig: Rig, admin: dict[str, str]) -> None:
    new = {"name": "Ada", "email": "Ada@example.org", "role": "viewer"}
    answer = await rig.client.post("/v1/users", headers=admin, json=new)
    assert answer.status_code == 201
    ada = answer.json()
    assert (ada["name"], ada["email"], ada["instanceAdmin"]) == ("Ada", "ada@example.org", False)
    assert (await rig.client.get(f"/v1/users/{ada['id']}", headers=admin)).json() == ada
    listed = (await rig.client.get("/v1/users", headers=admin)).json()
    assert ada in listed["items"]
    assert (len(listed["items"]), listed["next"]) == (7, None)
    change = {"name": "Grace", "disabled": True}
    changed = (await rig.client.patch(f"/v1/users/{ada['id']}", headers=admin, json=change)).json()
    assert (changed["name"], changed["disabledAt"]) == ("Grace", rig.clock.now_ms())


async def test_a_taken_address_is_a_conflict_that_says_so(rig: Rig, admin: dict[str, str]) -> None:
    for status in (201, 409):
        answer = await rig.client.post("/v1/users", headers=admin, json={"name": "A", "email": "a@b.org"})
        assert answer.status_code == status
    assert "a@b.org belongs to another user" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": " "},
        {"name": "a\0b"},
        {"name": "Ada\n"},
        {"name": "A", "email": "a@b.org\n"},
        {"name": "x" * 101},
        {"name": "A", "email": "no-at-sign"},
        {"name": "A", "role": "king"},
        {"name": "A", "color": "red"},
        {"name": "\ud800"},
    ],
)
async def test_a_bad_user_is_refused(rig: Rig, admin: dict[str, str], body: dict[str, str]) -> None:
    answer = await rig.client.post(
        "/v1/users", headers={**admin, "content-type": "application/json"}, content=json.dumps(body)
    )
    assert answer.status_code == 400


async def test_the_last_admin_and_the_last_owner_stay(rig: Rig, admin: dict[str, str]) -> None:
    me = rig.people["admin"]
    for body in ({"disabled": True}, {"instanceAdmin": False}):
        assert (await rig.client.patch(f"/v1/users/{me}", headers=admin, json=body)).status_code == 409
    stranger = await rig.cookie(rig.people["stranger"], rig.other)
    path = f"/v1/workspaces/{rig.other}/members/{rig.people['stranger']}"
    answer = await rig.client.delete(path, headers=stranger)
    assert answer.status_code == 409
    assert "make another member its owner first" in answer.json()["detail"]
    assert (await rig.client.put(path, headers=stranger, json={"role": "viewer"})).status_code == 409


async def test_lists_come_in_pages(rig: Rig, admin: dict[str, str]) -> None:
    seen, after = [], ""
    while True:
        page = (await rig.client.get("/v1/users", headers=admin, params={"limit": 2, "after": after})).json()
        seen += [user["id"] for user in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert len(seen) == len(set(seen)) == 6
    assert (await rig.client.get("/v1/users?limit=0", headers=admin)).status_code == 400
    assert (await rig.client.get("/v1/users?limit=501", headers=admin)).status_code == 400


async def test_the_maker_owns_a_new_workspace(rig: Rig, admin: dict[str, str]) -> None:
    answer = await rig.client.post("/v1/workspaces", headers=admin, json={"name": "Research"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["role"], made["status"]) == ("Research", "owner", "active")
    session = await rig.cookie(rig.people["admin"])
    listed = (await rig.client.get("/v1/workspaces", headers=session)).json()
    assert {workspace["id"] for workspace in listed["items"]} == {"local", made["id"]}
    token = await rig.bearer(rig.people["admin"])
    only = (await rig.client.get("/v1/workspaces", headers=token)).json()
    assert [workspace["id"] for workspace in only["items"]] == ["local"]
    assert (await rig.client.get(f"/v1/workspaces/{made['id']}", headers=session)).json() == made
    assert (await rig.client.get(f"/v1/workspaces/{made['id']}", headers=token)).status_code == 404


async def test_the_role_in_the_workspace_of_the_path_decides(rig: Rig) -> None:
    """A viewer here who owns another workspace manages that one, from a session that began here."""
    stranger = rig.people["stranger"]
    owner = await rig.cookie(rig.people["owner"])
    path = f"/v1/workspaces/local/members/{stranger}"
    assert (await rig.client.put(path, headers=owner, json={"role": "viewer"})).status_code == 200
    session = await rig.cookie(stranger)
    there = f"/v1/workspaces/{rig.other}/members/{rig.people['viewer']}"
    assert (await rig.client.put(there, headers=session, json={"role": "approver"})).status_code == 200
    assert (await rig.client.put(path, headers=session, json={"role": "owner"})).status_code == 403
    encoded = there.replace("/v1/workspaces", "/v1/%77orkspaces").replace("_", "%5F")
    assert (await rig.client.delete(encoded, headers=session)).status_code == 204


async def test_members_come_change_and_go(rig: Rig) -> None:
    owner = await rig.bearer(rig.people["owner"])
    path = f"/v1/workspaces/local/members/{rig.people['stranger']}"
    made = await rig.client.put(path, headers=owner, json={"role": "operator"})
    assert (made.status_code, made.json()["name"], made.json()["role"]) == (200, "stranger", "operator")
    listed = (await rig.client.get("/v1/workspaces/local/members", headers=owner)).json()["items"]
    assert made.json() in listed
    assert (await rig.client.delete(path, headers=owner)).status_code == 204
    assert (await rig.client.delete(path, headers=owner)).status_code == 404
    missing = "/v1/workspaces/local/members/usr_none"
    assert (await rig.client.put(missing, headers=owner, json={"role": "viewer"})).status_code == 404


async def test_a_token_is_shown_once_works_and_is_revoked(rig: Rig) -> None:
    owner = await rig.cookie(rig.people["owner"])
    new = {"label": "ci", "kind": "agent", "scopes": ["read", "operate"], "expiresInDays": 30}
    answer = await rig.client.post("/v1/tokens", headers=owner, json=new)
    assert answer.status_code == 201
    secret, token = answer.json()["secret"], answer.json()["token"]
    assert secret.startswith("lgn_")
    assert token["hint"] == secret[-4:]
    assert token["expiresAt"] == rig.clock.now_ms() + 30 * 86_400_000
    me = (await rig.client.get("/v1/me", headers=bearer(secret))).json()
    assert (me["id"], me["scopes"], me["level"]) == (token["id"], ["operate", "read"], 0)
    listed = await rig.client.get("/v1/tokens", headers=owner)
    assert secret not in listed.text
    assert [each["id"] for each in listed.json()["items"]] == [token["id"]]
    for _ in range(2):
        assert (await rig.client.delete(f"/v1/tokens/{token['id']}", headers=owner)).status_code == 204
    assert (await rig.client.get("/v1/me", headers=bearer(secret))).status_code == 401


async def test_a_token_made_with_a_token_lasts_no_longer(rig: Rig) -> None:
    by = await rig.bearer(rig.people["owner"], days=2)
    ends = rig.clock.now_ms() + 2 * 86_400_000
    made = [
        await rig.client.post("/v1/tokens", headers=by, json={"label": "new", "expiresInDays": days})
        for days in (None, 1, 2, 3)
    ]
    assert [answer.status_code for answer in made] == [201, 201, 201, 403]
    assert [answer.json()["token"]["expiresAt"] for answer in made[:3]] == [ends, ends - 86_400_000, ends]


async def test_a_token_makes_no_stronger_one(rig: Rig) -> None:
    narrow = await rig.bearer(rig.people["owner"], "manage", "read")
    supervisor = await rig.bearer(rig.people["owner"], kind="supervisor")
    for headers, new in (
        (narrow, {"label": "x", "scopes": ["approve"]}),
        (narrow, {"label": "x", "scopes": ["read", "instance"]}),
        (supervisor, {"label": "x", "kind": "user"}),
    ):
        assert (await rig.client.post("/v1/tokens", headers=headers, json=new)).status_code == 403
    made = await rig.client.post("/v1/tokens", headers=narrow, json={"label": "x"})
    assert made.json()["token"]["scopes"] == ["manage", "read"]


async def test_the_process_token_makes_tokens_that_outlive_it(rig: Rig, admin: dict[str, str]) -> None:
    new = {"label": "mine", "scopes": ["read", "instance"]}
    secret = (await rig.client.post("/v1/tokens", headers=admin, json=new)).json()["secret"]
    me = (await rig.client.get("/v1/me", headers=bearer(secret))).json()
    assert (me["kind"], me["scopes"]) == ("token", ["instance", "read"])
    await rig.add_user("owner", admin=True)
    await rig.change_user(rig.people["admin"], UserChange(instance_admin=False))
    assert (await rig.client.get("/v1/me", headers=bearer(secret))).json()["scopes"] == ["read"]


async def test_making_tokens_and_users_is_limited(rig: Rig, admin: dict[str, str]) -> None:
    for path, limit, table in (("/v1/tokens", TOKENS, "api_token"), ("/v1/users", USERS, "app_user")):
        before = len(await rig.rows(f"select id from {table}"))
        for number in range(limit.capacity):
            body = {"label": "x"} if path == "/v1/tokens" else {"name": f"user {number}"}
            assert (await rig.client.post(path, headers=admin, json=body)).status_code == 201
        answer = await rig.client.post(path, headers=admin, json=body)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert len(await rig.rows(f"select id from {table}")) == before + limit.capacity


async def test_every_change_is_in_the_audit_log_the_newest_first(rig: Rig, admin: dict[str, str]) -> None:
    rig.clock.advance(1)
    client = rig.client
    user = (await client.post("/v1/users", headers=admin, json={"name": "Ada", "role": "viewer"})).json()[
        "id"
    ]
    token = (await client.post("/v1/tokens", headers=admin, json={"label": "x"})).json()["token"]["id"]
    await client.delete(f"/v1/tokens/{token}", headers=admin)
    await client.patch(f"/v1/users/{user}", headers=admin, json={"name": "B", "instanceAdmin": True})
    await client.patch(f"/v1/users/{user}", headers=admin, json={"disabled": True})
    await client.put(f"/v1/workspaces/local/members/{user}", headers=admin, json={"role": "operator"})
    await client.delete(f"/v1/workspaces/local/members/{user}", headers=admin)
    await client.post("/v1/sign-in-links", headers=admin, json={})
    page = (await client.get("/v1/audit", headers=admin, params={"limit": 9})).json()
    rows = page["items"]
    assert [(row["action"], row["target"]) for row in reversed(rows)] == [
        ("user.created", user),
        ("member.set", user),
        ("token.created", token),
        ("token.revoked", token),
        ("user.changed", user),
        ("user.disabled", user),
        ("member.set", user),
        ("member.removed", user),
        ("link.created", rig.people["admin"]),
    ]
    owner = rig.people["admin"]  # by the token of the process
    assert {(row["actorKind"], row["actor"], row["details"]["via"]) for row in rows} == {
        ("user", owner, "server")
    }
    assert rows[4]["details"] == {"changed": "name,admin", "via": "server"}
    assert rows[2]["details"] == {"role": "operator", "before": "viewer", "via": "server"}
    older = (await client.get("/v1/audit", headers=admin, params={"after": page["next"]})).json()
    assert older["items"]
    assert not {row["id"] for row in older["items"]} & {row["id"] for row in rows}


async def test_what_fails_leaves_no_trace_of_success(rig: Rig, admin: dict[str, str]) -> None:
    before = await rig.actions()
    for method, path, body in (
        ("POST", "/v1/users", {"name": "A", "email": "bad"}),
        ("PATCH", f"/v1/users/{rig.people['admin']}", {"disabled": True}),
        ("PUT", "/v1/workspaces/local/members/usr_none", {"role": "viewer"}),
        ("DELETE", "/v1/tokens/tok_none", None),
    ):
        answer = await rig.client.request(method, path, headers=admin, json=body)
        assert answer.status_code in (400, 404, 409)
    assert await rig.actions() == before


async def test_what_was_expected_is_told_in_words_not_as_a_pattern(rig: Rig) -> None:
    owner = await rig.bearer(rig.services.installed.user, "instance")
    answer = await rig.knock("POST", "/v1/users", owner, {"name": "Eve", "email": "notmail"})
    assert answer.status == 400
    assert json.loads(answer.body)["data"] == {
        "path": "$.email",
        "expected": "an address like ada@example.org",
    }
