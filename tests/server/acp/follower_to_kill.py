"""A client follows a session until kill -9 comes, at one commit of the log: before it, or right after it. Prints what was
acknowledged of what it was told. argv: folder, the number of the commit, `before` or `after`."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from legation.server.acp.log import ConnectionLog, SessionFollower, stream_name
from legation.store.codec import Op
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft


class Killed(SqliteBackend):
    def __init__(self, path: Path, number: int, when: str) -> None:
        super().__init__(path)
        self._left = number
        self._when = when

    def commit(self, ops: Sequence[Op]) -> None:
        self._left -= 1
        if self._left == 0 and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(ops)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    folder, number, when = sys.argv[1:]
    async with EventLog(Killed(Path(folder) / "log.db", int(number), when)) as log:
        session, told = await log.stream("ses_1"), await log.stream(stream_name("editor"))
        follower = SessionFollower(
            "ses_1", session, ConnectionLog(log, told), lambda *_: None, lambda _: None
        )
        follower.seq = session.visible
        follower.start()
        while True:
            head = session.head
            texts = [b'{"sessionUpdate":"plan","n":%d}' % (head + each) for each in range(1, 4)]
            session.append([Draft("plan", text) for text in texts])
            if head % 2:  # now and then the disk has it before anybody follows
                await session.durable(session.head)
            await follower.reached(session.head)
            await told.durable(told.head)
            sys.stdout.write(f"{told.head}\n")
            sys.stdout.flush()


asyncio.run(main())
