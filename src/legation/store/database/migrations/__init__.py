"""The one chain of numbered migrations. A file that was released never changes; a change is a new file.

One text serves both databases: `{int}` and `{bytes}` stand for the column types whose names differ, `{exact}` for an order
by code points, whatever the database's language. `{hot}` is in the place of `{options}` where rows change often and no index is
to hear of it: on Postgres their pages have room for the next version.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from legation.store.database.transaction import Dialect

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_TYPES: Final[dict[Dialect, dict[str, str]]] = {
    "sqlite": {
        "{int}": "integer",
        "{bytes}": "blob",
        "{real}": "real",
        "{exact}": "",
        "{options}": "strict",
        "{hot}": "strict",
    },
    "postgres": {
        "{int}": "bigint",
        "{bytes}": "bytea",
        "{real}": "double precision",
        "{exact}": 'collate "C"',
        "{options}": "",
        "{hot}": "with (fillfactor = 70)",
    },
}

TABLE: Final = """create table if not exists migration (
  number {int} primary key, name text not null, applied_at {int} not null) {options}"""


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


@cache
def chain() -> tuple[Migration, ...]:
    texts = {file.name: file.read_text("utf-8") for file in Path(__file__).parent.iterdir() if file.is_file()}
    matches = [match for match in map(_FILE.fullmatch, sorted(texts)) if match]
    found = [Migration(int(match[1]), match[2], texts[match[0]]) for match in matches]
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError("the migrations are not numbered 1, 2, 3, ...")
    return tuple(found)


def newest() -> int:
    return len(chain())


def for_dialect(text: str, dialect: Dialect) -> str:
    for word, type_ in _TYPES[dialect].items():
        text = text.replace(word, type_)
    return text
