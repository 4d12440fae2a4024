"""A stream that one server passes on for another: what that costs each of their processes. argv: HOW READERS EVENTS SIZE SCRATCH.

Two servers share the Postgres of the tests; the session is the one's, and all readers are at the other. HOW is `flood` (the
agent writes as fast as it is read), `paced` (a line every five milliseconds; SIZE does not count) or `stored` (the turn is
over, and the readers read it from its beginning). The owner's figure is of all that it does for it: the agent's lines and
the log too, where they are live.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import uvloop
from tests.postgres import MIGRATED, running_postgres

from bench.measure import Sample, emit
from bench.rival import FLOODING, LIMIT, PAUSE_MS, WARM_UP, arrived, prompted
from bench.rival_reader import Reader
from bench.rival_server import Server, started
from bench.rival_session import Session, open_session
from legation.store.secrets.sealer import new_key_text

OWNER, PASSING, RATIO = "owner CPU µs/event", "passing CPU µs/event", "passing/owner"
SIDE: Final = "legation-sessions"
PATIENCE: Final = 30.0  # seconds for one of twenty that read a long record at once, on a busy machine


async def readers_of(session: Session, server: Server, count: int, events: int = 0) -> list[Reader]:
    """Connect them to that server, whoever has the session; they expect what is there already."""
    loop = asyncio.get_running_loop()
    request = server.reading(f"{session.events}/sse")
    readers = [Reader(request, session.member, is_cut=True) for _ in range(count)]
    for reader in readers:
        reader.expect(events)
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", server.port)  # type: ignore[misc]
    async with asyncio.timeout(LIMIT):
        for reader in readers:
            await reader.greeted.wait()
    return readers


async def spent(how: str, count: int, events: int, size: int, owner: Server, passing: Server) -> Sample:
    session = await open_session(SIDE, owner)
    if how == "stored":
        await prompted(session, [], f"flood {events} {size}", events)
        [warm] = await readers_of(session, passing, 1, events)
        await arrived(session, warm)
        before = owner.cpu(), passing.cpu()
        readers = await readers_of(session, passing, count, events)
        for reader in readers:
            await arrived(session, reader, PATIENCE)
    else:
        readers = await readers_of(session, passing, count)
        await prompted(session, readers, f"flood {WARM_UP} {size}", WARM_UP)
        before = owner.cpu(), passing.cpu()
        what = f"flood {events} {size}" if how == "flood" else f"paced {events} {PAUSE_MS}"
        await prompted(session, readers, what, events)
    costs = owner.cpu() - before[0], passing.cpu() - before[1]
    if any(reader.lost or reader.twice for reader in readers):
        lost, twice = sum(each.lost for each in readers), sum(each.twice for each in readers)
        raise RuntimeError(f"{lost} of {count * events} events were lost, and {twice} came twice")
    first, second = (cost / (count * events) * 1e6 for cost in costs)
    return {OWNER: first, PASSING: second, RATIO: second / first}


async def main(how: str, count: str, events: str, size: str, scratch: str) -> Sample:
    names = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
    with tempfile.TemporaryDirectory(dir=scratch) as made, running_postgres() as postgres:
        settings = {name: new_key_text() for name in names}
        settings["LEGATION_DATABASE_URL"] = postgres.new_database(MIGRATED).reveal()
        home = Path(made)
        with (
            started(SIDE, home / "a", FLOODING, settings=settings) as owner,
            started(SIDE, home / "b", FLOODING, settings=settings) as passing,
        ):
            return await spent(how, int(count), int(events), int(size), owner, passing)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parent.parent))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        emit(runner.run(main(*sys.argv[1:])))
