"""How the databases find what a named query asks for: by an index that leads there, however long the record is.

A plan is read, nothing is timed: with no statistics, which is how every installation begins, and with those of a
million rows in one workspace.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files

import pytest
from tests.postgres import Postgres

from legation.store.database import migrations
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Queries, Query

ROWS = 1_000_000

# What may be gone through, and why that is no record that grows.
WHOLE = {
    "acting": "effects under way now",
    "app_user": "people",
    "membership": "people",
    "api_token": "tokens of people",
    "attendance": "supervisors of now",
    "bucket": "forgotten when full",
    "server_address": "one for each server",
    "sign_in_link": "dropped when used or old",
    "trace_head": "one for each server",
    "holder": "processes and programs of now",
    "pulse": "one row",
    "CONSTANT": "no table at all",
    "kept": "the query's own",
    "stray": "calls under keys that wait now",
    "workspace": "one for each team",
    "found": "the query's own",
    "item": "the query's own",
    "inbox_head": "one for each server",
    "sealed": "the query's own",
    "run_slots": "one for each team",
    "worker": "one for each process of now",
}
# What reads all of a record, and says so.
ASKED_FOR_ALL = {
    "chains": "no more than the first entry of the index behind each server",
    "tables": "sizes: every page of the file, once an hour, by a connection of its own",
    "tools": "no more than the first entry of the index behind each tool",
    "keys_in_use": "a key is missing: how much is sealed with it",
    "untraced": "verify: every approval is held against its trace",
}
# Bounded by a partial index of what is open, in force or being purged now, whatever is on record.
OPEN_NOW = re.compile(
    r"\b(approval_open_\w+|approval_pending_\w+|approval_grant_live|content_key_purged|stream_claim_connection|run_parked)\b"
)
LIMITED = re.compile(r"\blimit :limit$")


def _queries() -> Iterator[Query]:
    for file in sorted(files("legation.store").joinpath("sql").iterdir(), key=lambda file: file.name):
        yield from Queries(file.name.removesuffix(".sql"))


def _sqlite(*, full: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for migration in migrations.chain():
        connection.executescript(migrations.for_dialect(migration.text, "sqlite"))
    if not full:
        return connection
    connection.execute("analyze")
    tables = "select name from sqlite_master where type = 'table' and name not like 'sqlite%'"
    for (table,) in connection.execute(tables).fetchall():
        for _, index, unique, _, partial in connection.execute(f"pragma index_list({table})").fetchall():
            columns = len(connection.execute(f"pragma index_info({index})").fetchall())
            rows = ROWS // 1000 if partial else ROWS
            each = [rows, *(rows // 100**place for place in range(columns))]  # all are of one workspace
            if unique:
                each[-1] = 1
            row = (table, index, " ".join(str(max(1, count)) for count in each))
            connection.execute("insert into sqlite_stat1 values (?, ?, ?)", row)
    connection.commit()
    connection.execute("analyze sqlite_schema")
    return connection


@pytest.mark.parametrize("full", [False, True], ids=["empty", "million"])
def test_sqlite_goes_through_no_record_to_find_a_few_rows(full: bool) -> None:
    found = []
    with closing(_sqlite(full=full)) as connection:
        for query in _queries():
            if query.name in ASKED_FOR_ALL:
                continue
            arguments = dict.fromkeys(query.parameters)
            for *_, step in connection.execute(f"explain query plan {query.sqlite}", arguments):
                table = re.match(r"(?:SCAN|SEARCH) (\w+)", step)
                if table is None or table[1] in WHOLE or OPEN_NOW.search(step) or "VIRTUAL TABLE" in step:
                    continue
                whole_workspace = step.endswith("(workspace_id=?)") and not LIMITED.search(query.sqlite)
                if step.startswith("SCAN") or whole_workspace:
                    found.append(f"{query.name}: {step}")
    assert found == []


@pytest.mark.heavy
async def test_postgres_has_an_index_for_each(postgres: Postgres) -> None:
    """It scans small tables and is right to, so that is made dear: what it scans then, it cannot find otherwise."""
    import asyncpg

    url = postgres.new_database()
    async with PostgresDatabase(url) as database:
        await database.migrate()
    connection = await asyncpg.connect(url.reveal())
    try:
        await connection.execute("set enable_seqscan = off")
        found = []
        for query in _queries():
            if query.name in ASKED_FOR_ALL:
                continue
            nothing = [None] * len(query.parameters)  # a plan for whatever is given
            plan = [
                row[0] for row in await connection.fetch(f"explain (generic_plan) {query.postgres}", *nothing)
            ]
            scanned = [match[1] for line in plan if (match := re.search(r"Seq Scan on (\w+)", line))]
            found += [f"{query.name}: {table}" for table in scanned if table not in WHOLE]
    finally:
        await connection.close()
    assert found == []
