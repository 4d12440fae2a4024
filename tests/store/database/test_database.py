"""One suite for both databases: what a transaction promises."""

import asyncio
from pathlib import Path

import pytest
from tests.postgres import Postgres
from tests.store.database.databases import Either

from legation.errors import Conflict, InternalError, NotFound, StorageFailed
from legation.store.database import migrations
from legation.store.database.migrations import Migration
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Dangling, Duplicate, Queries, Transaction, only, parse

SQL = {
    query.name: query
    for query in parse(
        """
-- name: put
insert into bucket (workspace_id, name, tokens, updated_at) values ('local', :name, :tokens, 0);
-- name: take
update bucket set tokens = tokens - 1 where name = :name returning tokens;
-- name: get
select name, tokens, updated_at from bucket where name = :name;
-- name: everything
select name from bucket order by name;
-- name: dangle
insert into membership (workspace_id, user_id, role, created_at) values ('nowhere', 'nobody', 'owner', 0);
-- name: misspelt
select nothing from nowhere;
-- name: both [sqlite]
select 'sqlite' as dialect;
-- name: both [postgres]
select 'postgres' as dialect;
"""
    )
}


def put(name: str, tokens: float = 1) -> Transaction[None]:
    yield SQL["put"](name=name, tokens=tokens)


def names() -> Transaction[list[str]]:
    rows = yield SQL["everything"]()
    return [row["name"] for row in rows]


async def test_what_is_written_is_read(database: Either) -> None:
    def get() -> Transaction[tuple[str, float, int]]:
        row = only((yield SQL["get"](name="a")))
        assert row is not None
        return row["name"], row["tokens"], row["updated_at"]

    await database.transact(put, "a", 2.5)
    assert await database.read(get) == ("a", 2.5, 0)


async def test_an_error_in_the_work_takes_all_of_it_back(database: Either) -> None:
    def fail() -> Transaction[None]:
        yield from put("a")
        yield from put("b")
        raise NotFound("cannot find it: look elsewhere")

    with pytest.raises(NotFound):
        await database.transact(fail)
    assert await database.read(names) == []


async def test_one_that_fails_takes_nothing_of_its_neighbours_along(database: Either) -> None:
    def fail(name: str) -> Transaction[None]:
        yield from put(name)
        raise NotFound("cannot find it: look elsewhere")

    works = [database.transact(fail if n % 3 == 0 else put, f"n{n:02d}") for n in range(30)]
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    assert [isinstance(outcome, NotFound) for outcome in outcomes] == [n % 3 == 0 for n in range(30)]
    assert await database.read(names) == [f"n{n:02d}" for n in range(30) if n % 3]


async def test_a_broken_constraint_is_thrown_in_where_it_broke(database: Either) -> None:
    def careful() -> Transaction[None]:
        try:
            yield from put("a")
        except Duplicate:
            raise Conflict("cannot add a: it is there; choose another name") from None

    await database.transact(careful)
    with pytest.raises(Conflict, match="choose another"):
        await database.transact(careful)
    with pytest.raises(Duplicate):
        await database.transact(put, "a")


async def test_a_work_must_not_go_on_after_a_broken_constraint(database: Either) -> None:
    def careless() -> Transaction[None]:
        try:
            yield from put("a")
        except Duplicate:
            yield from put("b")

    await database.transact(careless)
    with pytest.raises(InternalError):
        await database.transact(careless)
    assert await database.read(names) == ["a"]


async def test_a_dangling_reference_is_refused(database: Either) -> None:
    def dangle() -> Transaction[None]:
        yield SQL["dangle"]()

    with pytest.raises(Dangling):
        await database.transact(dangle)


async def test_transactions_are_serialisable(database: Either) -> None:
    """Each reads, then writes what follows from it: with a weaker isolation some would be lost."""

    def count_and_add() -> Transaction[int]:
        rows = yield SQL["everything"]()
        yield SQL["put"](name=f"n{len(rows):03d}", tokens=1.0)
        return len(rows)

    seen = await asyncio.gather(*(database.transact(count_and_add) for _ in range(12)))
    assert sorted(seen) == list(range(12))
    assert await database.read(names) == [f"n{n:03d}" for n in range(12)]


async def test_a_read_cannot_write(database: Either) -> None:
    with pytest.raises(StorageFailed):
        await database.read(put, "a")
    assert await database.read(names) == []


async def test_a_bad_statement_is_a_storage_failure_and_the_next_one_works(database: Either) -> None:
    def misspelt() -> Transaction[None]:
        yield SQL["misspelt"]()

    outcomes = await asyncio.gather(
        database.transact(put, "a"),
        database.transact(misspelt),
        database.transact(put, "b"),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], StorageFailed)
    assert await database.read(names) == ["a", "b"]


