"""Work on the database, written once for SQLite and Postgres.

A transaction is a generator: it yields statements, is sent their rows, and returns its result.

    def rename(user: str, name: str) -> Transaction[bool]:
        rows = yield SQL.rename_user(id=user, name=name)
        yield from record(...)          # another transaction's work, as part of this one
        return bool(rows)

    renamed = await database.transact(rename, "usr_1", "Ada")

INV-1  All of it or nothing: an error raised in the work takes back every statement. When `transact` returns,
       it is durable.
INV-2  Transactions are serialisable on both databases, unless the work says otherwise (INV-4). Postgres reaches that by
       running one again from its start, so a work has no effect but its statements.
INV-3  A broken constraint is thrown in at the statement that broke it, as `Duplicate` or `Dangling`. The work
       may turn it into an error of its own, and must not go on.
INV-4  What is hot says so where it is defined, with the reason why it is safe: `@read_committed` has Postgres give each
       statement a view of its own. `@conditional` is the same of a work that writes once and last: it needs no transaction
       around it, that one statement is all or nothing (so are its insertions, `with_insertions`). Both write only under a condition that names what they
       have read (`where seq = :former`), and raise `Overtaken` where it no longer holds: then the work is run again. On
       SQLite, whose one writer lets nobody in between, neither changes anything.
INV-5  `notify` tells those who `listen` that something changed, after the commit and maybe several changes at once. It
       is mere speed: a listener that hears nothing for a while looks for itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from legation.errors import Conflict, InternalError
from legation.store.database.migrations import Migration
from legation.wire.api.shape import Page

T = TypeVar("T")
P = ParamSpec("P")

Dialect = Literal["sqlite", "postgres"]
Isolation = Literal["serialisable", "read-committed", "conditional"]
Value: TypeAlias = str | int | float | bytes | None


class Row(Protocol):
    """A row, as either driver gives it: its columns by their names, and no more of a mapping than that."""

    def __getitem__(self, column: str, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...  # over the values
    def keys(self) -> Iterable[str]: ...


Rows: TypeAlias = Sequence[Row]


class Statement(NamedTuple):
    query: Query
    args: Mapping[str, Value]
    rows: Sequence[Mapping[str, Value]] | None = (
        None  # in place of `args`: it is run once for each, and gives none back
    )
    insertions: Sequence[Statement] = ()  # made before it, of many rows each


Transaction: TypeAlias = Generator[Statement, Rows, T]


class Duplicate(Conflict):
    """A unique constraint: there is one already."""


class Dangling(Conflict):
    """A foreign key: what it names is not there, or is still named by something else."""


class Overtaken(Conflict):
    """The basis of a conditional write has changed: another was faster. `transact` runs the work again."""


def read_committed(work: Callable[P, Transaction[T]]) -> Callable[P, Transaction[T]]:
    """Mark a work whose writes are conditional (INV-4)."""
    work.isolation = "read-committed"  # type: ignore[attr-defined]
    return work


def conditional(work: Callable[P, Transaction[T]]) -> Callable[P, Transaction[T]]:
    """Mark a work that reads, then writes once, under a condition, and is done (INV-4)."""
    work.isolation = "conditional"  # type: ignore[attr-defined]
    return work


class TopicListeners:
    """Those of one process that listen, by topic. Each has an event, so that many changes are one: whoever is woken
    clears it, then looks."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            self._events[topic].discard(event)
            if not self._events[topic]:
                del self._events[topic]

    def wake(self, topic: str | None = None) -> None:
        """Wake those of a topic, or all: something may have been missed."""
        for name in self._events if topic is None else (topic,):
            for event in self._events.get(name, ()):
                event.set()


