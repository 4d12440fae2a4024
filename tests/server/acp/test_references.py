"""A message is stored once: what a client is told of a session is a reference, and the line is made when it is read."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.sessions.session_client import SessionClient, open_session_client, script
from tests.store.backends import make_backend
from tests.store.old_log import take_back

from legation.clock import SystemClock
from legation.server.acp.log import MESSAGE, ConnectionLog, ConnectionSource, SessionFollower
from legation.server.routes.streams import page_of_events
from legation.server.streaming import sse
from legation.server.streaming.hub import Hub
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire import event_types
from legation.wire.event_types import ExtensionMessage, SessionReset
from legation.wire.events import Draft, Event, params_draft, span_of

BOUND = 30.0  # seconds until what does not come is a failure
SAID = "prompts before this one"  # what an agent says to `recall`, and nobody else


# Over HTTP.


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        yield made


async def rpc(talk: SessionClient, method: str, client: str = "client", **params: object) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await talk.call("POST", f"/v1/acp/{client}?agent=rehearsal", message)
    assert "result" in answer.json(), answer.text
    return answer.json()["result"]


async def opened(talk: SessionClient, client: str = "client") -> str:
    await rpc(talk, "initialize", client, protocolVersion=1)
    made = await rpc(talk, "session/new", client, cwd=str(talk.work), mcpServers=[])
    return str(made["sessionId"])


async def played(talk: SessionClient, session: str, *steps: str, client: str = "client") -> None:
    said = [{"type": "text", "text": script(*steps)}]
    await rpc(talk, "session/prompt", client, sessionId=session, prompt=said)


async def lines(talk: SessionClient, stream: str = "acp:client", query: str = "") -> list[Any]:
    answer = await talk.call("GET", f"/v1/streams/{stream}/events?limit=1000{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]  # type: ignore[no-any-return]


def stored(place: Path) -> dict[str, bytes]:
    """What the disk has of each stream."""
    found: dict[str, bytes] = {}
    with closing(sqlite3.connect(place / "data" / "events.db")) as connection:
        query = "select name, body from page join stream on stream.id = page.stream order by page.id"
        for name, body in connection.execute(query):
            found[name] = found.get(name, b"") + body
    return found


@pytest.mark.heavy
async def test_an_update_is_on_the_disk_once(talk: SessionClient, tmp_path: Path) -> None:
    session = await opened(talk)
    await played(talk, session, "recall", "flood 500 200")
    told = await lines(talk)
    assert json.dumps(told).count(SAID) == 1
    assert json.dumps(told).count("........") >= 500
    pages = stored(tmp_path)
    assert b"".join(pages.values()).count(SAID.encode()) == 1
    assert b"........" not in pages["acp:client"]
    # One that is alone is a line of some hundred bytes; those that come together are one.
    assert len(pages["acp:client"]) < len(pages[session]) / 2


@pytest.mark.heavy
async def test_the_line_of_a_reference_is_whole_and_has_the_bytes_of_the_log(
    talk: SessionClient, tmp_path: Path
) -> None:
    session = await opened(talk)
    await played(talk, session, "unknown-update", "say ünïcödé", "think so", "big 2000000")
    stream = await talk.rig.services.log.stream(session)
    updates = [
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":%b}}'
        % (session.encode(), event.payload)
        async for event in stream.subscribe(follow=False)
        if event.type in ("agent-message-chunk", "agent-thought-chunk", "unrecognized-update")
    ]
    assert len(updates) >= 4
    for path in ("/v1/streams/acp:client/events?limit=1000", "/v1/streams/acp:client/events?generation=all"):
        body = (await talk.call("GET", path)).content
        for line in updates:
            assert b'"type":"acp-message","raw":%b' % line in body
    assert b"acp-ref" not in body
    assert not any(line in stored(tmp_path)["acp:client"] for line in updates)


@pytest.mark.heavy
async def test_of_a_session_that_is_deleted_nothing_is_told_and_the_numbers_stay(
    talk: SessionClient, tmp_path: Path
) -> None:
    session = await opened(talk)
    await played(talk, session, "recall")
    kept = await opened(talk)
    await played(talk, kept, "say kept")
    before = await lines(talk)
    of_it = [each["seq"] for each in before if SAID in json.dumps(each["raw"])]
    assert of_it
    assert (await talk.call("DELETE", f"/v1/sessions/{session}")).status_code == 204
    after = await lines(talk)
    assert SAID not in json.dumps(after)
    gone = {each["seq"] for each in before} - {each["seq"] for each in after}
    assert set(of_it) <= gone
    by_number = {each["seq"]: each for each in after}
    assert all(by_number[each["seq"]] == each for each in before if each["seq"] not in gone)
    assert b"".join(stored(tmp_path).values()).count(SAID.encode()) == 0
    # A page of what is gone is no end: what stands behind it follows.
    first = min(gone)
    page = (await talk.call("GET", f"/v1/streams/acp:client/events?limit=1&after={first - 1}")).json()
    assert page["items"][0]["seq"] == min(seq for seq in by_number if seq > first)


@pytest.mark.heavy
async def test_what_was_told_of_an_earlier_generation_is_shown_for_ever(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            session = await opened(talk)
            await played(talk, session, "recall")
            before = await lines(talk)
            stream = await talk.rig.services.log.stream(session)
            await stream.replace([event_types.draft(SessionReset(reason="loaded"))])
            assert await lines(talk) == before
        async with open_session_client(tmp_path, request) as talk:
            assert await lines(talk) == before
            assert json.dumps(before).count(SAID) == 1
    assert b"".join(stored(tmp_path).values()).count(SAID.encode()) == 1


@pytest.mark.heavy
async def test_what_a_connection_that_was_deleted_was_told_is_an_earlier_generation(
    talk: SessionClient,
) -> None:
    session = await opened(talk)
    await played(talk, session, "recall")
    before = await lines(talk)
    assert (await talk.call("DELETE", "/v1/acp/client")).status_code == 204
    await opened(talk)
    assert SAID not in json.dumps(await lines(talk))
    assert await lines(talk, query="&generation=1") == before
    assert (await lines(talk, query="&generation=all"))[: len(before)] == before


_OLD_UPDATE = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"o\\u006cd"}}'
OLD = [  # as every Legation before references wrote it
    b'{"seq":1,"at":1794774823123,"type":"acp-message","raw":{"jsonrpc":"2.0","id":1,"result":{}}}',
    b'{"seq":2,"at":1794774823124,"type":"acp-message","raw":{"jsonrpc":"2.0","method":"session/update",'
    + b'"params":{"sessionId":"ses_old","update":%b}}}' % _OLD_UPDATE,
]
OLD_META = (
    b'{"acp":1,"agent":"rehearsal","createdAtMs":1794774823000,"since":0,"clientCapabilities":{},"taken":[]}'
)


@pytest.mark.heavy
async def test_entries_of_a_legation_that_stored_every_line_are_read_as_they_are(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nothing of them is rewritten; what is told from now on are references, behind them."""
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request):
            pass
        body = b"".join([line + b"\n" for line in OLD])
        with closing(sqlite3.connect(tmp_path / "data" / "events.db")) as connection, connection:
            insert = (
                "insert into stream (name, workspace, state, first_seq, head, meta) values (?, ?, ?, ?, ?, ?)"
            )
            row = connection.execute(insert, ("acp:client", "local", "open", 1, 2, OLD_META))
            connection.execute(
                "insert into page (stream, last_seq, body) values (?, ?, ?)", (row.lastrowid, 2, body)
            )
        take_back(tmp_path / "data" / "events.db", 3)
        async with open_session_client(tmp_path, request) as talk:
            text = (await talk.call("GET", "/v1/streams/acp:client/events")).content
            assert b",".join(OLD) in text
            session = await opened(talk)
            await played(talk, session, "recall")
            told = await lines(talk)
            assert [each["seq"] for each in told] == list(range(1, len(told) + 1))
            assert SAID in json.dumps(told)
    pages = stored(tmp_path)
    assert pages["acp:client"].startswith(body)
    assert SAID.encode() not in pages["acp:client"]


