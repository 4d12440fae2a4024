"""Looks for planted secrets wherever an installation keeps bytes, in every form they could have taken.

leaks = search({**await stored(database, request), "log": logged(caplog)}, secrets)
assert leaks == []
"""

import base64
import json
import logging
import re
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.postgres import Postgres
from tests.store.database.databases import Either

from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Transaction, parse

SHORTEST = 8  # bytes; a shorter form would turn up by chance

(_CURRENT,) = parse(
    "-- name: current [sqlite]\nselect 'main' as name;\n-- name: current [postgres]\nselect current_database() as name;"
)


def new_canary(what: str) -> str:
    """Recognisable, and with characters that JSON, URLs and base64 all spell differently."""
    return f'canary-{what}-{secrets.token_hex(16)}-"é/?~'


def forms(secret: str | bytes) -> dict[str, bytes]:
    """The secret as it is, and as programs write it: name of the form -> its bytes."""
    spelled = {"plain": secret} if isinstance(secret, bytes) else _spellings(secret)
    return {
        f"{spelling}{encoding}": form
        for spelling, raw in spelled.items()
        for encoding, form in _encodings(raw).items()
        if len(form) >= SHORTEST
    }


def _spellings(secret: str) -> dict[str, bytes]:
    return {
        "plain": secret.encode(),
        "percent": quote(secret, safe="").encode(),
        "json": json.dumps(secret)[1:-1].encode(),
        "json in json": json.dumps(json.dumps(secret)[1:-1])[1:-1].encode(),
        "utf-16": secret.encode("utf-16-le"),
        # Letters and digits stay as they are in any of these, and in those we did not think of.
        "core": max(re.findall(r"[A-Za-z0-9-]*", secret), key=len).encode(),
    }


def _encodings(raw: bytes) -> dict[str, bytes]:
    found = {"": raw, ", hex": raw.hex().encode(), ", HEX": raw.hex().upper().encode()}
    for skip in range(3):  # inside a longer text it may begin at any of three places
        # Whole groups only: what stands before and after it changes the characters at the edges.
        whole = raw[skip : skip + (len(raw) - skip) // 3 * 3]
        found[f", base64+{skip}"] = base64.b64encode(whole)
        found[f", base64url+{skip}"] = base64.urlsafe_b64encode(whole)
    return found


def search(places: Mapping[str, bytes], canaries: Iterable[str | bytes]) -> list[str]:
    """Where one was found, and as what; never the secret itself."""
    return [
        f"secret {number} as {form} in {place}"
        for number, canary in enumerate(canaries)
        for form, wanted in forms(canary).items()
        for place, content in places.items()
        if wanted in content
    ]


async def stored(database: Either, request: pytest.FixtureRequest) -> dict[str, bytes]:
    """All that the database has on disk: SQLite's files as they are; a dump of Postgres, and its server's log."""
    if isinstance(database, SqliteDatabase):
        return in_folder(database.path.parent)
    postgres: Postgres = request.getfixturevalue("postgres")
    dump = postgres.dump(postgres.url(await database.read(_name)))
    return {"pg_dump": dump.encode(), "the log of Postgres": (postgres.folder / "log").read_bytes()}


def in_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(database: SqliteDatabase) -> None:
    """What SQLite does by itself when its log has grown, and when it is closed."""
    connection = sqlite3.connect(database.path)
    try:
        (busy, *_rest) = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        assert not busy
    finally:
        connection.close()


def logged(caplog: pytest.LogCaptureFixture) -> bytes:
    """Every record with its arguments and its traceback; set the level to DEBUG before."""
    formatter = logging.Formatter("%(name)s %(message)s %(args)r")
    return "\n".join(formatter.format(record) for record in caplog.records).encode()


def _name() -> Transaction[str]:
    (row,) = yield _CURRENT()
    return str(row["name"])
