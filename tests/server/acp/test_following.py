"""What a client is told is stored behind what it comes from, in the same commit where that can be."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from legation.server.acp.following import Follower
from legation.server.acp.outlet import Outlet, stream_name
from legation.store.backend import Op
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft

BOUND = 20.0  # seconds until what does not come is a failure
UPDATE = Draft("agent-message-chunk", b'{"sessionUpdate":"agent_message_chunk"}')


async def test_an_update_and_its_message_need_one_commit(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "log.db")
    go, groups, commit = threading.Event(), list[Sequence[Op]](), backend.commit

    def held(ops: Sequence[Op]) -> None:
        assert go.wait(BOUND)
        commit(ops)
        groups.append(ops)

    async with EventLog(backend) as log, asyncio.timeout(BOUND):
        session, told = await log.stream("ses_1"), await log.stream(stream_name("editor"))
        await told.append([Draft("acp-opened", b"{}")])
        follower = Follower("ses_1", session, Outlet(log, told), lambda *_: None)
        follower.start()
        backend.commit = held  # type: ignore[method-assign]
        session.append([UPDATE])
        session.append([UPDATE])
        while told.head < 3:
            await asyncio.sleep(0)
        assert (session.visible, told.visible) == (0, 1)  # nobody sees any of it before the disk has it
        go.set()
        await told.durable(3)
        assert [event.raw for event in told.since(1) or ()] == [
            b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":%b}}'
            % UPDATE.raw
        ] * 2
        assert len(groups) <= 2
        await follower.stop()
