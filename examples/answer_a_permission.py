"""An agent asks before it acts, and this program answers. Runs without a key: `python examples/answer_a_permission.py`."""

import asyncio
from pathlib import Path

from legation.client import AsyncLegation, Spawn
from legation.wire.universal.shapes import Permission


async def main() -> None:
    async with AsyncLegation.start(Spawn(log="silent")) as server:
        session = await server.sessions.create("rehearsal")  # in a folder of its own

        async for event in session.turn("#!rehearse\nask write answer.txt 42"):
            if event.type == "permission.requested" and isinstance(event.data, Permission):
                print("it asks for:", event.data.action)
                await session.answer(event.data, "once")  # or "always", in this session; or "reject"
            elif event.type == "permission.resolved" and isinstance(event.data, Permission):
                print("answered:", event.data.status)

        folder = Path((await session.info()).directory or ".")
        print("written:", (folder / "answer.txt").read_text())


asyncio.run(main())
