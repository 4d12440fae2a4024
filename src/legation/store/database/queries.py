"""Named SQL: one text for both databases, in `store/sql/*.sql`.

    -- name: rename_user
    -- Only of a user that is not disabled.
    update app_user set name = :name where id = :id and disabled_at is null returning id;

`Queries("identity")` reads a file; `queries.rename_user(id=..., name=...)` makes a statement of it. Where the two
need different texts, the name stands twice, as `rename_user [sqlite]` and `rename_user [postgres]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from legation.store.database.transaction import Statement

Dialect = Literal["sqlite", "postgres"]
Value: TypeAlias = str | int | float | bytes | None

_NAME: Final = re.compile(r"^-- name: (?P<name>\w+)(?: \[(?P<dialect>sqlite|postgres)\])?$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--[^\n]*")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    name: str
    sqlite: str
    postgres: str
    parameters: tuple[str, ...]  # in the order of Postgres's $1, $2, ...

    def __call__(self, **args: Value) -> Statement:
        from legation.store.database.transaction import Statement

        if args.keys() != set(self.parameters):
            raise TypeError(f"{self.name} takes {', '.join(self.parameters) or 'nothing'}")
        return Statement(self, args)


@dataclass(slots=True)
class Queries:
    file: str
    _queries: dict[str, Query] = field(init=False)

    def __post_init__(self) -> None:
        text = files("legation.store").joinpath(f"sql/{self.file}.sql").read_text("utf-8")
        self._queries = {query.name: query for query in parse(text)}

    def __getattr__(self, name: str) -> Callable[..., Statement]:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"{self.file}.sql has no query {name}") from None

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


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
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(postgres)))
    if set(parameters) != set(_PARAMETER.findall(sqlite)):
        raise ValueError(f"query {name} takes different parameters in its two texts")
    numbered = _PARAMETER.sub(lambda found: f"${parameters.index(found[1]) + 1}", postgres)
    return Query(name, sqlite, numbered, parameters)
