"""Submission of runs over HTTP by 32 clients, 1 KB each, beside one-row commits from 32 connections to the same Postgres: each run by a
request of its own, or a hundred by one.

The server is a process of its own. On Postgres the data is on the disk and fsync is on; on SQLite there is the rate alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.http_post import LOAD_LIMIT, STOP_LIMIT, Client, cpu_seconds
from bench.measure import Sample, emit
from legation.store.secrets.sealer import new_key_text

if TYPE_CHECKING:
    from tests.postgres import Postgres

CLIENTS = 32
SUBMISSIONS = 3_200
BATCHED = 12_800
COMMITS = 6_400
WARM_UP = 640
START_LIMIT = 60.0  # seconds; the server's time
TOKEN = "bench-token-of-thirty-two-letters"
RUN = {"agent": "rehearsal", "prompt": "x" * 1000}
RATE, COMMIT_RATE, PART, CPU = "submissions/s", "commits/s", "of commits", "CPU µs/submission"

_LISTENING = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")


@contextmanager
def server(folder: Path, more: dict[str, str]) -> Iterator[tuple[int, int]]:
    """A server without a worker: its pid and its port."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LEGATION_TOKEN": TOKEN,
        "LEGATION_RUNS_PER_MINUTE": "1000000",
        **more,
    }
    argv = [sys.executable, "-m", "legation"]
    if more:
        subprocess.run([*argv, "migrate"], env=env, check=True, capture_output=True)
    said = folder / "said"
    with (
        said.open("wb") as stderr,
        subprocess.Popen([*argv, "server", "--port", "0"], env=env, stderr=stderr) as process,
    ):
        try:
            yield process.pid, _port(process, said)
        finally:
            process.terminate()
            process.wait(STOP_LIMIT)


def _port(process: subprocess.Popen[bytes], said: Path) -> int:
    deadline = time.monotonic() + START_LIMIT
    while (found := _LISTENING.search(said.read_bytes())) is None:
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    return int(found[1])


async def load(port: int, count: int, batch: int) -> None:
    body = json.dumps(RUN if batch == 1 else {"runs": [RUN] * batch}).encode()
    path, status = ("/v1/runs", b"201") if batch == 1 else ("/v1/runs:batch", b"200")
    request = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    clients = [
        (
            await loop.create_connection(
                lambda: Client(request, count // batch // CLIENTS, status), "127.0.0.1", port
            )
        )[1]
        for _ in range(CLIENTS)
    ]
    async with asyncio.timeout(LOAD_LIMIT):
        await asyncio.gather(*(client.done for client in clients))


async def commits(url: str, count: int) -> float:
    """Rows of 1 KB a second, each by a commit of its own."""
    import asyncpg

    connections = [await asyncpg.connect(url) for _ in range(CLIENTS)]
    await connections[0].execute("create table one_row (id bigserial primary key, body text not null)")
    left = iter(range(count))

    async def one(connection: asyncpg.Connection) -> None:
        for _ in left:
            await connection.execute("insert into one_row (body) values ($1)", "x" * 1000)

    begun = time.perf_counter()
    await asyncio.gather(*(one(each) for each in connections))
    spent = time.perf_counter() - begun
    for each in connections:
        await each.close()
    return count / spent


def measure(kind: str, batch: int, scratch: Path) -> Sample:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir=scratch) as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - once, and Postgres runs as another user
        home = Path(folder, "home")
        home.mkdir(mode=0o700)
        with _postgres(Path(folder)) if kind == "postgres" else nullcontext() as postgres:
            return _measure(home, postgres, batch)


def _measure(home: Path, postgres: Postgres | None, batch: int) -> Sample:
    count = SUBMISSIONS if batch == 1 else BATCHED
    more = {}
    if postgres is not None:
        names = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
        more = {"LEGATION_DATABASE_URL": postgres.new_database().reveal()}
        more |= {name: new_key_text() for name in names}
    sample: Sample = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if postgres is not None:
            sample[COMMIT_RATE] = runner.run(commits(postgres.new_database().reveal(), COMMITS))
        with server(home, more) as (pid, port):
            runner.run(load(port, WARM_UP, 1))
            cpu, wall = cpu_seconds(pid), time.perf_counter()
            runner.run(load(port, count, batch))
            wall, cpu = time.perf_counter() - wall, cpu_seconds(pid) - cpu
    sample |= {RATE: count / wall, CPU: cpu / count * 1e6}
    if COMMIT_RATE in sample:
        sample[PART] = sample[RATE] / sample[COMMIT_RATE]
    return sample


@contextmanager
def _postgres(folder: Path) -> Iterator[Postgres]:
    from tests.postgres import running_postgres

    with running_postgres(durable=True, parent=folder) as postgres:
        yield postgres


if __name__ == "__main__":
    emit(measure(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