# Below it.


def update(text: str) -> Draft:
    said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return params_draft("theirs", json.dumps(said).encode(), type_="agent-message-chunk")


def line_of(session: str, draft: Draft) -> bytes:
    head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b"' % session.encode()
    return b'%b,"update":%b}}' % (head, draft.payload)


class Rig:
    """Sessions, and a client that follows them."""

    def __init__(self, log: EventLog, told: Stream) -> None:
        self.log = log
        self.outlet = ConnectionLog(log, told)
        self.followers: dict[str, SessionFollower] = {}

    async def session(self, name: str) -> Stream:
        stream = await self.log.stream(name)
        if name not in self.followers:
            follower = SessionFollower(name, stream, self.outlet, lambda *_: None, lambda _: None)
            self.followers[name] = follower
            follower.seq = stream.visible
            follower.start()
        return stream

    async def say(self, name: str, *texts: str) -> list[bytes]:
        stream = await self.session(name)
        drafts = [update(text) for text in texts]
        await stream.append(drafts)
        await self.told(name)
        return [line_of(name, draft) for draft in drafts]

    async def told(self, name: str) -> None:
        await self.followers[name].reached(self.followers[name].stream.head)
        await self.outlet.stream.durable(self.outlet.stream.head)

    async def stop(self) -> None:
        for follower in self.followers.values():
            await follower.stop()


