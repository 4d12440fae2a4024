"""One-time sign-in links, on both databases."""

import asyncio

import pytest
from tests.store.database.databases import Either
from tests.store.people import (
    NOW,
    actions,
    add_user,
    add_workspace,
    install,
    rows_of,
    sign_in,
    token_principal,
)

from legation.errors import Conflict, Forbidden, NotFound
from legation.store.identity import links, members, users
from legation.store.identity.links import LINK_MS, SignedIn
from legation.wire.api.identity import UserChange

pytestmark = pytest.mark.heavy

HASH = b"h" * 32


async def use(database: Either, now_ms: int = NOW, kept: bytes = HASH) -> SignedIn | None:
    return await database.transact(links.use, kept, now_ms=now_ms)


async def test_a_link_signs_in_once(database: Either) -> None:
    server = await install(database)
    assert await database.transact(links.issue, server, None, HASH, now_ms=NOW) == NOW + LINK_MS
    signed_in = await use(database)
    assert signed_in is not None
    assert (signed_in.standing.user, signed_in.workspace) == (server.user, "local")
    assert await use(database) is None
    assert (await actions(database))[-2:] == ["link.created", "user.signed-in"]


async def test_of_many_who_open_it_together_one_gets_in(database: Either) -> None:
    server = await install(database)
    await database.transact(links.issue, server, None, HASH, now_ms=NOW)
    outcomes = await asyncio.gather(*(use(database) for _ in range(8)))
    assert sum(each is not None for each in outcomes) == 1


async def test_a_link_lasts_ten_minutes(database: Either) -> None:
    server = await install(database)
    for kept in (b"1" * 32, b"2" * 32):
        await database.transact(links.issue, server, None, kept, now_ms=NOW)
    assert await use(database, NOW + 600_000 - 1, b"1" * 32) is not None
    assert await use(database, NOW + 600_000, b"2" * 32) is None


async def test_an_unknown_code_signs_nobody_in(database: Either) -> None:
    await install(database)
    assert await use(database) is None


async def test_a_link_of_who_is_no_longer_welcome_is_used_up_for_nothing(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    await database.transact(links.issue, server, user, HASH, now_ms=NOW)
    await database.transact(members.remove, server, user, now_ms=NOW)
    assert await use(database) is None
    await database.transact(members.put, server, user, "viewer", now_ms=NOW)
    assert await use(database) is None


@pytest.mark.parametrize("change", [UserChange(disabled=True), UserChange(sign_out=True)])
async def test_links_end_with_the_sessions(database: Either, change: UserChange) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    await database.transact(links.issue, server, user, HASH, now_ms=NOW)
    await database.transact(users.change, server, user, change, now_ms=NOW)
    await database.transact(users.change, server, user, UserChange(disabled=False), now_ms=NOW)
    assert await use(database) is None


async def test_a_link_leads_to_a_workspace_of_its_user(database: Either) -> None:
    server = await install(database)
    stranger = await add_user(database, server)
    with pytest.raises(Conflict, match="in no workspace"):
        await database.transact(links.issue, server, stranger, HASH, now_ms=NOW)
    elsewhere = await add_workspace(database, server, stranger)
    await database.transact(links.issue, server, stranger, HASH, now_ms=NOW)
    signed_in = await use(database)
    assert signed_in is not None
    assert signed_in.workspace == elsewhere


async def test_the_workspace_of_the_caller_is_preferred(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server)
    await add_workspace(database, server, user)
    await database.transact(members.put, server, user, "viewer", now_ms=NOW + 9)
    await database.transact(links.issue, server, user, HASH, now_ms=NOW)
    signed_in = await use(database)
    assert signed_in is not None
    assert (signed_in.workspace, signed_in.standing.role) == ("local", "viewer")


async def test_nobody_makes_a_link_for_another_but_an_admin(database: Either) -> None:
    server = await install(database)
    owner = await sign_in(database, await add_user(database, server, "owner"), "local")
    answers = []
    for user in (server.user, "usr_none"):
        with pytest.raises(Forbidden) as refused:
            await database.transact(links.issue, owner, user, HASH, now_ms=NOW)
        answers.append(str(refused.value))
    assert answers[0] == answers[1]
    with pytest.raises(NotFound):
        await database.transact(links.issue, server, "usr_none", HASH, now_ms=NOW)


async def test_a_weaker_credential_makes_no_stronger_session(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "owner")
    whole = token_principal(user, "local", "read", "operate", "approve", "manage")
    with pytest.raises(
        Forbidden, match="token of one workspace"
    ):  # a session reaches them all, and outlives it
        await database.transact(links.issue, whole, None, HASH, now_ms=NOW)
    for level in (0, 1):
        below = token_principal(user, "local", *whole.scopes, level=level)
        with pytest.raises(Forbidden, match="not a person's"):
            await database.transact(links.issue, below, None, HASH, now_ms=NOW)


async def test_an_admins_token_that_lacks_something_makes_no_whole_session(database: Either) -> None:
    server = await install(database)
    narrow = token_principal(server.user or "", "local", "read", "approve", "instance")
    with pytest.raises(Forbidden, match="more than your credential"):
        await database.transact(links.issue, narrow, None, HASH, now_ms=NOW)


async def test_a_viewer_who_is_signed_in_makes_a_link_for_the_next_browser(database: Either) -> None:
    server = await install(database)
    viewer = await sign_in(database, await add_user(database, server, "viewer"), "local")
    assert await database.transact(links.issue, viewer, None, HASH, now_ms=NOW)


async def test_a_disabled_user_gets_no_link(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "viewer")
    await database.transact(users.change, server, user, UserChange(disabled=True), now_ms=NOW)
    with pytest.raises(Conflict, match="disabled; enable them first"):
        await database.transact(links.issue, server, user, HASH, now_ms=NOW)


async def test_old_links_are_swept(database: Either) -> None:
    server = await install(database)
    await database.transact(links.issue, server, None, HASH, now_ms=NOW)
    await database.transact(links.issue, server, None, b"2" * 32, now_ms=NOW + 2 * 86_400_000)
    assert len(await database.read(rows_of, "select hash from sign_in_link")) == 1
