"""Users, workspaces and members, on both databases."""

import asyncio

import pytest
from tests.store.database.databases import Either
from tests.store.people import (
    NOW,
    actions,
    add_user,
    add_workspace,
    install,
    role_of,
    rows_of,
    server_of,
    sign_in,
    token_principal,
)

from legation.clock import new_id
from legation.errors import Conflict, Forbidden, NotFound
from legation.store.identity import members, users, workspaces
from legation.store.identity.tokens import standing
from legation.store.identity.workspaces import bootstrap
from legation.wire.api.identity import NewUser, NewWorkspace, UserChange

pytestmark = pytest.mark.heavy


async def test_the_first_start_makes_a_workspace_and_its_owner(database: Either) -> None:
    installed = await database.transact(bootstrap, "usr_first", now_ms=NOW)
    assert (installed.workspace, installed.user, installed.created) == ("local", "usr_first", True)
    found = await database.read(standing, "usr_first", "local")
    assert found is not None
    assert found.scopes == {"read", "call", "operate", "approve", "manage", "instance", "backup"}
    assert await actions(database) == ["workspace.created", "user.created"]


async def test_a_later_start_finds_what_the_first_made(database: Either) -> None:
    first = await database.transact(bootstrap, "usr_first", now_ms=NOW)
    later = await database.transact(bootstrap, "usr_second", now_ms=NOW + 1)
    assert (later.workspace, later.user, later.created) == (first.workspace, first.user, False)
    assert len(await database.read(rows_of, "select id from app_user")) == 1


async def test_of_servers_that_start_together_one_installs(database: Either) -> None:
    starts = [database.transact(bootstrap, f"usr_{number}", now_ms=NOW) for number in range(8)]
    installed = await asyncio.gather(*starts)
    assert sum(each.created for each in installed) == 1
    assert len({each.user for each in installed}) == 1
    assert len(await database.read(rows_of, "select id from app_user")) == 1


async def test_a_later_start_prefers_an_owner_who_is_not_disabled(database: Either) -> None:
    server = await install(database)
    assert server.user
    other = await add_user(database, server, "owner", admin=True)
    await database.transact(users.change, server, server.user, UserChange(disabled=True), now_ms=NOW)
    assert (await database.transact(bootstrap, "usr_new", now_ms=NOW)).user == other


async def test_a_user_is_created_with_a_role(database: Either) -> None:
    server = await install(database)
    user = await database.transact(
        users.create,
        server,
        NewUser(name="Ada", email="Ada@Example.org", role="viewer"),
        user="usr_a",
        now_ms=NOW,
    )
    assert (user.id, user.name, user.email, user.instance_admin) == ("usr_a", "Ada", "ada@example.org", False)
    assert await role_of(database, "local", "usr_a") == "viewer"
    assert await database.read(users.get, "usr_a") == user
    assert (await actions(database))[-2:] == ["user.created", "member.set"]


async def test_a_taken_address_is_told_and_nothing_is_made(database: Either) -> None:
    server = await install(database)
    for user in ("usr_a", "usr_b"):
        new = NewUser(name=user, email="ada@example.org", role="viewer")
        if user == "usr_a":
            await database.transact(users.create, server, new, user=user, now_ms=NOW)
            continue
        with pytest.raises(Conflict, match=r"cannot create the user: ada@example\.org belongs to another"):
            await database.transact(
                users.create, server, NewUser(name="B", email="ADA@example.org"), user=user, now_ms=NOW
            )
    assert (await actions(database)).count("user.created") == 2  # the owner and the first
    with pytest.raises(NotFound):
        await database.read(users.get, "usr_b")


async def test_a_role_takes_the_right_to_manage(database: Either) -> None:
    server = await install(database)
    admin_only = token_principal(server.user or "", "local", "instance")
    with pytest.raises(Forbidden, match="manage"):
        await add_user(database, admin_only, "owner")
    assert await add_user(database, admin_only)


