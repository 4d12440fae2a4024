"""A log of an earlier release, made of one of today's; and a program that is killed while it brings one up to date.

argv: the file, and the number of the statement that it does not live to see.
"""

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from legation.store.sqlite import SqliteBackend


def take_back(path: Path, version: int = 4) -> None:
    """As version 4 had it, which is as the ones before it did, but for what the caller takes away too."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        indexes = "select name from sqlite_schema where type = 'index' and name like 'stream_%'"
        for (name,) in connection.execute(indexes).fetchall():
            connection.execute(f"drop index {name}")
        for column in ("agent", "cwd", "place", "used", "flags"):
            connection.execute(f"alter table stream drop column {column}")
        connection.execute(f"pragma user_version = {version}")


class Dying:
    """A connection whose statements count."""

    def __init__(self, connection: sqlite3.Connection, left: int) -> None:
        self._connection = connection
        self._left = left

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._connection, name)
        if name not in ("execute", "executemany", "executescript"):
            return real

        def counted(*args: Any) -> Any:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return counted


def main() -> None:
    path, number = Path(sys.argv[1]), int(sys.argv[2])

    class Dead(SqliteBackend):
        def _connect(self) -> Any:
            return Dying(super()._connect(), number)

    Dead(path).open(lambda _: None)
    print("open", flush=True)  # noqa: T201 - to the test


if __name__ == "__main__":
    main()