async def test_a_query_may_have_a_text_for_each_database(database: Either) -> None:
    def which() -> Transaction[str]:
        (row,) = yield SQL["both"]()
        return str(row["dialect"])

    assert await database.read(which) == database.dialect


async def test_a_caller_that_goes_away_does_not_stop_the_others(database: Either) -> None:
    gone = asyncio.create_task(database.transact(put, "a"))
    await asyncio.sleep(0)
    gone.cancel()
    await database.transact(put, "b")
    assert "b" in await database.read(names)


async def test_migrating_again_does_nothing(database: Either) -> None:
    assert await database.migrate() == []
    assert await database.version() == migrations.newest()


async def test_a_newer_schema_is_refused(database: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "newest", lambda: migrations.chain()[-1].number - 1)
    with pytest.raises(StorageFailed, match="update Legation"):
        await database.migrate()


async def test_a_failing_migration_changes_nothing(database: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    good = migrations.chain()
    bad = Migration(
        len(good) + 1, "bad", "create table half (id text) {options}; insert into missing values (1);"
    )
    monkeypatch.setattr(migrations, "chain", lambda: (*good, bad))
    monkeypatch.setattr(migrations, "newest", lambda: len(good) + 1)
    with pytest.raises(StorageFailed):
        await database.migrate()
    assert await database.version() == len(good)
    monkeypatch.setattr(
        migrations, "chain", lambda: (*good, Migration(bad.number, "better", bad.text.split(";")[0]))
    )
    assert [str(migration) for migration in await database.migrate()] == [f"{bad.number:04d}_better"]


async def test_every_named_query_is_understood_by_the_database(database: Either) -> None:
    """Prepared, not run: a misspelt column or a type that does not fit is found here."""
    folder = Path(migrations.__file__).parents[2] / "sql"
    for file in sorted(folder.glob("*.sql")):
        for query in Queries(file.stem):
            await _prepare(database, query.sqlite, query.postgres, query.parameters)


async def _prepare(database: Either, sqlite: str, postgres: str, parameters: tuple[str, ...]) -> None:
    if isinstance(database, SqliteDatabase):
        import sqlite3

        connection = sqlite3.connect(database.path)
        connection.execute(f"explain {sqlite}", dict.fromkeys(parameters))
        connection.close()
    else:
        async with database._connection() as connection:
            await connection.prepare(postgres)


@pytest.mark.heavy
async def test_postgres_lets_nobody_else_in(postgres: Postgres) -> None:
    async with PostgresDatabase(postgres.new_database()) as database:
        await database.migrate()
        async with database._connection() as connection:
            tables = await connection.fetch(
                "select relname, relrowsecurity, relacl from pg_class where relnamespace = 'legation'::regnamespace"
                " and relkind = 'r'"
            )
            assert len(tables) > 10
            assert all(row["relrowsecurity"] for row in tables)
            granted = await connection.fetch(
                "select * from information_schema.role_table_grants where table_schema = 'legation'"
                " and grantee <> current_user"
            )
            assert granted == []
            await connection.execute("create role somebody")
            try:
                for privilege in ("usage", "create"):
                    allowed = "select has_schema_privilege('somebody', 'legation', $1)"
                    assert not await connection.fetchval(allowed, privilege)
                await connection.execute("grant usage on schema legation to somebody")
                await connection.execute("grant select on legation.app_user to somebody")
                await connection.execute(
                    "insert into app_user (id, name, created_at) values ('usr_1', 'Ada', 0)"
                )
                async with connection.transaction():
                    await connection.execute("set local role somebody")
                    assert await connection.fetch("select * from app_user") == []  # row-level security
            finally:
                await connection.execute("drop owned by somebody; drop role somebody")


@pytest.mark.heavy
async def test_two_that_migrate_at_once_do_it_once(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with PostgresDatabase(url) as one, PostgresDatabase(url) as other:
        applied = await asyncio.gather(one.migrate(), other.migrate())
    assert sorted(len(each) for each in applied) == [0, migrations.newest()]


@pytest.mark.heavy
async def test_an_unreachable_postgres_is_named_without_its_password(postgres: Postgres) -> None:
    from legation.secret import Secret

    for url in ("postgresql://legation:wrong-canary@127.0.0.1:1/legation", postgres.url("absent").reveal()):
        with pytest.raises(StorageFailed, match="cannot reach Postgres at") as caught:
            async with PostgresDatabase(Secret(url)):
                pass
        assert "canary" not in str(caught.value)
        assert caught.value.__cause__ is None


async def test_nothing_ends_the_writer_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteDatabase(tmp_path / "legation.db") as database:
        await database.migrate()

        def out_of_memory(_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(database, "_work", out_of_memory)
            with pytest.raises(MemoryError):
                await database.transact(put, "a")
        await database.transact(put, "b")
        assert await database.read(names) == ["b"]
