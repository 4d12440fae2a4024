import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.canary import checkpoint, in_folder, search
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_key, new_sealer

from legation.clock import SystemClock
from legation.errors import ConfigInvalid, Conflict, InvalidParams, NotFound, StorageFailed, TooLarge
from legation.secret import Secret
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Row, Transaction, parse
from legation.store.secrets import vault as vault_module
from legation.store.secrets.sealer import KeyRing, Sealer
from legation.store.secrets.vault import MAX_BUNDLE, ContentStore, Vault, keys_in_use

KEY = Secret("sk-one", "key")
BUNDLE = {"MODEL_KEY": KEY, "git.token": Secret('ghp "é" \x00', "git")}

SQL = {
    query.name: query
    for query in parse(
        """
-- name: rows
select * from vault_bundle order by id;
-- name: move
update vault_bundle set workspace_id = :workspace, owner = :owner where id = :id;
-- name: swap
update vault_bundle set key_id = (select key_id from vault_bundle where id = :other),
  wrapped_key = (select wrapped_key from vault_bundle where id = :other),
  body = (select body from vault_bundle where id = :other) where id = :id;
-- name: damage
update vault_bundle set wrapped_key = body where id = :id;
"""
    )
}


def rows() -> Transaction[list[Row]]:
    return list((yield SQL["rows"]()))


def do(name: str, **args: str) -> Transaction[None]:
    yield SQL[name](**args)


async def new_vault(database: Either, sealer: Sealer | None = None) -> Vault:
    await add_workspaces(database)
    return Vault(database, sealer or new_sealer(), SystemClock())


def with_keys(database: Either, ring: KeyRing) -> Vault:
    return Vault(database, Sealer(ring), SystemClock())


async def test_what_is_put_is_opened(database: Either) -> None:
    vault = await new_vault(database)
    bundle_id = await vault.put("local", "run_1", BUNDLE)
    assert bundle_id.startswith("vlt_")
    opened = await vault.open("local", "run_1", bundle_id)
    assert opened == BUNDLE
    assert [secret.name for secret in opened.values()] == list(BUNDLE)
    assert await vault.open("local", "run_1", await vault.put("local", "run_1", {})) == {}


async def test_bytes_come_back_as_bytes_and_are_not_taken_for_names(database: Either) -> None:
    vault = await new_vault(database)
    raw = await vault.put("local", "run_1", b"\x00\xff{}")
    assert await vault.open_bytes("local", "run_1", raw) == b"\x00\xff{}"
    with pytest.raises(Conflict, match="use open_bytes"):
        await vault.open("local", "run_1", raw)
    with pytest.raises(Conflict, match="use open"):
        await vault.open_bytes("local", "run_1", await vault.put("local", "run_1", BUNDLE))


async def test_it_is_one_transaction_with_what_else_the_caller_writes(database: Either) -> None:
    vault = await new_vault(database)

    def start_run(fail: bool) -> Transaction[str]:
        bundle_id = yield from vault.put_within("local", "run_1", BUNDLE)
        if fail:
            raise Conflict("cannot start it: there is one; wait")
        return bundle_id

    with pytest.raises(Conflict):
        await database.transact(start_run, True)
    assert await database.read(rows) == []
    assert await vault.open("local", "run_1", await database.transact(start_run, False)) == BUNDLE


async def test_anothers_bundle_and_none_are_the_same_to_everybody(database: Either) -> None:
    vault = await new_vault(database)
    bundle_id = await vault.put("local", "run_1", BUNDLE)
    works: list[Callable[..., object]] = [vault.open, vault.open_bytes, vault.destroy]
    told = set()
    for work in works:
        for place in (("other", "run_1"), ("local", "run_2"), ("nowhere", "run_1")):
            with pytest.raises(NotFound) as foreign:
                await work(*place, bundle_id)  # type: ignore[misc]
            told.add(foreign.value.message.replace(bundle_id, "ID"))
        with pytest.raises(NotFound) as absent:
            await work("local", "run_1", "vlt_0")  # type: ignore[misc]
        told.add(absent.value.message.replace("vlt_0", "ID"))
    assert len(told) == 1
    assert await vault.destroy_all("other", "run_1") == await vault.destroy_all("local", "run_2") == 0
    assert await vault.open("local", "run_1", bundle_id) == BUNDLE


