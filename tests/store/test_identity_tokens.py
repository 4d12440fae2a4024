"""API tokens, on both databases: what they may do follows their maker."""

import pytest
from msgspec.structs import replace
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

from legation.clock import new_id
from legation.errors import Forbidden, InvalidParams, NotFound
from legation.secret import Secret
from legation.store.identity import members, tokens, users
from legation.store.identity.tokens import DAY_MS, CredentialHash, Hashed, hint_of, new_token
from legation.store.secrets.sealer import new_key_text
from legation.wire.api.identity import NewToken, Token, TokenKind, UserChange
from legation.wire.principal import Principal, Role, Scope

pytestmark = pytest.mark.heavy

PEPPER = Secret(new_key_text(), "pepper")
HASHES = CredentialHash(PEPPER)


async def make(
    database: Either,
    by: Principal,
    *scopes: Scope,
    kind: TokenKind = "user",
    days: int | None = None,
) -> tuple[Token, Secret]:
    secret = new_token()
    new = NewToken(label="ci", kind=kind, scopes=[*scopes] or None, expires_in_days=days)
    kept = Hashed(HASHES.token(secret.reveal()), hint_of(secret))
    made = await database.transact(
        tokens.create, by, by.user or "", new, kept, token=new_id("tok", now_ms=NOW), now_ms=NOW
    )
    return made, secret


async def whom(database: Either, secret: Secret, now_ms: int = NOW) -> Principal | None:
    return await database.read(tokens.principal_of, HASHES.token(secret.reveal()), now_ms)


async def member(database: Either, server: Principal, role: Role) -> Principal:
    user = await add_user(database, server, role)
    return await sign_in(database, user, "local")


def test_a_token_has_24_bytes_of_chance_and_is_recognised() -> None:
    secret = new_token(lambda count: bytes(range(count)))
    assert secret.reveal() == "lgn_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
    assert hint_of(secret) == "FRYX"
    assert new_token() != new_token()


def test_a_hash_depends_on_the_pepper_and_on_the_purpose() -> None:
    other = CredentialHash(Secret(new_key_text(), "pepper"))
    assert len({HASHES.token("x"), HASHES.link("x"), other.token("x"), other.link("x")}) == 4
    assert HASHES.token("x") == CredentialHash(PEPPER).token("x")


