"""Agents start and end in a server whose threads open and close files: nobody loses a descriptor to another."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tests.cli.server_process import Running
from tests.server.sessions import server_beside_openers

AT_ONCE = 8
LIMIT = 120.0  # seconds: an agent's time to start or end beside all the others

# Enough of ACP to be greeted and given a session. No program is started for it, so that it costs next to nothing.
AGENT = r"""
while IFS= read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in
    *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *'"method":"session/new"'*) result='{"sessionId":"only"}' ;;
    *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"""
# One that ends before anybody has greeted it: its pipes close while the loop is still taking them over.
GONE = "exit 1\n"


class BesideOpeners(Running):
    program = (str(Path(server_beside_openers.__file__)),)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "count",
    [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
@pytest.mark.timeout(600)
def test_agents_start_and_end_beside_threads_that_open_files(tmp_path: Path, count: int) -> None:
    taken = tmp_path / "taken.txt"
    data = tmp_path / ".local/share/legation"
    data.mkdir(parents=True)
    for name, text in {"tiny": AGENT, "gone": GONE}.items():
        (tmp_path / f"{name}.sh").write_text(text)
        with (data / "agents.toml").open("a") as file:
            file.write(f'[agents.{name}]\ncommand = "sh {tmp_path / name}.sh"\n')
    server = BesideOpeners(tmp_path, str(taken), "up", "--port", "0")
    try:
        server.line()
        created = asyncio.run(start_and_end(server, count))
        assert server.stop() == 0
    finally:
        server.stop(9)
    assert taken.read_text() == ""
    assert created == {("tiny", 200): count * 4 // 5, ("gone", 502): count // 5}
    assert "Bad file descriptor" not in (data / "logs/server.jsonl").read_text()
    for database in ("legation.db", "events.db"):
        with closing(sqlite3.connect(data / database)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


async def start_and_end(server: Running, count: int) -> dict[tuple[str, int], int]:
    """How often each agent's session was answered with which status."""
    found, answers = server.server_file(), dict[tuple[str, int], int]()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx2.AsyncClient, number: int) -> None:
        agent = "gone" if number % 5 == 4 else "tiny"
        async with turn:
            made = await client.post(f"/v1/sessions/s{number}", json={"agent": agent})
            answers[agent, made.status_code] = answers.get((agent, made.status_code), 0) + 1
            if made.status_code == 200:
                ended = await client.post(f"/v1/sessions/s{number}/terminate")
                assert ended.status_code == 204, ended.text

    headers = {"authorization": f"Bearer {found.token}"}
    async with httpx2.AsyncClient(base_url=found.url, headers=headers, timeout=LIMIT) as client:
        await asyncio.gather(*(one(client, number) for number in range(count)))
    return answers
