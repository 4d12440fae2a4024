import asyncio

from msgspec.structs import replace
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_key, new_keys

from legation.clock import SystemClock
from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.sealer import Key, KeyRing, Keys, Sealer, key_bytes, new_key_text
from legation.store.secrets.vault import Vault, check_keys, verify_or_record

(ROWS,) = parse("-- name: rows\nselect name, value from key_check order by name;")


def recorded() -> Transaction[dict[str, bytes]]:
    return {row["name"]: row["value"] for row in (yield ROWS())}


def ring(keys: Keys, *vault: Key) -> Keys:
    return replace(keys, vault=KeyRing(vault[0], vault[1:]))


async def problems(database: Either, keys: Keys) -> list[str]:
    """Each of them stands on a line of its own in the message."""
    try:
        await check_keys(database, keys, 0)
    except ConfigInvalid as refused:
        return refused.message.split("\n- ")[1:]
    return []


async def test_the_first_value_counts(database: Either) -> None:
    assert await database.transact(verify_or_record, "k", b"one", 1)
    assert await database.transact(verify_or_record, "k", b"one", 2)
    assert not await database.transact(verify_or_record, "k", b"two", 3)
    assert await database.transact(verify_or_record, "k", b"one", 4)


async def test_the_same_keys_are_known_again(database: Either) -> None:
    keys = new_keys()
    for _ in range(2):
        assert await problems(database, keys) == []


async def test_the_keys_themselves_are_not_recorded(database: Either) -> None:
    keys = new_keys()
    await check_keys(database, keys, 0)
    values = await database.read(recorded)
    assert values.keys() == {"vault", "pepper"}
    assert key_bytes(keys.vault.current.secret) not in values.values()


async def test_everything_that_is_wrong_is_told_at_once_and_nothing_changes(database: Either) -> None:
    await check_keys(database, new_keys(), 0)
    before = await database.read(recorded)
    vault, pepper = await problems(database, new_keys())
    assert "LEGATION_VAULT_KEY" in vault
    assert "LEGATION_TOKEN_PEPPER" in pepper
    assert await database.read(recorded) == before


async def test_one_wrong_key_leaves_the_other_unrecorded_too(database: Either) -> None:
    await database.transact(verify_or_record, "pepper", b"another", 0)
    assert len(await problems(database, new_keys())) == 1
    assert (await database.read(recorded)).keys() == {"pepper"}


async def test_a_wrong_pepper_alone_is_told_alone(database: Either) -> None:
    keys = new_keys()
    await check_keys(database, keys, 0)
    other = replace(keys, pepper=Secret(new_key_text()))
    (problem,) = await problems(database, other)
    assert "LEGATION_TOKEN_PEPPER" in problem
    assert other.pepper.reveal() not in problem


async def test_after_a_rotation_the_new_key_is_the_one_to_know(database: Either) -> None:
    old, new = new_key(), new_key()
    keys = new_keys(old)
    assert await problems(database, keys) == []
    assert await problems(database, ring(keys, new, old)) == []
    assert await problems(database, ring(keys, new)) == []
    assert len(await problems(database, keys)) == 1  # a server that missed the rotation
    assert await problems(database, ring(keys, old, new)) == []  # and back


async def test_a_key_may_go_only_when_nothing_is_sealed_with_it(database: Either) -> None:
    await add_workspaces(database)
    old, new = new_key(), new_key()
    keys = new_keys(old)
    await check_keys(database, keys, 0)
    await Vault(database, Sealer(keys.vault), SystemClock()).put("local", "run_1", b"-")
    both, alone = ring(keys, new, old), ring(keys, new)
    assert await problems(database, both) == []
    (problem,) = await problems(database, alone)
    assert old.id in problem
    assert "LEGATION_VAULT_KEY" in problem
    await Vault(database, Sealer(both.vault), SystemClock()).rewrap_all()
    assert await problems(database, alone) == []


async def test_of_servers_that_start_first_at_once_with_different_keys_one_starts(database: Either) -> None:
    found = await asyncio.gather(*(problems(database, new_keys()) for _ in range(6)))
    assert sorted(map(len, found)) == [0, 2, 2, 2, 2, 2]