async def test_users_are_listed_in_pages(database: Either) -> None:
    server = await install(database)
    made = [await add_user(database, server) for _ in range(4)]
    first = await database.read(users.page, 3)
    second = await database.read(users.page, 3, first.next or "")
    assert [user.id for user in first.items + second.items] == [server.user, *made]
    assert (len(first.items), first.next, second.next) == (3, made[1], None)
    whole = await database.read(users.page, 5)
    assert (len(whole.items), whole.next) == (5, None)


async def test_changes_of_a_user_are_told_one_by_one(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    before = len(await actions(database))
    change = UserChange(name="Grace", instance_admin=True)
    changed = await database.transact(users.change, server, user, change, now_ms=NOW + 5)
    assert (changed.name, changed.instance_admin, changed.disabled_at) == ("Grace", True, None)
    for wanted in (UserChange(disabled=True), UserChange(disabled=False), UserChange(sign_out=True)):
        await database.transact(users.change, server, user, wanted, now_ms=NOW + 9)
    assert (await actions(database))[before:] == [
        "user.changed",
        "user.disabled",
        "user.enabled",
        "user.signed-out",
    ]


async def test_what_changes_nothing_is_not_told(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    before = await actions(database)
    await database.transact(users.change, server, user, UserChange(), now_ms=NOW)
    await database.transact(users.change, server, user, UserChange(name="Ada", disabled=False), now_ms=NOW)
    await database.transact(members.put, server, user, "viewer", now_ms=NOW)
    assert await actions(database) == before


async def test_disabling_and_signing_out_raise_the_token_version(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    versions = []
    for wanted in (
        UserChange(name="x"),
        UserChange(disabled=True),
        UserChange(disabled=False),
        UserChange(sign_out=True),
    ):
        await database.transact(users.change, server, user, wanted, now_ms=NOW)
        found = await database.read(standing, user, "local")
        assert found is not None
        versions.append((found.token_version, found.welcome))
    assert versions == [(1, True), (2, False), (2, True), (3, True)]


@pytest.mark.parametrize("change", [UserChange(disabled=True), UserChange(instance_admin=False)])
async def test_the_last_admin_stays(database: Either, change: UserChange) -> None:
    server = await install(database)
    assert server.user
    disabled = await add_user(database, server, admin=True)
    await database.transact(users.change, server, disabled, UserChange(disabled=True), now_ms=NOW)
    with pytest.raises(Conflict, match="nobody else could look after the installation"):
        await database.transact(users.change, server, server.user, change, now_ms=NOW)
    assert not (await database.read(users.get, server.user)).disabled_at
    await add_user(database, server, admin=True)
    await database.transact(users.change, server, server.user, change, now_ms=NOW)


async def test_two_admins_cannot_disable_each_other_at_once(database: Either) -> None:
    server = await install(database)
    assert server.user
    other = await add_user(database, server, admin=True)
    outcomes = await asyncio.gather(
        *(
            database.transact(users.change, server, user, UserChange(disabled=True), now_ms=NOW)
            for user in (server.user, other)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(each, Conflict) for each in outcomes) == 1


async def test_an_unknown_user_is_not_found(database: Either) -> None:
    server = await install(database)
    with pytest.raises(NotFound):
        await database.read(users.get, "usr_none")
    with pytest.raises(NotFound):
        await database.transact(users.change, server, "usr_none", UserChange(name="x"), now_ms=NOW)
    with pytest.raises(NotFound):
        await database.transact(members.put, server, "usr_none", "viewer", now_ms=NOW)
    with pytest.raises(NotFound):
        await database.transact(members.remove, server, "usr_none", now_ms=NOW)


async def test_a_workspace_belongs_to_whoever_made_it(database: Either) -> None:
    server = await install(database)
    assert server.user
    new = NewWorkspace(name="Research")
    made = await database.transact(
        workspaces.create, server, server.user, new, workspace="wsp_r", now_ms=NOW + 7
    )
    assert (made.id, made.name, made.role, made.status, made.created_at) == (
        "wsp_r",
        "Research",
        "owner",
        "active",
        NOW + 7,
    )
    told = await database.read(
        rows_of, "select workspace_id from audit where target = 'wsp_r' order by workspace_id"
    )
    assert [row["workspace_id"] for row in told] == ["local", "wsp_r"]


async def test_a_foreign_workspace_and_none_at_all_are_the_same(database: Either) -> None:
    server = await install(database)
    stranger = await add_user(database, server)
    other = await add_workspace(database, server, stranger)
    answers = []
    for workspace in (other, "wsp_none"):
        with pytest.raises(NotFound) as refused:
            await database.read(workspaces.get, workspace, server.user or "")
        answers.append(str(refused.value))
    assert answers[0] == answers[1]
    listed = await database.read(workspaces.page, stranger, 10)
    assert [workspace.id for workspace in listed.items] == [other]


async def test_a_user_has_a_role_in_each_workspace(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    other = await add_workspace(database, server, user)
    scopes = {}
    for workspace in ("local", other, "wsp_none"):
        found = await database.read(standing, user, workspace)
        assert found is not None
        scopes[workspace] = found.scopes
    assert scopes == {
        "local": {"read"},
        other: {"read", "call", "operate", "approve", "manage"},
        "wsp_none": frozenset(),
    }
    assert await database.read(standing, "usr_none", "local") is None


async def test_members_come_change_and_go(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, name="Ada")
    member = await database.transact(members.put, server, user, "operator", now_ms=NOW + 1)
    assert (member.user, member.name, member.role, member.since) == (user, "Ada", "operator", NOW + 1)
    member = await database.transact(members.put, server, user, "approver", now_ms=NOW + 2)
    assert (member.role, member.since) == ("approver", NOW + 1)
    await database.transact(members.remove, server, user, now_ms=NOW + 3)
    assert await role_of(database, "local", user) is None
    assert (await actions(database))[-3:] == ["member.set", "member.set", "member.removed"]


async def test_a_member_of_another_workspace_is_no_member_here(database: Either) -> None:
    server = await install(database)
    stranger = await add_user(database, server)
    other = await add_workspace(database, server, stranger)
    assert await role_of(database, other, stranger) == "owner"
    with pytest.raises(NotFound):
        await database.transact(members.remove, server, stranger, now_ms=NOW)
    assert await role_of(database, other, stranger) == "owner"


async def test_the_last_owner_stays(database: Either) -> None:
    server = await install(database)
    assert server.user
    disabled = await add_user(database, server, "owner")
    await database.transact(users.change, server, disabled, UserChange(disabled=True), now_ms=NOW)
    with pytest.raises(Conflict, match="nobody else could look after workspace local"):
        await database.transact(members.remove, server, server.user, now_ms=NOW)
    with pytest.raises(Conflict, match="nobody else could look after workspace local"):
        await database.transact(members.put, server, server.user, "viewer", now_ms=NOW)
    await add_user(database, server, "owner")
    await database.transact(members.put, server, server.user, "viewer", now_ms=NOW)
    assert await role_of(database, "local", server.user) == "viewer"


async def test_two_owners_cannot_remove_each_other_at_once(database: Either) -> None:
    server = await install(database)
    assert server.user
    other = await add_user(database, server, "owner")
    outcomes = await asyncio.gather(
        *(database.transact(members.remove, server, user, now_ms=NOW) for user in (server.user, other)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, Conflict) for each in outcomes) == 1


async def test_a_new_id_is_plain_enough_for_the_audit_log(database: Either) -> None:
    installed = await database.transact(bootstrap, new_id("usr", now_ms=NOW), now_ms=NOW)
    owner = await sign_in(database, installed.user, "local")
    assert await add_user(database, owner, "viewer")
    assert server_of(installed).user == installed.user