class Database(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    async def transact(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read(self, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """One consistent view; a statement that writes is refused."""

    def listen(self, topic: str) -> AbstractContextManager[asyncio.Event]:
        """The event is set when another, or this process itself, has notified the topic, and whenever a notice may have
        been missed (INV-5): clear it, then look."""

    def notify(self, topic: str) -> None:
        """Wake whoever listens, at any server. To be called when the change is durable; it never fails."""

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


def with_insertions(statement: Statement, insertions: Iterable[Statement]) -> Statement:
    """Make insertions of many rows (`Queries.each`) a part of a statement: all of it or nothing, and on Postgres one way there and
    back. Those without a row are left out. It sees nothing of what is inserted, and a broken constraint may be that of any."""
    return statement._replace(insertions=[each for each in insertions if each.rows])


def rows(statement: Statement) -> Transaction[Rows]:
    """Run one statement as a transaction of its own: `await database.read(rows, SQL.due(now=now))`."""
    return (yield statement)


def page_of(rows: Rows, limit: int, read: Callable[[Row], T], key: Callable[[T], str]) -> Page[T]:
    """A part of a list, of `limit + 1` rows: the one too many tells whether there is another part. `key` is what the rows
    are ordered by."""
    items = [read(row) for row in rows[:limit]]
    return Page(items=items, next=key(items[-1]) if len(rows) > limit else None)


_NAME: Final = re.compile(r"^-- name: (?P<name>\w+)(?: \[(?P<dialect>sqlite|postgres)\])?$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--[^\n]*")
PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    name: str
    sqlite: str
    postgres: str
    parameters: tuple[str, ...]  # in the order of Postgres's $1, $2, ...
    reads: bool = field(init=False)
    _names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", self.postgres.startswith("select"))
        object.__setattr__(self, "_names", frozenset(self.parameters))

    def __call__(self, **args: Value) -> Statement:
        if args.keys() != self._names:
            raise TypeError(f"{self.name} takes {', '.join(self.parameters) or 'nothing'}")
        return Statement(self, args)


class Queries(msgspec.Struct):
    """Named SQL, one text for both databases, from a file of `store/sql/`:

        -- name: rename_user
        -- Only of a user that is not disabled.
        update app_user set name = :name where id = :id and disabled_at is null returning id;

    `Queries("users")` reads the file, `queries.rename_user(id=..., name=...)` makes a statement of it. Where the databases
    need different texts, the name stands twice, as `rename_user [sqlite]` and `rename_user [postgres]`; SQLite's may need
    fewer of the parameters."""

    file: str

    def each(self, name: str, rows: Sequence[Mapping[str, Value]]) -> Statement:
        """Make one that is run for each of these arguments."""
        return Statement(_named(self.file)[name], {}, rows)

    def __getattr__(self, name: str) -> Callable[..., Statement]:
        try:
            return _named(self.file)[name]
        except KeyError:
            raise AttributeError(f"{self.file}.sql has no query {name}") from None

    def __iter__(self) -> Iterator[Query]:
        return iter(_named(self.file).values())


@cache
def _named(file: str) -> dict[str, Query]:
    # When one is first needed: to read the files of all would be a tenth of the server's start.
    text = Path(__file__).parents[1].joinpath(f"sql/{file}.sql").read_text("utf-8")
    return {query.name: query for query in parse(text)}


def parse(text: str) -> Iterator[Query]:
    texts: dict[str, dict[str, str]] = {}
    marks = list(_NAME.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = (
            _COMMENT.sub("", text[mark.end() : following.start() if following else None]).strip().rstrip(";")
        )
        for dialect in (mark["dialect"],) if mark["dialect"] else ("sqlite", "postgres"):
            if dialect in texts.setdefault(mark["name"], {}):
                raise ValueError(f"query {mark['name']} stands twice for {dialect}")
            texts[mark["name"]][dialect] = body
    for name, bodies in texts.items():
        if bodies.keys() != {"sqlite", "postgres"}:
            raise ValueError(f"query {name} stands for {', '.join(bodies)} alone")
        yield _query(name, bodies["sqlite"], bodies["postgres"])


def _query(name: str, sqlite: str, postgres: str) -> Query:
    parameters = tuple(dict.fromkeys(PARAMETER.findall(postgres)))
    if not set(parameters) >= set(PARAMETER.findall(sqlite)):
        raise ValueError(f"query {name} takes parameters on SQLite that it does not take on Postgres")
    numbered = PARAMETER.sub(lambda found: f"${parameters.index(found[1]) + 1}", postgres)
    return Query(name, sqlite, numbered, parameters)
