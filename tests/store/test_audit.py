from typing import Any, get_args

import pytest
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces

from legation.errors import Conflict, InternalError
from legation.secret import Secret
from legation.store import audit
from legation.store.audit import record
from legation.store.database.transaction import Transaction
from legation.store.secrets.sealer import LONGEST, LONGEST_WORD, must_be_plain
from legation.wire.principal import Principal

NOW = 1_700_000_000_000


def somebody(workspace: str = "local") -> Principal:
    return Principal(kind="user", id="usr_1", workspace=workspace, scopes=frozenset(), level=2)


async def targets(database: Either, workspace: str, after: str | None = None, limit: int = 100) -> list[str]:
    return [entry.target for entry in await database.read(audit.page, workspace, after, limit)]


async def test_a_change_is_told_as_it_was_recorded(database: Either) -> None:
    await add_workspaces(database)
    details: dict[str, audit.Detail] = {
        "role": "owner",
        "count": 3,
        "first": True,
        "before": None,
        "address": "2001:db8::7",
    }
    await database.transact(record, somebody(), "member.set", "usr_2", details, NOW)
    (entry,) = await database.read(audit.page, "local", None, 10)
    assert entry.id.startswith("aud_")
    assert (entry.at, entry.actor_kind, entry.actor) == (NOW, "user", "usr_1")
    assert (entry.action, entry.target, entry.details) == ("member.set", "usr_2", details)


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_nothing(database: Either) -> None:
    await add_workspaces(database)
    for number in range(7):
        await database.transact(record, somebody(), "token.created", f"tok_{number}", {}, NOW + number // 3)
    seen: list[str] = []
    after = None
    while page := await database.read(audit.page, "local", after, 3):
        seen += [entry.target for entry in page]
        after = page[-1].id
    assert seen == [f"tok_{number}" for number in reversed(range(7))]


async def test_a_workspace_sees_only_its_own(database: Either) -> None:
    await add_workspaces(database)
    await database.transact(record, somebody("other"), "token.created", "tok_1", {}, NOW)
    assert await targets(database, "local") == []
    (entry,) = await database.read(audit.page, "other", None, 1)
    assert await targets(database, "local", after=entry.id + "z") == []


async def test_a_change_that_fails_leaves_no_row(database: Either) -> None:
    await add_workspaces(database)

    def change() -> Transaction[None]:
        yield from record(somebody(), "token.created", "tok_1", {}, NOW)
        raise Conflict("cannot make it: it is there; choose another")

    with pytest.raises(Conflict):
        await database.transact(change)
    assert await targets(database, "local") == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("x." * LONGEST, "longer than"),
        ("two words", "more than letters"),
        ("Zoë", "more than letters"),
        ("line\n", "more than letters"),
        ("ada@example.com", "more than letters"),
        ("a" * (LONGEST_WORD + 1), "a word of more than"),
        (Secret("hunter2"), "no text"),
        (b"hunter2", "no text"),
        (1.5, "no text"),
        (2**63, "no text"),
        ({"nested": 1}, "no text"),
    ],
)
async def test_what_could_hold_a_secret_is_refused_and_not_quoted(
    database: Either, value: Any, why: str
) -> None:
    await add_workspaces(database)
    with pytest.raises(InternalError, match=why) as refused:
        await database.transact(record, somebody(), "token.created", "tok_1", {"label": value}, NOW)
    assert "detail label of token.created" in refused.value.message
    if isinstance(value, str):
        assert value not in refused.value.message
    assert await targets(database, "local") == []


async def test_target_actor_and_names_of_details_are_held_to_the_same(database: Either) -> None:
    await add_workspaces(database)
    secret = "a secret, typed"
    typed = Principal(kind="user", id=secret, workspace="local", scopes=frozenset(), level=2)
    for work in (
        lambda: record(somebody(), "token.created", secret, {}, NOW),
        lambda: record(somebody(), "token.created", "tok_1", {secret: 1}, NOW),
        lambda: record(typed, "token.created", "tok_1", {}, NOW),
    ):
        with pytest.raises(InternalError) as refused:
            await database.transact(work)
        assert secret not in refused.value.message
    assert await targets(database, "local") == []


async def test_a_change_that_is_not_listed_is_refused(database: Either) -> None:
    with pytest.raises(InternalError, match="does not list"):
        await database.transact(record, somebody(), "user.teleported", "usr_1", {}, NOW)  # type: ignore[arg-type]


def test_every_change_has_a_meaning() -> None:
    assert set(get_args(audit.Change)) == audit.MEANINGS.keys()


def test_ids_addresses_and_fixed_words_are_plain() -> None:
    for text in ("usr_0123456789abcdefghjkmnpqrs", "fe80::1%eth0", "192.0.2.7", "read,operate", "0.1.0", ""):
        assert must_be_plain(text, "it") == text