async def rig(log: EventLog) -> Rig:
    return Rig(log, await log.stream("acp:client"))


async def read(source: ConnectionSource, after: int = 0) -> list[Event]:
    """All there is above that number, in as many steps as it takes."""
    found: list[Event] = []
    while True:
        more = source.since(after)
        if more is None:
            more = await source.read_older(after)
        if not more:
            return found
        found += more
        after = more[-1].seq


async def test_a_long_update_is_whole_from_memory_and_from_parts_of_it(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        made = await rig(log)
        stream = await made.session("ses_1")
        raw = b'{"sessionId":"theirs","update":{"sessionUpdate":"plan","x":"%b"}}' % (b"x" * 3_000_000)
        inner = raw[30:-1]
        draft = Draft("plan", raw, b"", span_of(raw, inner), b'{"sessionUpdate":"plan"}')
        await stream.append([await stream.keep(draft)])
        await made.told("ses_1")
        source = ConnectionSource(log, made.outlet.stream)
        [line] = source.since(0) or []
        assert line.raw == line_of("ses_1", draft)
        assert sse.frames([line]).data.count(b"\n") == 3
        await made.stop()
        del source, line, stream, made
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        [line] = await read(ConnectionSource(log, await log.stream("acp:client")))
        assert (line.seq, line.type, line.raw) == (1, MESSAGE, line_of("ses_1", draft))


async def test_what_a_vendor_says_is_a_reference_too_in_its_place(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        made = await rig(log)
        stream = await made.session("ses_1")
        told = ExtensionMessage(method="_x/told", params={"sessionId": "theirs", "a": 1})
        asked = ExtensionMessage(method="_x/asked", params={}, request=True)
        await stream.append([update("a"), event_types.draft(told), event_types.draft(asked), update("b")])
        await made.told("ses_1")
        found = await read(ConnectionSource(log, made.outlet.stream))
        notification = b'{"jsonrpc":"2.0","method":"_x/told","params":{"sessionId":"ses_1","a":1}}'
        assert [each.raw for each in found] == [
            line_of("ses_1", update("a")),
            notification,
            line_of("ses_1", update("b")),
        ]
        assert [each.type for each in await log.read("acp:client", 0)] == ["acp-ref"] * 3
        await made.stop()


async def test_what_a_reader_was_shown_is_not_in_a_cache_once_its_session_is_deleted(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        made = await rig(log)
        await made.say("ses_1", "gone")
        last = await made.say("ses_2", "kept")

        async def find(name: str, workspace: str) -> ConnectionSource | None:
            stream = await log.find(name, workspace)
            return None if stream is None else ConnectionSource(log, stream)

        hub = Hub(log, SystemClock(), finders=[find])
        with await hub.reader("acp:client", "local", 0) as first:
            shown = await first.next()
            assert re.findall(rb"(?m)^id: (\d+)$", shown) == [b"1", b"2"]
            await (await log.stream("ses_1")).delete()
            with await hub.reader("acp:client", "local", 0) as second:
                shown = await second.next()
                assert b"gone" not in shown
                assert re.findall(rb"(?m)^id: (\d+)$", shown) == [b"2"]
                assert last[0] in shown
        hub.close()
        await made.stop()


async def test_what_is_deleted_while_it_is_read_is_not_shown(tmp_path: Path) -> None:
    """Nor what another reader makes of what was read before."""
    path = tmp_path / "log.db"
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(path)) as log:
        made = await rig(log)
        await made.say("ses_1", "gone", "gone")
        [kept] = await made.say("ses_2", "kept")
        await made.stop()
    reads, go = threading.Event(), threading.Event()

    class Slow(SqliteBackend):
        def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
            found = super().read(stream, after, up_to_bytes)
            if stream == "ses_1":
                reads.set()
                assert go.wait(BOUND)
            return found

    async with asyncio.timeout(BOUND), EventLog(Slow(path)) as log:
        source = ConnectionSource(log, await log.stream("acp:client"))
        first = asyncio.create_task(source.read_older(0))
        assert await asyncio.to_thread(reads.wait, BOUND)
        await (await log.stream("ses_1")).delete()
        second = asyncio.create_task(source.read_older(1))
        await asyncio.sleep(0)
        go.set()
        for found in (await first, await second, await source.read_older(0)):
            assert [each.raw for each in found] == [kept]


async def test_a_page_of_nothing_but_what_is_gone_is_the_last(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND), EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        made = await rig(log)
        await made.say("ses_1", "a", "b")
        source = ConnectionSource(log, made.outlet.stream)
        await (await log.stream("ses_1")).delete()
        page = await page_of_events(source, 0, 10)
        assert (page.items, page.next) == ([], None)
        await made.stop()


class CountingBackend(SqliteBackend):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[str] = []

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        self.reads.append(stream)
        return super().read(stream, after, up_to_bytes)


async def test_one_who_is_far_behind_reads_each_session_once_however_they_take_turns(tmp_path: Path) -> None:
    backend, expected = CountingBackend(tmp_path / "log.db"), list[bytes]()
    async with asyncio.timeout(BOUND), EventLog(backend) as log:
        made = await rig(log)
        for number in range(60):
            for name in ("ses_1", "ses_2", "ses_3"):
                expected += await made.say(name, f"{name} {number}")
        await made.stop()
    backend = CountingBackend(tmp_path / "log.db")
    async with asyncio.timeout(BOUND), EventLog(backend) as log:
        source = ConnectionSource(log, await log.stream("acp:client"))
        assert [each.raw for each in await read(source)] == expected
        assert sorted(backend.reads) == ["acp:client"] * backend.reads.count("acp:client") + [
            "ses_1",
            "ses_2",
            "ses_3",
        ]
        assert backend.reads.count("acp:client") <= 2


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_kill_at_any_commit_leaves_no_reference_without_its_event(tmp_path: Path) -> None:
    """What was acknowledged is told, and a reference stands for what the session has, in its order."""

    async def check(acknowledged: int) -> None:
        async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
            session, told = await log.stream("ses_1"), await log.stream("acp:editor")
            updates = [
                line_of("ses_1", Draft("plan", each.raw)) async for each in session.subscribe(follow=False)
            ]
            entries = [each async for each in told.subscribe(follow=False)]
            found = await read(ConnectionSource(log, told))
            assert {each.type for each in entries} <= {"acp-ref"}
            assert [each.seq for each in found] == list(range(1, len(entries) + 1))
            assert len(found) >= acknowledged
            numbers = [int(each.raw.rpartition(b",")[2][:-1]) for each in entries]
            assert numbers == sorted(set(numbers))
            assert [each.raw for each in found] == [updates[number - 1] for number in numbers]

    for number in range(1, 8):
        for when in ("before", "after"):  # each goes on with what the one before it has left
            writer = subprocess.run(
                [sys.executable, "-m", "tests.server.acp.follower_to_kill", str(tmp_path), str(number), when],
                stdout=subprocess.PIPE,
                env={"PATH": os.environ["PATH"]},
                cwd=Path(__file__).parents[3],
                check=False,
                timeout=120,
            )
            assert writer.returncode == -signal.SIGKILL
            asyncio.run(check(max(map(int, writer.stdout.split()), default=0)))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("line"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("reset"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("again"), st.just(0), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 60), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=40, deadline=None)
@given(steps=steps)
@pytest.mark.heavy
def test_whoever_reads_gets_the_lines_of_what_there_is_under_their_numbers(
    kind: str, steps: Sequence[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sessions begin anew and are deleted, the log is opened again, and memory and reads are short."""
    folder = tmp_path_factory.mktemp("log")

    async def run() -> None:
        expected: list[tuple[str, bytes]] = []  # of each number: the session, and the line
        names, gone = ["ses_0", "ses_1", "ses_2"], set[str]()
        log = await EventLog(make_backend(kind, folder)).__aenter__()
        made = await rig(log)
        source = ConnectionSource(log, made.outlet.stream)

        async def check(after: int) -> None:
            wanted = [
                (seq, line)
                for seq, (name, line) in enumerate(expected, 1)
                if seq > after and name not in gone
            ]
            for each in (source, ConnectionSource(log, made.outlet.stream)):
                assert [(event.seq, event.raw) for event in await read(each, after)] == wanted

        for act, which, count in steps:
            name = names[which % 3]
            if act == "say":
                texts = [f"{name} {len(expected) + number}" for number in range(count)]
                expected += [(name, line) for line in await made.say(name, *texts)]
            elif act == "line":
                said = [b'{"n":%d}' % (len(expected) + number) for number in range(count)]
                await made.outlet.stream.append([Draft(MESSAGE, line) for line in said])
                expected += [("", line) for line in said]
            elif act == "reset":
                stream = await made.session(name)
                await made.followers.pop(name).stop()  # the next one begins behind it
                await stream.replace([event_types.draft(SessionReset(reason="loaded"))])
            elif act == "delete":
                stream = await made.session(name)
                await made.followers.pop(name).stop()
                await stream.delete()
                gone.add(name)
                names[which % 3] = f"{name}x"
            elif act == "again" and kind != "memory":
                await made.stop()
                await log.__aexit__(None, None, None)
                log = await EventLog(make_backend(kind, folder)).__aenter__()
                made = await rig(log)
                source = ConnectionSource(log, made.outlet.stream)
            else:
                await check(min(which, len(expected)))
        await check(0)
        await made.stop()
        await log.__aexit__(None, None, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legation.store.stream.TAIL_EVENTS", 8)
        patch.setattr("legation.store.log.READ_BYTES", 400)
        patch.setattr("legation.server.acp.log.READ_BYTES", 400)
        patch.setattr("legation.server.acp.log.CHUNK_BYTES", 600)
        patch.setattr("legation.server.acp.log.KEPT_BYTES", 800)
        patch.setattr("legation.server.acp.log.KEPT_ENTRIES", 5)
        patch.setattr("legation.server.acp.log.MOST_SESSIONS", 2)
        asyncio.run(run())
