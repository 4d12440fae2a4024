"""The database of many machines: Postgres through asyncpg, in a schema of its own.

Everything runs serialisable; a transaction that the database could not fit in is run again from its start. Row
level security is on for every table and nothing is granted to others: only the owner's connection gets in.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from legation.clock import Clock, SystemClock
from legation.errors import ConfigInvalid, Conflict, StorageFailed
from legation.secret import Secret
from legation.store.database import migrations
from legation.store.database.migrations import Migration
from legation.store.database.queries import Dialect
from legation.store.database.transaction import Dangling, Duplicate, Rows, Statement, Transaction, step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

SCHEMA: Final = "legation"
CONNECT_LIMIT: Final = 10.0  # seconds until the server must have let us in: its time
COMMAND_LIMIT: Final = 60.0  # seconds for one statement: its time
TRIES: Final = 12  # of a transaction that others keep getting in the way of
_RETRY_FIRST: Final = 0.002
_RETRY_MOST: Final = 0.25
_POOL: Final = 10  # connections
_MIGRATION_LOCK: Final = 0x4C45474154494F  # whoever migrates holds it; the others wait

# After every migration: nothing for anybody but the owner, whatever the migration forgot.
_HARDEN: Final = f"""
do $$ declare name text; begin
  revoke all on schema {SCHEMA} from public;
  revoke all on all tables in schema {SCHEMA} from public;
  for name in select tablename from pg_tables where schemaname = '{SCHEMA}' loop
    execute format('alter table {SCHEMA}.%I enable row level security', name);
  end loop;
end $$;
"""  # noqa: S608 - our own schema name

T = TypeVar("T")
P = ParamSpec("P")


class PostgresDatabase:
    """`async with PostgresDatabase(url) as database`. The URL may hold a password: it is a secret."""

    dialect: Final[Dialect] = "postgres"

    def __init__(self, url: Secret, *, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._where = _without_credentials(url)
        self._pool: asyncpg.Pool[Any] | None = None

    async def __aenter__(self) -> Self:
        try:
            import asyncpg
        except ModuleNotFoundError:
            raise ConfigInvalid(
                "cannot use Postgres: asyncpg is not installed; get it with `pip install 'legation[postgres]'`"
            ) from None
        try:
            self._pool = await asyncpg.create_pool(
                self._url.reveal(),
                min_size=1,
                max_size=_POOL,
                timeout=CONNECT_LIMIT,
                command_timeout=COMMAND_LIMIT,
                server_settings={"search_path": SCHEMA, "application_name": "legation"},
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            raise StorageFailed(
                f"cannot reach Postgres at {self._where}: {self._reason(error)}; check database_url and the server"
            ) from None
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(CONNECT_LIMIT):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncpg

        pause = _RETRY_FIRST
        for _ in range(TRIES):
            try:
                async with self._connection() as connection, connection.transaction(isolation="serializable"):
                    return await _drive(work(*args, **kwargs), connection)
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the tries
                pause = min(pause * 2, _RETRY_MOST)
        raise StorageFailed(
            f"cannot commit to Postgres at {self._where}: others were in the way {TRIES} times; try again"
        )

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            return await _drive(work(*args, **kwargs), connection)

    async def ping(self) -> None:
        async with self._connection() as connection:
            await connection.execute("select 1")

    async def scrub(self) -> None:
        """Nothing that a role without superuser rights could do at once."""

    @asynccontextmanager
    async def _connection(self) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """Errors of the connection and of the server become ours; those that mean "again" pass."""
        import asyncpg

        if self._pool is None:
            raise Conflict(f"cannot use Postgres at {self._where}: it is closed; open it again")
        try:
            async with self._pool.acquire(timeout=CONNECT_LIMIT) as connection:
                yield connection
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise StorageFailed(
                f"cannot use Postgres at {self._where}: {self._reason(error)}; check the server, then try again"
            ) from None  # the driver's own error may quote values

    def _reason(self, error: BaseException) -> str:
        """The first line, which names objects; `detail` quotes values and is left out."""
        text = str(error).partition("\n")[0] or type(error).__name__
        secret = urlsplit(self._url.reveal()).password
        return text.replace(secret, "[redacted]") if secret else text

    # Migrations.

    async def version(self) -> int:
        async with self._connection() as connection:
            return await _version(connection)

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to this release's; what was applied. Two at once: the second waits."""
        applied = []
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"select pg_advisory_xact_lock({_MIGRATION_LOCK})")
            version = await _version(connection)
            if version > migrations.newest():
                raise StorageFailed(
                    f"cannot use Postgres at {self._where}: its schema is {version}, newer than "
                    f"{migrations.newest()}; update Legation"
                )
            for migration in migrations.chain()[version:]:
                await self._apply(connection, migration)
                applied.append(migration)
        return applied

    async def _apply(self, connection: Any, migration: Migration) -> None:
        await connection.execute(f"create schema if not exists {SCHEMA}")
        text = f"{migrations.TABLE}; {migration.text}"
        await connection.execute(migrations.for_dialect(text, "postgres"))
        note = "insert into migration (number, name, applied_at) values ($1, $2, $3)"
        await connection.execute(note, migration.number, migration.name, self._clock.now_ms())
        await connection.execute(_HARDEN)


async def _version(connection: Any) -> int:
    if not await connection.fetchval("select to_regclass($1)", f"{SCHEMA}.migration"):
        return 0
    return int(await connection.fetchval("select coalesce(max(number), 0) from migration"))


async def _drive(transaction: Transaction[T], connection: Any) -> T:
    try:
        statement = next(transaction)
        while True:
            try:
                rows = await _execute(connection, statement)
            except (Duplicate, Dangling) as broken:
                step(transaction, broken)
            else:
                statement = transaction.send(rows)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def _execute(connection: Any, statement: Statement) -> Rows:
    import asyncpg

    query, args = statement
    try:
        return await connection.fetch(query.postgres, *[args[name] for name in query.parameters])  # type: ignore[no-any-return]
    except asyncpg.UniqueViolationError:
        raise Duplicate(f"cannot do {query.name}: there is one already") from None
    except asyncpg.ForeignKeyViolationError:
        raise Dangling(
            f"cannot do {query.name}: it names something that is not there, or is named by something"
        ) from None


def _without_credentials(url: Secret) -> str:
    parts = urlsplit(url.reveal())
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