async def test_a_row_that_was_moved_or_swapped_does_not_open(database: Either) -> None:
    vault = await new_vault(database)
    one = await vault.put("local", "run_1", BUNDLE)
    two = await vault.put("local", "run_1", {"MODEL_KEY": KEY})
    await database.transact(do, "swap", id=one, other=two)
    with pytest.raises(StorageFailed):
        await vault.open("local", "run_1", one)
    for place in (("other", "run_1"), ("local", "run_2")):
        await database.transact(do, "move", id=two, workspace=place[0], owner=place[1])
        with pytest.raises(StorageFailed):
            await vault.open(*place, two)


async def test_what_is_destroyed_is_gone(database: Either) -> None:
    vault = await new_vault(database)
    ids = [await vault.put("local", "run_1", BUNDLE) for _ in range(3)]
    kept = await vault.put("local", "run_2", BUNDLE)
    await vault.destroy("local", "run_1", ids[0])
    with pytest.raises(NotFound):
        await vault.open("local", "run_1", ids[0])
    with pytest.raises(NotFound):
        await vault.destroy("local", "run_1", ids[0])
    assert await vault.destroy_all("local", "run_1") == 2
    assert await vault.destroy_all("local", "run_1") == 0
    assert [row["id"] for row in await database.read(rows)] == [kept]


async def test_on_sqlite_not_a_byte_is_left_of_it(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "legation.db") as database:
        await database.migrate()
        vault = await new_vault(database)
        ids = [await vault.put("local", "run_1", b"x" * size) for size in (10, 1000, 100_000)]
        sealed = [row[part] for row in await database.read(rows) for part in ("wrapped_key", "body")]
        # A piece of each page that a long body lies on.
        pieces = [value[at : at + 40] for value in sealed for at in range(0, len(value) - 39, 1000)]
        assert len(pieces) > 100
        # They are there, but for those that two pages share.
        assert len(search(in_folder(tmp_path), pieces)) >= len(pieces) * 0.9
        checkpoint(database)
        assert len(search({"file": database.path.read_bytes()}, pieces)) >= len(pieces) * 0.9
        for bundle_id in ids:
            await vault.destroy("local", "run_1", bundle_id)
        assert search(in_folder(tmp_path), pieces) == []
        await vault.put("local", "run_1", bytes(5000))
        (row,) = await database.read(rows)
        pieces += [row["wrapped_key"], row["body"][:40]]
        await vault.destroy_all("local", "run_1")
        assert search(in_folder(tmp_path), pieces) == []


async def test_what_cannot_be_kept_is_refused_before_anything_is_written(database: Either) -> None:
    vault = await new_vault(database)
    with pytest.raises(TooLarge):
        await vault.put("local", "run_1", b"x" * MAX_BUNDLE)
    with pytest.raises(InvalidParams):
        await vault.put("local", "run_1", {"not a name": KEY})
    with pytest.raises(NotFound, match="no such workspace"):
        await vault.put("nowhere", "run_1", BUNDLE)
    assert await database.read(rows) == []


async def test_a_key_that_is_not_here_is_named_with_its_setting(database: Either) -> None:
    key = new_key()
    vault = await new_vault(database, Sealer(KeyRing(key)))
    bundle_id = await vault.put("local", "run_1", BUNDLE)
    with pytest.raises(ConfigInvalid, match=f"{key.id}.*LEGATION_VAULT_KEY"):
        await with_keys(database, KeyRing(new_key())).open("local", "run_1", bundle_id)


