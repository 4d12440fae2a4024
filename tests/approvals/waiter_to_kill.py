"""Asks, is answered, consumes and acts, several at a time, until it is killed. argv: folder key waiter."""

import asyncio
import os
import sys
from pathlib import Path

from tests.approvals.installation import AGENT, NOW, Installation, add_asker
from tests.approvals.test_trace import after

from legation.secret import Secret
from legation.store.database.sqlite import SqliteDatabase
from legation.store.secrets.sealer import KeyRing, Sealer, make_key

AT_ONCE = 4


async def act(installation: Installation, waiter: str, effects: int) -> None:
    while True:
        approval = await installation.ask(waiter=waiter)
        approved = await installation.answer(approval)
        await installation.consume(approved)
        os.write(effects, f"{approval.id}\n".encode())  # the effect, counted
        await installation.ledger.append("local", after(approval), NOW + 3)


async def main() -> None:
    folder, key, waiter = sys.argv[1:]
    effects = os.open(Path(folder) / "effects", os.O_WRONLY | os.O_APPEND)
    async with SqliteDatabase(Path(folder) / "legation.db") as database:
        installation = Installation(database, Sealer(KeyRing(make_key(Secret(key, "vault-key")))))
        await add_asker(database, AGENT.id)
        await installation.sign(waiter)
        sys.stdout.write("acting\n")
        sys.stdout.flush()
        await asyncio.gather(*[act(installation, waiter, effects) for _ in range(AT_ONCE)])


asyncio.run(main())
