"""Real `legation server` processes on one real Postgres, each with a home of its own, and callers who know them all."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.cli.command import rehearse
from tests.cli.server_process import Running
from tests.postgres import MIGRATED, Postgres, database_name

from legation.store.secrets.sealer import new_key_text

LIMIT = 90.0  # seconds for anything a test waits for

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: runs, kind: execute, action: allow}
  - {id: reads, kind: read, action: allow}
  - {id: edits, kind: edit, action: human_approval}
  - {id: rest, action: deny, message: Leave it.}
"""

Json = dict[str, Any]


class Fleet:
    """Servers by their names, on one database."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder, self.postgres = folder, postgres
        self.url = postgres.new_database(MIGRATED)
        names = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        self.env = {
            "LEGATION_DATABASE_URL": self.url.reveal(),
            "LEGATION_POLICY": str(policy),
            "LEGATION_FOLDERS": folder.anchor,
            **{name: new_key_text() for name in names},
        }
        self.servers: dict[str, Running] = {}
        self._token = ""

    def start(self, name: str, *args: str, **env: str) -> Running:
        """Start it, or start it again: it has the port that it had."""
        home = self.folder / name
        first = not home.exists()
        home.mkdir(exist_ok=True)
        port = ("--port", "0") if first and "--port" not in args else ()
        server = self.servers[name] = Running(home, "server", *port, *args, **{**self.env, **env})
        server.line()
        return server

    def kill(self, name: str) -> None:
        self.servers[name].stop(signal.SIGKILL)

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop(signal.SIGKILL)

    def address(self, name: str) -> str:
        return self.servers[name].server_file().url

    def token(self) -> str:
        """Return one that is in the database, and so any server's."""
        if not self._token:
            first = next(iter(self.servers.values())).server_file()
            made = httpx2.post(
                f"{first.url}/v1/tokens", json={"label": "test"}, headers=bearer(first.token), timeout=LIMIT
            )
            assert made.status_code == 201, made.text
            self._token = made.json()["secret"]
        return self._token

    def client(self, name: str, token: str | None = None) -> httpx2.Client:
        headers = bearer(token or self.token())
        return httpx2.Client(base_url=self.address(name), headers=headers, timeout=LIMIT, trust_env=False)

    def sql(self, text: str) -> str:
        found = self.postgres.run(
            "psql", "-tA", "-h", str(self.postgres.folder), "-U", "legation", database_name(self.url), "-c",
            f"set search_path = legation; {text}",
        )  # fmt: skip
        return found.removeprefix("SET\n").strip()


@contextmanager
def fleet(folder: Path, postgres: Postgres, *names: str) -> Iterator[Fleet]:
    made = Fleet(folder, postgres)
    try:
        for name in names:
            made.start(name)
        yield made
    finally:
        made.stop()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def create(http: httpx2.Client, session: str, **given: object) -> httpx2.Response:
    return http.post(f"/v1/sessions/{session}", json={"agent": "rehearsal", **given})


def send(http: httpx2.Client, session: str, *steps: str) -> None:
    sent = http.post(f"/v1/sessions/{session}/messages", json={"message": rehearse(*steps)})
    assert sent.status_code == 204, sent.text


def events(http: httpx2.Client, session: str) -> list[Json]:
    found = http.get(f"/v1/streams/{session}/events", params={"limit": 1000})
    assert found.status_code == 200, found.text
    items: list[Json] = found.json()["items"]
    return items


def until(wanted: Callable[[], Any]) -> Any:
    """Ask again until it is so: what happens in another process tells nobody."""
    deadline = time.monotonic() + LIMIT
    while not (found := wanted()):
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.02)
    return found


def played(http: httpx2.Client, session: str, *steps: str) -> list[Json]:
    """Send a message, and return the events when its turn is over."""
    before = sum(each["type"] == "prompt-finished" for each in events(http, session))
    send(http, session, *steps)

    def over() -> list[Json] | None:
        found = events(http, session)
        return found if sum(each["type"] == "prompt-finished" for each in found) > before else None

    found: list[Json] = until(over)
    return found


def text_of(found: list[Json]) -> str:
    chunks = [
        each["raw"]["update"]["content"]["text"] for each in found if each["type"] == "agent-message-chunk"
    ]
    return "".join(chunks)


def frames(response: httpx2.Response) -> Iterator[tuple[int, Json]]:
    """Read server-sent events: their ids and data."""
    rest = b""
    for chunk in response.iter_raw():
        *whole, rest = (rest + chunk).split(b"\n\n")
        for frame in whole:
            fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line[1:])
            if b"id" in fields:
                yield int(fields[b"id"]), json.loads(fields[b"data"])
