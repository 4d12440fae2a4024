"""Secrets are planted through every door of the store, then looked for on the disk and in the log."""

import base64
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.store.canary import checkpoint, logged, new_canary, search, stored
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_keys

from legation.clock import SystemClock
from legation.errors import LegationError
from legation.secret import Secret
from legation.store import audit, counters
from legation.store.counters import Limit
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.sealer import Sealer, key_bytes
from legation.store.secrets.vault import ContentStore, Vault, check_keys
from legation.wire.principal import Principal

SQL = {
    query.name: query
    for query in parse(
        """
-- name: sealed
select wrapped_key as value from vault_bundle union all select body from vault_bundle
union all select wrapped_key from content_key union all select body from content_page;
-- name: careless
insert into app_user (id, name, created_at) values (:id, :text, 0);
"""
    )
}


def sealed() -> Transaction[list[bytes]]:
    return [row["value"] for row in (yield SQL["sealed"]())]


def careless(number: int, text: str) -> Transaction[None]:
    yield SQL["careless"](id=f"usr_{number}", text=text)


async def refused(work: Awaitable[object]) -> str:
    """What is told of it."""
    with pytest.raises(LegationError) as caught:
        await work
    logging.getLogger("legation.test").error("refused", exc_info=caught.value)
    return f"{caught.value}{caught.value!r}{caught.value.data}"


async def test_no_secret_is_in_any_table_file_log_or_error(
    database: Either, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await add_workspaces(database)
    keys = new_keys()
    await check_keys(database, keys, 0)
    sealer, clock = Sealer(keys.vault), SystemClock()
    vault, content = Vault(database, sealer, clock), ContentStore(database, sealer, clock)
    named, raw, page, detail, target, bucket, name = map(
        new_canary, ("named", "raw", "page", "detail", "target", "bucket", "name")
    )
    who = Principal(kind="user", id="usr_1", workspace="local", scopes=frozenset(), level=2)

    bundle_id = await vault.put("local", "run_1", {"KEY": Secret(named)})
    raw_id = await vault.put("local", "run_1", raw.encode())
    await database.transact(content.append, "local", "run_1", "events", 1, 1, page.encode())
    await database.transact(counters.take, "", "sign-in:192.0.2.7", Limit(5, 60), 0)
    await database.transact(audit.record, who, "token.created", "tok_1", {"kind": "user"}, 0)
    assert (await vault.open("local", "run_1", bundle_id))["KEY"].reveal() == named
    assert await vault.open_bytes("local", "run_1", raw_id) == raw.encode()
    assert (await content.read("local", "run_1", "events"))[0].plain == page.encode()

    stranger = Vault(database, Sealer(new_keys().vault), clock)
    foreign = new_keys()
    told = [
        await refused(database.transact(audit.record, who, "token.created", "tok_1", {"x": detail}, 0)),
        await refused(database.transact(audit.record, who, "token.created", target, {}, 0)),
        await refused(database.transact(counters.take, "", f"sign-in:{bucket}", Limit(5, 60), 0)),
        await refused(vault.put("local", "run_1", {name: Secret(named)})),
        await refused(vault.put("nowhere", "run_1", {"KEY": Secret(named)})),
        await refused(vault.put("local", "run_1", named.encode() * 100_000)),
        await refused(vault.open("local", "run_1", raw_id)),
        await refused(stranger.open("local", "run_1", bundle_id)),
        await refused(check_keys(database, foreign, 0)),
        await refused(database.transact(content.append, "local", "run_1", "events", 1, 1, page.encode())),
        await refused(database.transact(content.append, "nowhere", "run_1", "events", 1, 1, page.encode())),
    ]
    planted: list[str | bytes] = [named, raw, page, detail, target, bucket, name]
    for each in (keys, foreign):
        planted += [secret.reveal() for secret in (each.pepper, each.cookie, each.links)]
        planted += [
            key_bytes(each.pepper),
            key_bytes(each.vault.current.secret),
            each.vault.current.secret.reveal(),
        ]
    places = {**await stored(database, request), "log": logged(caplog), "errors": "\n".join(told).encode()}
    assert b"cannot store" in places["log"]
    assert search(places, planted) == []


async def test_of_what_was_destroyed_not_even_the_sealed_bytes_are_left(
    database: Either, request: pytest.FixtureRequest
) -> None:
    await add_workspaces(database)
    sealer, clock = Sealer(new_keys().vault), SystemClock()
    vault, content = Vault(database, sealer, clock), ContentStore(database, sealer, clock)
    for size in (100, 50_000):
        await vault.put("local", "run_1", bytes(size))
    await database.transact(content.append, "local", "run_1", "events", 1, 9, bytes(50_000))
    remains = [value[:60] for value in await database.read(sealed)]
    remains += [value[-60:] for value in await database.read(sealed)]
    found = search(await stored(database, request), remains)
    assert {line.split(" as ")[0] for line in found} >= {f"secret {n}" for n in range(len(remains))}

    await vault.destroy_all("local", "run_1")
    await database.transact(content.delete, "local", "run_1")
    if isinstance(database, SqliteDatabase):
        checkpoint(database)
    assert search(await stored(database, request), remains) == []


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 inside": lambda text: base64.urlsafe_b64encode(f"user:{text}@".encode()).decode(),
    "json": lambda text: json.dumps({"key": text}),
    "base64 of json": lambda text: base64.b64encode(json.dumps([text]).encode()).decode(),
}


async def test_the_search_finds_what_was_stored_carelessly(
    database: Either, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    canaries = [new_canary("careless") for _ in SPELLINGS]
    for number, (canary, spell) in enumerate(zip(canaries, SPELLINGS.values(), strict=True)):
        await database.transact(careless, number, spell(canary))
    found = search(await stored(database, request), canaries)
    assert {line.split(" as ")[0] for line in found} == {f"secret {n}" for n in range(len(SPELLINGS))}
    logging.getLogger("legation.test").warning("oh: %s", canaries[0])
    assert search({"log": logged(caplog)}, canaries[:1]) != []


def test_a_form_is_found_wherever_it_stands_in_a_longer_text() -> None:
    canary = new_canary("x")
    for before in range(4):
        text = "a" * before + canary + "b" * 5
        for encoded in (text.encode().hex(), base64.b64encode(text.encode()).decode()):
            assert search({"here": encoded.encode()}, [canary])
    assert not search({"here": base64.b64encode(new_canary("x").encode())}, [canary])
