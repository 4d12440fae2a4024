"""The snapshot that a host offers at every notification."""

import asyncio
from pathlib import Path

import pytest
from tests.host.rig import events, play, rig
from tests.wire.naive_snapshot import assert_same, naive_of

pytestmark = pytest.mark.heavy


async def test_each_notification_comes_with_what_was_said_up_to_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "plan look; fix", "say one", "run true", "think hm", "say two", "title T")
        told = await events(session)
        seen = 0
        async with asyncio.timeout(60):
            async for event, snapshot in made.host.snapshots(session.id, from_seq=2):
                assert event.seq == snapshot.seq == seen + 3
                assert assert_same(snapshot.write(), naive_of(told[: event.seq])) == []
                seen += 1
                if event.seq == told[-1].seq:
                    break
        assert seen == len(told) - 2
