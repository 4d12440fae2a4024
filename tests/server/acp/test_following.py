"""What a client is told is stored behind what it comes from, in the same commit where that can be."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from legation.server.acp.log import ConnectionLog, ConnectionSource, SessionFollower, stream_name
from legation.server.acp.messages import LONG, Updates
from legation.store.codec import Op
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire import event_types
from legation.wire.event_types import SessionReset, SessionStatus
from legation.wire.events import Draft, span_of

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
        follower = SessionFollower(
            "ses_1", session, ConnectionLog(log, told), lambda *_: None, lambda _: None
        )
        follower.start()
        backend.commit = held  # type: ignore[method-assign]
        session.append([UPDATE])
        session.append([UPDATE])
        while told.head < 3:
            await asyncio.sleep(0)
        assert (session.visible, told.visible) == (0, 1)  # nobody sees any of it before the disk has it
        go.set()
        await told.durable(3)
        assert [event.raw for event in ConnectionSource(log, told).since(1) or ()] == [
            b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":%b}}'
            % UPDATE.payload
        ] * 2
        assert len(groups) <= 2
        await follower.stop()


async def test_the_writer_is_given_an_update_and_its_reference_at_once(tmp_path: Path) -> None:
    """Else a disk that has nothing else to do begins with the one, and the other is a commit more."""
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, asyncio.timeout(BOUND):
        session, told = await log.stream("ses_1"), await log.stream(stream_name("editor"))
        await told.append([Draft("acp-opened", b"{}")])
        follower = SessionFollower(
            "ses_1", session, ConnectionLog(log, told), lambda *_: None, lambda _: None
        )
        follower.start()
        await asyncio.sleep(0)
        assert log._writer is not None
        turn, given, put = 0, list[tuple[int, str]](), log._writer.queue.put

        class Recorded:
            def put(self, op: Op) -> None:
                given.append((turn, op.stream))
                put(op)

            def __getattr__(self, name: str) -> object:
                return getattr(queue, name)

        queue = log._writer.queue
        log._writer.queue = Recorded()  # type: ignore[assignment]
        session.append([UPDATE])
        while told.head < 2 or len(given) < 2:
            turn += 1
            await asyncio.sleep(0)
        log._writer.queue = queue
        assert [stream for _, stream in given] == ["ses_1", "acp:editor"]
        assert len({turn for turn, _ in given}) == 1
        await follower.stop()


async def test_it_is_over_when_the_session_has_said_so_and_is_closed(tmp_path: Path) -> None:
    """Not before, for that may fail; and not for one that is closed while it is being loaded again."""
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, asyncio.timeout(BOUND):
        session, told = await log.stream("ses_1"), await log.stream(stream_name("editor"))
        ended = list[SessionFollower]()
        follower = SessionFollower("ses_1", session, ConnectionLog(log, told), lambda *_: None, ended.append)
        follower.start()
        await session.append([event_types.draft(SessionStatus(status="closed"))])
        await follower.reached(1)
        await session.append(
            [event_types.draft(SessionStatus(status="active", reason="it could not be closed"))]
        )
        await session.close()
        late = SessionFollower("ses_1", session, ConnectionLog(log, told), lambda *_: None, ended.append)
        await late.skip()
        late.start()
        await session.replace([event_types.draft(SessionReset(reason="loaded"))])
        for each in (follower, late):
            await each.reached(session.head)
        assert (ended, follower.seq, late.seq) == ([], 3, 3)
        active, closed = (event_types.draft(SessionStatus(status=each)) for each in ("active", "closed"))
        session.append([active, UPDATE, closed])
        await session.close()
        while len(ended) < 2:
            await asyncio.sleep(0)
        assert told.head == 2  # each has told the update


async def test_it_is_over_when_the_session_is_deleted(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, asyncio.timeout(BOUND):
        session, told = await log.stream("ses_1"), await log.stream(stream_name("editor"))
        ended = asyncio.Event()
        follower = SessionFollower(
            "ses_1", session, ConnectionLog(log, told), lambda *_: None, lambda _: ended.set()
        )
        follower.start()
        await session.delete()
        await ended.wait()


@pytest.mark.parametrize(
    ("params", "beside"),
    [
        (b'{"sessionId":"theirs","update":%b}', {}),
        (b'{"_meta":{"a":1},"sessionId":"theirs","update":%b}', {"_meta": {"a": 1}}),
        (
            b'{"sessionId":"theirs","update":%b,"_meta":{"a":1},"vendor":null}',
            {"_meta": {"a": 1}, "vendor": None},
        ),
        (b'{"_meta":{"copy":%b},"update":%b,"sessionId":"theirs","x":0}', None),
        (b'{"sessionId":"theirs","update":%b,"sessionId":"other"}', {}),
        (b'{"sessionId":"theirs","update":%b,"session\\u0049d":"other"}', {}),
        (b'{"sessionId":"theirs","update":%b,"half":"\\ud800"}', {"half": "\ud800"}),
    ],
)
def test_a_client_is_told_what_stands_beside_an_update(
    params: bytes, beside: dict[str, object] | None
) -> None:
    """With our name of the session, and once: no agent can have an update taken for another session's."""
    update = b'{"sessionUpdate":"agent_message_chunk"}'
    raw = params.replace(b"%b", update)
    lines, draft = Updates("ses_1"), Draft("agent-message-chunk", raw, b"", span_of(raw, update))
    beside = {"_meta": {"copy": json.loads(update)}, "x": 0} if beside is None else beside
    for line in (lines.line(draft), lines.line(draft)):
        assert line.count(b"essionId") + line.count(b"0049d") == 1
        told = json.loads(line)
        assert told["params"] == {"sessionId": "ses_1", "update": json.loads(update), **beside}


def test_an_update_of_an_old_row_is_told_as_it_was() -> None:
    assert json.loads(Updates("ses_1").line(UPDATE))["params"] == {
        "sessionId": "ses_1",
        "update": {"sessionUpdate": "agent_message_chunk"},
    }


class Watched(bytes):
    """One that knows how often a long part of it was copied."""

    copied = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        if isinstance(found, bytes):
            self.copied += len(found) > LONG
        return found


def test_the_line_of_a_long_update_is_one_copy_of_it() -> None:
    """Each takes a while, in which nobody else has a turn."""
    update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % (b"x" * LONG)
    raw = Watched(b'{"sessionId":"theirs","update":%b,"_meta":{"a":1}}' % update)
    draft = Draft("agent-message-chunk", raw, b"", span_of(raw, update))
    told = json.loads(Updates("ses_1").line(draft))
    assert told["params"] == {"sessionId": "ses_1", "_meta": {"a": 1}, "update": json.loads(update)}
    assert raw.copied == 0
