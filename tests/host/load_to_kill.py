"""A host that loads a session into another folder and is killed when the store has the new history. argv: place."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.host.rig import play, rig

from legation.store.codec import Op, Replace
from legation.store.jsonl import JsonlBackend


class Deadly(JsonlBackend):
    def commit(self, ops: Sequence[Op]) -> None:
        super().commit(ops)
        if any(isinstance(op, Replace) for op in ops):
            os.kill(os.getpid(), signal.SIGKILL)


SOURCE = """
able = {"loadSession": True}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})
session(); prompt = prompted(); update("old"); done(prompt)
load = serve("session/load"); update("told again"); send(id=load, result={}); stay()
"""


async def main(place: Path) -> None:
    async with rig(place, backend=Deadly(place / "log")) as made:
        session = await made.script(SOURCE)
        await play(session, "say old")
        print(session.id, flush=True)  # noqa: T201 - to the test
        (place / "new").mkdir()
        assert session.agent_id
        await made.host.load_session(session.agent_id, session.id, cwd=place / "new")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
