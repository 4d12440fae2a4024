"""A new SQLite database is a copy of one that was migrated, as a new one of Postgres is: to migrate takes five times as long.

The copy is made by SQLite into the connection that would have been migrated. What has a schema already is migrated as ever.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from legation.clock import Clock, SystemClock
from legation.store.database import migrations, sqlite

_migrate = sqlite._migrated
_templates: dict[int, bytes] = {}  # by their schema


def use_template() -> None:
    """From now on, in this process and those that are forked by it."""
    sqlite._migrated = _copied
    _template()


def _copied(connection: sqlite3.Connection, version: int, clock: Clock) -> list[migrations.Migration]:
    if version or connection.execute("select 1 from sqlite_master").fetchone():
        return _migrate(connection, version, clock)
    with closing(sqlite3.connect(":memory:")) as template:
        template.deserialize(_template())
        template.backup(connection)
    connection.execute("update migration set applied_at = ?", (clock.now_ms(),))
    return list(migrations.chain())


def _template() -> bytes:
    wanted = migrations.newest()
    if wanted not in _templates:
        _templates[wanted] = _made(SystemClock())
    return _templates[wanted]


def _made(clock: Clock) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        with closing(sqlite.connect(path)) as connection:
            _migrate(connection, 0, clock)
            connection.execute("pragma journal_mode = delete")  # all of it is in the file
        return path.read_bytes()