async def test_a_token_stands_for_its_maker(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    made, secret = await make(database, owner)
    assert made.scopes == ["approve", "call", "manage", "operate", "read"]
    assert (made.hint, made.user, made.last_used_at) == (secret.reveal()[-4:], owner.id, None)
    assert await whom(database, secret) == Principal(
        kind="token", id=made.id, workspace="local", scopes=frozenset(made.scopes), level=2, user=owner.id
    )
    assert (await actions(database))[-1] == "token.created"


async def test_the_token_itself_is_in_no_table(database: Either) -> None:
    server = await install(database)
    _, secret = await make(database, server)
    rows = await database.read(rows_of, "select * from api_token")
    audit = await database.read(rows_of, "select details from audit")
    text = repr([tuple(row.values()) if hasattr(row, "values") else tuple(row) for row in [*rows, *audit]])
    assert secret.reveal() not in text
    assert secret.reveal()[4:-4] not in text
    assert repr(HASHES.token(secret.reveal())) in text  # the search would have found it


@pytest.mark.parametrize(("kind", "level"), [("user", 2), ("supervisor", 1), ("agent", 0)])
async def test_the_kind_decides_the_level(database: Either, kind: TokenKind, level: int) -> None:
    server = await install(database)
    for scopes, expected in ((("read", "approve"), level), (("read", "operate"), 0)):
        _, secret = await make(database, server, *scopes, kind=kind)  # type: ignore[arg-type]
        found = await whom(database, secret)
        assert found is not None
        assert found.level == expected


@pytest.mark.parametrize("scope", ["instance", "backup"])
async def test_what_an_admin_has_must_be_asked_for(database: Either, scope: Scope) -> None:
    """Each by itself: a token for users and workspaces takes no backups."""
    server = await install(database)
    assert scope not in (await make(database, server))[0].scopes
    _, secret = await make(database, server, scope)
    found = await whom(database, secret)
    assert found is not None
    assert found.scopes == {scope}


async def test_no_token_has_more_than_its_maker(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    with pytest.raises(Forbidden, match="leave out instance"):
        await make(database, owner, "read", "instance")
    limited = token_principal(owner.id, "local", "manage", "read")
    assert (await make(database, limited))[0].scopes == ["manage", "read"]
    with pytest.raises(Forbidden, match="leave out approve"):
        await make(database, limited, "approve")
    with pytest.raises(InvalidParams, match="without any scope"):
        await make(database, replace(limited, scopes=frozenset({"instance"})))


async def test_no_token_decides_more_than_its_maker(database: Either) -> None:
    server = await install(database)
    supervisor = token_principal(server.user or "", "local", "manage", "approve", level=1)
    with pytest.raises(Forbidden, match="decides less"):
        await make(database, supervisor, kind="user")
    assert await make(database, supervisor, kind="supervisor")
    assert await make(database, supervisor, "manage", kind="user")  # which decides nothing


async def test_a_demotion_takes_from_every_token_at_once(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    _, secret = await make(database, owner)
    for role, scopes, level in (
        ("approver", {"read", "approve"}, 2),
        ("operator", {"read", "call", "operate"}, 0),
        ("viewer", {"read"}, 0),
    ):
        await database.transact(members.put, server, owner.id, role, now_ms=NOW)  # type: ignore[arg-type]
        found = await whom(database, secret)
        assert found is not None
        assert (sorted(found.scopes), found.level) == (sorted(scopes), level)


async def test_a_promotion_gives_a_token_nothing_new(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    _, secret = await make(database, owner, "read")
    await database.transact(users.change, server, owner.id, UserChange(instance_admin=True), now_ms=NOW)
    found = await whom(database, secret)
    assert found is not None
    assert found.scopes == {"read"}


async def test_an_admin_who_is_none_any_more_takes_instance_from_the_token(database: Either) -> None:
    server = await install(database)
    user = await add_user(database, server, "owner", admin=True)
    admin = await sign_in(database, user, "local")
    _, secret = await make(database, admin, "instance", "read")
    await database.transact(users.change, server, user, UserChange(instance_admin=False), now_ms=NOW)
    found = await whom(database, secret)
    assert found is not None
    assert found.scopes == {"read"}


async def test_a_revoked_token_is_nobody(database: Either) -> None:
    server = await install(database)
    made, secret = await make(database, server)
    await database.transact(tokens.revoke, server, made.id, now_ms=NOW + 1)
    await database.transact(tokens.revoke, server, made.id, now_ms=NOW + 2)
    assert await whom(database, secret) is None
    (listed,) = (await database.read(tokens.page, "local", 10)).items
    assert listed.revoked_at == NOW + 1
    assert (await actions(database)).count("token.revoked") == 1


async def test_an_expired_token_is_nobody(database: Either) -> None:
    server = await install(database)
    made, secret = await make(database, server, days=2)
    assert made.expires_at == NOW + 2 * DAY_MS
    assert await whom(database, secret, NOW + 2 * DAY_MS - 1) is not None
    assert await whom(database, secret, NOW + 2 * DAY_MS) is None


async def test_a_disabled_maker_suspends_the_token(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    _, secret = await make(database, owner)
    await database.transact(users.change, server, owner.id, UserChange(disabled=True), now_ms=NOW)
    assert await whom(database, secret) is None
    await database.transact(users.change, server, owner.id, UserChange(disabled=False), now_ms=NOW)
    assert await whom(database, secret) is not None


async def test_removing_a_member_ends_their_tokens_for_good(database: Either) -> None:
    server = await install(database)
    owner = await member(database, server, "owner")
    made, secret = await make(database, owner)
    other, _ = await make(database, server)
    await database.transact(members.remove, server, owner.id, now_ms=NOW + 1)
    assert await whom(database, secret) is None
    await database.transact(members.put, server, owner.id, "owner", now_ms=NOW + 2)
    assert await whom(database, secret) is None
    revoked = {token.id: token.revoked_at for token in (await database.read(tokens.page, "local", 10)).items}
    assert revoked == {made.id: NOW + 1, other.id: None}


async def test_an_unknown_token_is_nobody(database: Either) -> None:
    await install(database)
    assert await whom(database, new_token()) is None


async def test_tokens_of_another_workspace_are_not_found(database: Either) -> None:
    server = await install(database)
    stranger = await add_user(database, server)
    elsewhere = await add_workspace(database, server, stranger)
    owner = await sign_in(database, stranger, elsewhere)
    foreign, secret = await make(database, owner)
    answers = []
    for token in (foreign.id, "tok_none"):
        with pytest.raises(NotFound) as refused:
            await database.transact(tokens.revoke, server, token, now_ms=NOW)
        answers.append(str(refused.value))
    assert answers[0] == answers[1]
    assert await whom(database, secret) is not None
    assert (await database.read(tokens.page, "local", 10)).items == []


async def test_the_last_use_is_the_latest(database: Either) -> None:
    server = await install(database)
    made, _ = await make(database, server)
    for at in (NOW + 5, NOW + 3):
        await database.transact(tokens.note_uses, {made.id: at, "tok_none": at})
    (listed,) = (await database.read(tokens.page, "local", 10)).items
    assert listed.last_used_at == NOW + 5


async def test_a_scope_that_this_release_does_not_know_opens_nothing(database: Either) -> None:
    server = await install(database)
    _, secret = await make(database, server, "read")
    await database.transact(rows_of, "update api_token set scopes = 'read fly'")
    found = await whom(database, secret)
    assert found is not None
    assert found.scopes == {"read"}
