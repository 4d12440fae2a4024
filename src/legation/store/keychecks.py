"""A wrong key is noticed at the start, before anything is sealed or hashed with it.

The database knows the check value of each key, from which the key does not follow. The first start records them.

INV-C1  With a wrong vault key or pepper the server does not start, and nothing has changed.
INV-C2  A vault key may go only when nothing is sealed with it any more.
"""

from hmac import compare_digest
from typing import Final

from legation.errors import ConfigInvalid
from legation.settings import variable
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Transaction
from legation.store.keys import KeyRing, Keys, derive, key_bytes
from legation.store.sealing import check_value, matches
from legation.store.vault import keys_in_use

VAULT: Final = "vault"
PEPPER: Final = "pepper"

_SQL: Final = Queries("keychecks")


async def check_keys(database: Database, keys: Keys, now_ms: int) -> None:
    """Raises `ConfigInvalid` with every problem and the setting to correct."""
    await database.transact(check, keys, now_ms)


def check(keys: Keys, now_ms: int) -> Transaction[None]:
    problems = [
        *(yield from _vault_problems(keys.vault, now_ms)),
        *(yield from _pepper_problems(keys, now_ms)),
    ]
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(
            f"cannot use these keys with this database; correct this:{lines}", {"problems": problems}
        )


def verify_or_record(name: str, value: bytes, now_ms: int) -> Transaction[bool]:
    """Whether it is the value of the first time; this time may be the first."""
    yield _SQL.record(name=name, value=value, now=now_ms)
    (row,) = yield _SQL.find(name=name)
    return compare_digest(row["value"], value)


def _vault_problems(ring: KeyRing, now_ms: int) -> Transaction[list[str]]:
    setting = f"{variable('vault_key')} (or `vault` in keys.json)"
    used = yield from keys_in_use()
    unknown = {key_id: count for key_id, count in used.items() if ring.find(key_id) is None}
    if unknown:
        return [
            f"{setting} lacks key {key_id!r}, with which {count} values are sealed: put it back, after the current one"
            for key_id, count in sorted(unknown.items())
        ]
    if (yield from verify_or_record(VAULT, check_value(ring.current), now_ms)):
        return []
    (row,) = yield _SQL.find(name=VAULT)
    if not any(matches(key, row["value"]) for key in ring.older):
        return [
            f"{setting} is another key than this database knows: put the former one back, after the current one"
        ]
    yield _SQL.replace(name=VAULT, value=check_value(ring.current), now=now_ms)  # it was rotated
    return []


def _pepper_problems(keys: Keys, now_ms: int) -> Transaction[list[str]]:
    setting = f"{variable('token_pepper')} (or `pepper` in keys.json)"
    if (yield from verify_or_record(PEPPER, derive(key_bytes(keys.pepper), "pepper check"), now_ms)):
        return []
    return [f"{setting} is not the one that the tokens here were hashed with: put the former one back"]
