"""The database of many machines: Postgres through asyncpg, in a schema of its own.

Everything runs serialisable but what says otherwise (INV-4 of `transaction.py`); a transaction that the database could not
fit in is run again from its start. Row level security is on for every table and nothing is granted to others: only the
owner's connection gets in.

A Postgres that does not answer (its machine hangs, the network drops everything) says nothing of it: whoever waits
waits on. So work that takes longer than usual has it asked, on a connection of its own, whether it is there at all. If
it is, the work is slow and goes on; if not, everybody hears of it at once, and the next ones without waiting, until it
answers again. Within ANSWER_LIMIT nobody waits any more.

Whoever listens does so on one connection that is there for nothing else. It is made again when it is lost, and then
everybody is woken: what was told meanwhile was told to nobody.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from legation.clock import Clock, SystemClock
from legation.errors import (
    ConfigInvalid,
    Conflict,
    InternalError,
    LegationError,
    StorageFailed,
    Unavailable,
)
from legation.secret import Secret
from legation.store.database import migrations
from legation.store.database.migrations import Migration
from legation.store.database.transaction import (
    Dangling,
    Dialect,
    Duplicate,
    Isolation,
    Overtaken,
    Query,
    Rows,
    Statement,
    TopicListeners,
    Transaction,
    step,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

SCHEMA: Final = "legation"
ANSWER_LIMIT: Final = 3.0  # seconds until a caller hears that Postgres does not answer: the caller's time
_PATIENCE: Final = 1.0  # seconds of them that work may take before Postgres is asked whether it is there
_BEATS: Final = 6  # pauses that it has to say so; counted, since a loop that was held up is not its fault
_BEAT: Final = 0.25  # seconds
_RETRY_AFTER: Final = 2  # seconds, for those who were sent away
CONNECT_LIMIT: Final = 10.0  # seconds until the server must have let us in: its time
COMMAND_LIMIT: Final = 60.0  # seconds for one statement: its time
MIGRATION_LIMIT: Final = (
    7200.0  # seconds for one migration, or for another's to end: an index over years of record
)
TRIES: Final = 12  # of a transaction that others keep getting in the way of
_LISTEN_AGAIN: Final = 0.5  # seconds until a lost listener is tried again: the server's, to come back
_LISTEN_CHECK: Final = 30.0  # seconds after which a silent listener is asked whether it is there
_OVERTAKEN: Final = (
    10  # times as many where a condition no longer held: they cost little, and each is another's success
)
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

# After an update: what a new column holds is known to nobody before, and of a small table not for months. A plan that takes
# a column for empty reads the record once for each of its rows. A table without a row is left out: one that is known to be empty
# is read whole wherever a foreign key names it, by every connection that planned so, until it is analyzed again.
_ANALYZE: Final = f"""
do $$ declare name text; filled boolean; begin
  for name in select tablename from pg_tables where schemaname = '{SCHEMA}' loop
    execute format('select exists (select from {SCHEMA}.%I)', name) into filled;
    if filled then execute format('analyze {SCHEMA}.%I', name); end if;
  end loop;
