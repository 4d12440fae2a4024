"""Work on the database, written once for SQLite and Postgres.

A transaction is a generator: it yields statements, is sent their rows, and returns its result.

    def rename(user: str, name: str) -> Transaction[bool]:
        rows = yield SQL.rename_user(id=user, name=name)
        yield from record(...)          # another transaction's work, as part of this one
        return bool(rows)

    renamed = await database.transact(rename, "usr_1", "Ada")

INV-1  All of it or nothing: an error raised in the work takes back every statement. When `transact` returns,
       it is durable.
INV-2  Transactions are serialisable on both databases. Postgres reaches that by running one again from its
       start, so a work has no effect but its statements.
INV-3  A broken constraint is thrown in at the statement that broke it, as `Duplicate` or `Dangling`. The work
       may turn it into an error of its own, and must not go on.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from legation.errors import Conflict, InternalError
from legation.store.database.migrations import Migration
from legation.store.database.queries import Dialect, Query, Value

T = TypeVar("T")
P = ParamSpec("P")

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]


class Statement(NamedTuple):
    query: Query
    args: Mapping[str, Value]


Transaction: TypeAlias = Generator[Statement, Rows, T]


class Duplicate(Conflict):
    """A unique constraint: there is one already."""


class Dangling(Conflict):
    """A foreign key: what it names is not there, or is still named by something else."""


class Database(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """One consistent view; a statement that writes is refused."""

    async def ping(self) -> None:
        """Raises if the database does not answer."""

    async def scrub(self) -> None:
        """After a deletion that must leave no byte: on SQLite the write-ahead log is merged and emptied. Postgres
        keeps dead rows until it vacuums, and its own log as it is set up; docs/vault.md says what that means."""

    async def version(self) -> int:
        """The number of the last migration that was applied; 0 for an empty database."""

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to this release's; what was applied."""


def step(transaction: Transaction[T], error: Conflict) -> None:
    """Throw a broken constraint in; the work must end with an error, its own or this one."""
    transaction.throw(error)
    transaction.close()
    raise InternalError("cannot go on with a transaction after a broken constraint: raise an error there")


def only(rows: Rows) -> Row | None:
    """The one row, or None; more than one is a defect of the query."""
    if len(rows) > 1:
        raise InternalError(f"cannot choose among {len(rows)} rows where one was expected")
    return rows[0] if rows else None