async def test_rewrapping_puts_everything_under_the_current_key(
    database: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_module, "BATCH", 3)
    old, new = new_key(), new_key()
    former = Sealer(KeyRing(old))
    vault, content = await new_vault(database, former), ContentStore(database, former, SystemClock())
    ids = [await vault.put("local", "run_1", BUNDLE) for _ in range(7)]
    for workspace, owner in (("local", "run_1"), ("local", "run_2"), ("other", "run_1"), ("other", "run_3")):
        await database.transact(content.append, workspace, owner, "events", 1, 1, b"hello")
    bodies = [row["body"] for row in await database.read(rows)]
    rotated = with_keys(database, KeyRing(new, (old,)))
    heard: list[int] = []
    assert await rotated.rewrap_all(heard.append) == 11
    assert heard == [3, 6, 7, 10, 11]
    assert await database.read(keys_in_use) == {new.id: 11}
    assert [row["body"] for row in await database.read(rows)] == bodies
    assert await rotated.rewrap_all() == 0

    alone = Sealer(KeyRing(new))  # the former key is not needed any more
    for bundle_id in ids:
        assert await Vault(database, alone, SystemClock()).open("local", "run_1", bundle_id) == BUNDLE
    (page,) = await ContentStore(database, alone, SystemClock()).read("other", "run_3", "events")
    assert page.plain == b"hello"


async def test_rewrapping_goes_on_where_it_was_stopped(
    database: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_module, "BATCH", 2)
    old, new = new_key(), new_key()
    vault = await new_vault(database, Sealer(KeyRing(old)))
    for _ in range(5):
        await vault.put("local", "run_1", BUNDLE)

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    rotated = with_keys(database, KeyRing(new, (old,)))
    with pytest.raises(KeyboardInterrupt):
        await rotated.rewrap_all(stop)
    assert await database.read(keys_in_use) == {old.id: 3, new.id: 2}
    assert await rotated.rewrap_all() == 3


async def test_rewrapping_twice_at_once_beside_puts_and_deletions_loses_nothing(
    database: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_module, "BATCH", 4)
    old, new = new_key(), new_key()
    vault = await new_vault(database, Sealer(KeyRing(old)))
    ids = [await vault.put("local", f"run_{n % 5}", BUNDLE) for n in range(30)]
    rotated = with_keys(database, KeyRing(new, (old,)))
    one, other, *_ = await asyncio.gather(
        rotated.rewrap_all(),
        rotated.rewrap_all(),
        *(vault.destroy_all("local", f"run_{n}") for n in (1, 3)),
        *(rotated.put("local", "run_9", BUNDLE) for _ in range(5)),
    )
    assert isinstance(one, int)
    assert isinstance(other, int)
    assert 30 - 12 <= one + other <= 30  # nothing by both
    assert await database.read(keys_in_use) == {new.id: 30 - 12 + 5}
    for number, bundle_id in enumerate(ids):
        if number % 5 not in (1, 3):
            assert await rotated.open("local", f"run_{number % 5}", bundle_id) == BUNDLE


async def test_one_that_does_not_open_holds_up_no_other(database: Either) -> None:
    old, new = new_key(), new_key()
    vault = await new_vault(database, Sealer(KeyRing(old)))
    ids = [await vault.put("local", "run_1", BUNDLE) for _ in range(4)]
    await database.transact(do, "damage", id=ids[1])
    rotated = with_keys(database, KeyRing(new, (old,)))
    with pytest.raises(StorageFailed, match="cannot re-wrap 1 sealed"):
        await rotated.rewrap_all()
    assert await database.read(keys_in_use) == {old.id: 1, new.id: 3}


async def test_rewrapping_without_the_former_key_names_it_and_changes_nothing(database: Either) -> None:
    old = new_key()
    vault = await new_vault(database, Sealer(KeyRing(old)))
    await vault.put("local", "run_1", BUNDLE)
    before = await database.read(rows)
    with pytest.raises(ConfigInvalid, match=old.id):
        await with_keys(database, KeyRing(new_key())).rewrap_all()
    assert [dict(row) for row in await database.read(rows)] == [dict(row) for row in before]