end $$;
"""  # noqa: S608 - our own schema name

T = TypeVar("T")
P = ParamSpec("P")

logger = logging.getLogger("legation.store")


class _Work:
    """One use of a connection."""

    __slots__ = ("_bound", "closed", "commits", "connection", "given_up")

    def __init__(self) -> None:
        self.connection: Any = None  # none yet: it waits for one
        self.commits = False  # the word is out, and whether it was heard is not known
        self.given_up = False
        self.closed = False  # by the other side
        self._bound = asyncio.timeout(None)

    async def connect(self, pool: "asyncpg.Pool[Any]") -> None:
        async with self._bound:
            self.connection = await pool.acquire(timeout=CONNECT_LIMIT)

    def give_up(self) -> None:
        """At once: neither a cancellation nor a rollback would be heard."""
        self.given_up = True
        if self.connection is not None:
            self.connection.terminate()
        else:
            self._bound.reschedule(asyncio.get_running_loop().time())


class PostgresDatabase:
    """`async with PostgresDatabase(url) as database`. The URL may hold a password: it is a secret."""

    dialect: Final[Dialect] = "postgres"

    def __init__(self, url: Secret, *, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._where = _without_credentials(url)
        self._pool: asyncpg.Pool[Any] | None = None
        self._works: set[_Work] = set()
        self._is_frozen = False
        self._pulse: asyncpg.Connection[Any] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._listeners = TopicListeners()
        self._listener: asyncpg.Connection[Any] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._to_tell: set[str] = set()
        self._telling: asyncio.Task[None] | None = None

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
                reset=_nothing_to_reset,
                server_settings={
                    "search_path": SCHEMA,
                    "application_name": "legation",
                    # A page is in the order of the one index that has all it is asked for. Sorting what an index with a
                    # part of it finds is for Postgres as good, until that part is most of the record.
                    "enable_incremental_sort": "off",
                    # And reading what is found in the order of the disk, to be sorted then, is as good for it until there are statistics.
                    "enable_bitmapscan": "off",
                    # Of a statement that is a transaction by itself, whatever the owner has set for others.
                    "default_transaction_isolation": "read committed",
                },
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            raise StorageFailed(
                f"cannot reach Postgres at {self._where}: {self._reason(error)}; check database_url and the server"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self._watch, self._hearing, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        for connection in (self._pulse, self._listener):
            if connection is not None:
                connection.terminate()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            if self._is_frozen:
                pool.terminate()
                return
            try:
                async with asyncio.timeout(CONNECT_LIMIT):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncpg

        pause, left = _RETRY_FIRST, TRIES * _OVERTAKEN
        isolation: Isolation = getattr(work, "isolation", "serialisable")
        level = "serializable" if isolation == "serialisable" else "read_committed"
        while left > 0:
            try:
                async with self._work() as use:
                    if isolation == "conditional":
                        found = await _drive_conditional(work(*args, **kwargs), use)
                    else:
                        async with use.connection.transaction(isolation=level):
                            found = await _drive(work(*args, **kwargs), use.connection)
                            use.commits = True
                    use.commits = False  # it is done
                    return found
            except Overtaken:
                # Another has got through, and so may this one: who waits longer each time would come last each time.
                left -= 1
                await asyncio.sleep(_RETRY_FIRST * random.random())  # noqa: S311 - spreads the tries
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                left -= _OVERTAKEN
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the tries
                pause = min(pause * 2, _RETRY_MOST)
        name = getattr(work, "__qualname__", "a transaction")
        logger.error("Postgres at %s: others were in the way of %s too often", self._where, name)
        raise Unavailable(
            "cannot save this now: too many others change the same; try again in a moment",
            {"retryAfter": _RETRY_AFTER},
        )

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            return await _drive(work(*args, **kwargs), connection)

    # Whoever listens.

    @contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._hear(), name="legation-listens-to-postgres")
        with self._listeners.listen(topic) as event:
            yield event

    def notify(self, topic: str) -> None:
        self._to_tell.add(topic)  # one that is being told goes on to those that come meanwhile
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="legation-notifies-by-postgres")

    async def _tell(self) -> None:
        while self._to_tell:
            topics, self._to_tell = self._to_tell, set()
            try:
                async with self._connection() as connection:
                    await connection.execute(
                        "select pg_notify($1, topic) from unnest($2::text[]) as topic", SCHEMA, [*topics]
                    )
            except LegationError as error:  # they look for themselves, a little later
                logger.debug("nobody could be notified: %s", error)
            except Exception:
                logger.exception("cannot notify other servers: a defect")

    async def _hear(self) -> None:
        """For as long as the database is open; made anew whenever the connection is lost."""
        import asyncpg

        while True:
            lost = asyncio.Event()
            try:
                self._listener = connection = await asyncpg.connect(self._url.reveal(), timeout=CONNECT_LIMIT)
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                await connection.add_listener(SCHEMA, lambda *told: self._listeners.wake(told[-1]))
                self._listeners.wake()  # of what was told before nothing was heard
                while not lost.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LISTEN_CHECK):
                            await lost.wait()
                    if not lost.is_set():
                        await connection.execute("select 1", timeout=ANSWER_LIMIT)
            except Exception as error:  # noqa: BLE001 - one that ended would leave everybody to look for themselves
                logger.debug("the listener of Postgres at %s was lost: %s", self._where, self._reason(error))
            if self._listener is not None:
                self._listener.terminate()
            await asyncio.sleep(_LISTEN_AGAIN)

    async def ping(self) -> None:
        async with self._connection() as connection:
            await connection.execute("select 1")

    async def scrub(self) -> None:
        """Nothing that a role without superuser rights could do at once."""

    @asynccontextmanager
    async def _connection(self) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        async with self._work() as use:
            yield use.connection

    @asynccontextmanager
    async def _work(self) -> "AsyncIterator[_Work]":
        """Errors of the connection and of the server become ours; those that mean "again" pass."""
        import asyncpg

        pool = self._pool
        if pool is None:
            raise Conflict(f"cannot use Postgres at {self._where}: it is closed; open it again")
        if self._is_frozen:
            self._doubt()
            raise _unanswered()
        use = _Work()
        self._works.add(use)
        doubt = asyncio.get_running_loop().call_later(_PATIENCE, self._doubt)
        try:
            await use.connect(pool)
            try:
                yield use
            except asyncpg.InternalClientError:
                # It was ended by the other side, whose last words came while nobody asked: asyncpg trips over them.
                with suppress(asyncpg.InterfaceError):
                    use.connection.terminate()
                raise
            finally:
                use.closed = _is_closed(use.connection)
                # What was done is done, also where the connection is lost behind it.
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    await pool.release(use.connection)
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            raise
        except (
            asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError
        ) as error:  # fmt: skip
            raise self._failure(use, error) from None  # the driver's own error may quote values
        finally:
            doubt.cancel()
            self._works.discard(use)

    def _failure(self, use: _Work, error: Exception) -> StorageFailed | Unavailable:
        import asyncpg

        if use.given_up:
            return _unanswered(commits=use.commits)
        # It was stopped, is starting, or has no room: it comes back, also where the word of its end arrives in the place of
        # that of a commit.
        gone = (
            asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError,
            asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError, asyncpg.InternalClientError, OSError,
        )  # fmt: skip
        closed = isinstance(error, asyncpg.InterfaceError) and (use.closed or use.commits)
        if closed or isinstance(error, gone):
            logger.warning("Postgres at %s is away: %s", self._where, self._reason(error))
            return _unanswered(commits=use.commits)
        return StorageFailed(
            f"cannot use Postgres at {self._where}: {self._reason(error)}; check the server, then try again"
        )

    # Whether it is there.

    def _doubt(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_over(), name="legation-watches-postgres")

    async def _watch_over(self) -> None:
        """While anybody waits for it, or should not."""
        while self._works or self._is_frozen:
            answers = await self._answers()
            if answers and self._is_frozen:
                logger.warning("Postgres at %s answers again", self._where)
            elif not answers and not self._is_frozen:
                logger.error("Postgres at %s does not answer: nobody waits for it any more", self._where)
            self._is_frozen = not answers
            for use in list(self._works) if self._is_frozen else ():
                use.give_up()
            await asyncio.sleep(_PATIENCE if answers else _BEAT)

    async def _answers(self) -> bool:
        asked = asyncio.create_task(self._ask())
        try:
            for _ in range(_BEATS):
                done, _pending = await asyncio.wait({asked}, timeout=_BEAT)
                if done:
                    return asked.result()
            return False
        finally:
            if not asked.done():
                if self._pulse is not None:
                    self._pulse.terminate()
                asked.cancel()
                await asyncio.wait({asked}, timeout=_BEAT)

    async def _ask(self) -> bool:
        """On a connection of its own: those of the pool may all be in use."""
        import asyncpg

        try:
            if self._pulse is None or self._pulse.is_closed():
                self._pulse = await asyncpg.connect(self._url.reveal(), timeout=CONNECT_LIMIT)
            await self._pulse.execute("select 1")
        except asyncpg.PostgresConnectionError:
            return False
        except asyncpg.PostgresError:
            return True  # that it has no room for one more is an answer
        except Exception as error:  # noqa: BLE001 - a watch that ended would leave it away for good
            logger.debug("Postgres at %s was asked in vain: %s", self._where, self._reason(error))
            return False
        return True

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
            lock = f"select pg_advisory_xact_lock({_MIGRATION_LOCK})"
            await connection.execute(lock, timeout=MIGRATION_LIMIT)
            version = await _version(connection)
            if version > migrations.newest():
                raise StorageFailed(
                    f"cannot use Postgres at {self._where}: its schema is {version}, newer than "
                    f"{migrations.newest()}; update Legation"
                )
            for migration in migrations.chain()[version:]:
                await self._apply(connection, migration)
                applied.append(migration)
            if applied:
                await connection.execute(_ANALYZE, timeout=MIGRATION_LIMIT)
        return applied

    async def _apply(self, connection: Any, migration: Migration) -> None:
        await connection.execute(f"create schema if not exists {SCHEMA}")
        text = f"{migrations.TABLE}; {migration.text}"
        await connection.execute(migrations.for_dialect(text, "postgres"), timeout=MIGRATION_LIMIT)
        note = "insert into migration (number, name, applied_at) values ($1, $2, $3)"
        await connection.execute(note, migration.number, migration.name, self._clock.now_ms())
        await connection.execute(_HARDEN)


def _unanswered(*, commits: bool = False) -> Unavailable:
    """Without its address: this may be told to somebody whom we do not know."""
    if commits:
        return Unavailable(
            "cannot tell whether this was saved: the database stopped answering while it was being saved; look whether "
            "it is there before you try again",
            {"outcome": "unknown"},
        )
    return Unavailable(
        "cannot do this now: the database does not answer; try again when it does",
        {"retryAfter": _RETRY_AFTER},
    )


def _is_closed(connection: Any) -> bool:
    import asyncpg

    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True  # the pool has taken it back, as it does with one that the other side has ended


async def _version(connection: Any) -> int:
    if not await connection.fetchval("select to_regclass($1)", f"{SCHEMA}.migration"):
        return 0
    return int(await connection.fetchval("select coalesce(max(number), 0) from migration"))


async def _nothing_to_reset(_connection: Any) -> None:
    """No work leaves anything behind in a session but a transaction, and that is taken back in any case: what asyncpg would
    send instead is one way there and back for each."""


async def _drive_conditional(transaction: Transaction[T], use: _Work) -> T:
    """Each statement is a transaction of its own, and only the last one writes."""
    try:
        statement = next(transaction)
        while True:
            if use.commits:
                raise InternalError(
                    f"cannot do {statement.query.name}: the work wrote before; mark it otherwise"
                )
            use.commits = (
                bool(statement.insertions) or not statement.query.reads
            )  # whether it is done is known when it is answered
            try:
                rows = await _execute(use.connection, statement)
            except (Duplicate, Dangling) as broken:
                use.commits = False
                step(transaction, broken)
            else:
                statement = transaction.send(rows)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


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

    query, args, rows, insertions = statement
    try:
        if insertions:
            return await _insert_with(connection, statement)
        if rows is None:
            return await connection.fetch(query.postgres, *[args[name] for name in query.parameters])  # type: ignore[no-any-return]
        if _INSERTION.fullmatch(query.postgres):
            await connection.fetch(await _insertion(connection, query), _as_json(rows))
        else:
            values = [[each[name] for name in query.parameters] for each in rows]
            await connection.executemany(query.postgres, values)
        return []
    except asyncpg.UniqueViolationError:
        raise Duplicate(f"cannot do {query.name}: there is one already") from None
    except asyncpg.ForeignKeyViolationError:
        raise Dangling(
            f"cannot do {query.name}: it names something that is not there, or is named by something"
        ) from None


# Insertions of many rows. As one text they are one execution, and one parameter: a row by itself costs Postgres as much as many do,
# and asyncpg some time for each value.

_INSERTION: Final = re.compile(r"(insert into \w+ \([^()]+\))\s+values \(([^()]+)\)")
_NUMBER: Final = re.compile(r"\$(\d+)")
# The same in every database of this release.
_insertions: Final[dict[Query, str]] = {}
_joined: Final[dict[tuple[Query, ...], str]] = {}


async def _insertion(connection: Any, query: Query) -> str:
    """Write the insertion of a row as one of rows in JSON; the types are what Postgres takes the parameters for."""
    if (text := _insertions.get(query)) is None:
        found = _INSERTION.fullmatch(query.postgres)
        if found is None:
            raise InternalError(f"cannot insert many by {query.name}: it is more than `insert ... values`")
        types = [each.name for each in (await connection.prepare(query.postgres)).get_parameters()]
        names = [f'"{name}"' for name in query.parameters]
        # Bytes are base64 in JSON.
        given = [
            f"decode(given.{name}, 'base64')" if kind == "bytea" else f"given.{name}"
            for name, kind in zip(names, types, strict=True)
        ]
        columns = ", ".join(
            f"{name} {'text' if kind == 'bytea' else kind}" for name, kind in zip(names, types, strict=True)
        )
        values = _NUMBER.sub(lambda number: given[int(number[1]) - 1], found[2])
        text = f"{found[1]} select {values} from json_to_recordset(cast($1 as json)) as given ({columns})"  # noqa: S608
        _insertions[query] = text
    return text


async def _insert_with(connection: Any, statement: Statement) -> Rows:
    """Insert and ask by one statement. Postgres looks at foreign keys at its end, so what names each other may be in it."""
    insertions = statement.insertions
    key = (*(each.query for each in insertions), statement.query)
    if (text := _joined.get(key)) is None:
        texts = [await _insertion(connection, each.query) for each in insertions]
        made = ", ".join(f"i{number} as ({_shifted(each, number)})" for number, each in enumerate(texts))
        text = _joined[key] = f"with {made} {_shifted(statement.query.postgres, len(texts))}"
    args = [statement.args[name] for name in statement.query.parameters]
    return await connection.fetch(text, *[_as_json(each.rows) for each in insertions], *args)  # type: ignore[no-any-return]


def _shifted(text: str, by: int) -> str:
    return _NUMBER.sub(lambda found: f"${int(found[1]) + by}", text)


def _as_json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()


def _without_credentials(url: Secret) -> str:
    parts = urlsplit(url.reveal())
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
