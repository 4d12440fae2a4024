"""The Postgres of the tests: shared by the processes of a run, and gone when the last of them is, killed or not."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres import MIGRATED, ROOT, START_LIMIT, Postgres, database_name, shared_postgres

from legation.store.database.postgres import PostgresDatabase

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds: the machine's time to stop it
USER = """
import os, signal, sys
from pathlib import Path
from tests.postgres import shared_postgres
with shared_postgres(Path(sys.argv[1])) as postgres:
    print(postgres.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a process elsewhere; bounded


def killed_user(run: Path) -> Path:
    """The folder of the server that a process had when it was killed."""
    told = subprocess.run(
        [sys.executable, "-c", USER, run],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_LIMIT + LIMIT,
        check=False,
    )
    return Path(told.stdout.strip())


def test_it_is_stopped_and_removed_when_its_only_user_was_killed(tmp_path: Path) -> None:
    folder = killed_user(tmp_path)
    assert folder.name.startswith("legation-pg-")
    until(lambda: not folder.exists())


def test_it_stays_for_the_other_users_of_a_run_and_the_next_run_has_another(tmp_path: Path) -> None:
    with shared_postgres(tmp_path) as mine:
        assert killed_user(tmp_path) == mine.folder
        mine.new_database()
        mine.drop_databases()
    until(lambda: not mine.folder.exists())
    with shared_postgres(tmp_path) as next_one:
        assert next_one.folder != mine.folder
        next_one.new_database()


async def test_a_database_is_dropped_while_somebody_is_connected(postgres: Postgres) -> None:
    url = postgres.new_database(MIGRATED)
    async with PostgresDatabase(url) as database:
        assert await database.migrate() == []
        postgres.drop_databases()
    listed = postgres.run("psql", "-l", "-h", str(postgres.folder), "-U", "legation")
    assert database_name(url) not in listed
