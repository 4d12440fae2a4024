"""Lines of an agent that are too much for the loop: read elsewhere, stored in parts, and given back whole."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.host.rig import Rig, events, go, of_type, rig

from legation.agents import messages
from legation.host.session import Session
from legation.host.turn import KEPT_BYTES
from legation.server.streaming import sse
from legation.store.log import SHARE_LIMIT, EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire import jsontext
from legation.wire.acp import updates
from legation.wire.action import Ask, Decision
from legation.wire.events import Draft, Event
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import Metadata, SessionFacts

pytestmark = pytest.mark.heavy

MIB = 1024 * 1024
FACTS = SessionFacts("s", "agent", None, Metadata("agent"))
LARGEST = 5 * MIB  # of what these agents write
SMALL_OBJECTS = """
small = b"[" + b",".join([b'{"a":1}'] * (%d // 8)) + b"]"
def told(fields):
    raw(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","_meta":{"x":1},"update":{' + fields + b'}}}\\n')
def call(number, value):
    told(b'"sessionUpdate":"tool_call","toolCallId":"t%%d","title":"t","rawInput":' %% number + value)
"""
BEGIN = "hello(); session(); prompt = prompted()\n" + SMALL_OBJECTS % LARGEST
END = "\ndone(prompt); stay()\n"


class Decoded:
    """How much was decoded at once in this process, by what an agent's text comes to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._patch = monkeypatch
        for name in ("read", "read_leniently"):
            self._watch(jsontext, name)
        for name in ("_decode_message", "_decode_update_line", "_decode_params", "_decode_error"):
            self._watch(messages, name)
        whole = updates._decoder
        monkeypatch.setattr(
            updates, "_decoder", type("Watched", (), {"decode": self._watched(whole.decode)})()
        )

    def _watch(self, module: Any, name: str) -> None:
        if hasattr(module, name):
            self._patch.setattr(module, name, self._watched(getattr(module, name)))

    def _watched(self, decode: Callable[[bytes], Any]) -> Any:
        def watched(*given: Any) -> Any:
            self.sizes.append(len(given[-1]))
            return decode(given[-1])

        return watched


async def whole_turn(made: Rig, source: str) -> Session:
    session = await made.script(BEGIN + source + END)
    await go(session)
    return session


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("call(1, small)", id="a tool call of small objects"),
        pytest.param("call(1, b'\"' + b'x' * len(small) + b'\"')", id="a tool call of a long text"),
        pytest.param("call(1, b'[' * 100000)", id="a text that is too deep"),
        pytest.param("raw(b'[' * 2000000 + b'\\n')", id="no message"),
        pytest.param("raw(b'{\"id\":77,\"result\":' + small + b'}\\n')", id="an answer to nothing"),
        pytest.param(
            'raw(b\'{"id":"r","method":"no/such","params":\' + small + b\'}\\n\'); answer(\'r\')',
            id="a request",
        ),
        pytest.param('raw(b\'{"method":"no/such","params":\' + small + b\'}\\n\')', id="a notification"),
        pytest.param(
            'raw(b\'{"method":"_vendor/news","params":\' + small + b\'}\\n\')',
            id="a notification of a vendor",
        ),
        pytest.param("raw(b'\\xff' * 1000000 + b'\\n')", id="no text"),
    ],
)
async def test_nothing_long_is_decoded_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    async with rig(tmp_path) as made:
        decoded = Decoded(monkeypatch)
        session = await whole_turn(made, f"{said}; update('and on')")
        (last,) = await of_type(session, "agent-message-chunk")
        assert b"and on" in last.raw
    assert max(decoded.sizes) <= MIB


async def test_an_agent_is_read_no_further_until_much_that_it_said_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of nearly a mebibyte are read where all others are; neighbours waited for ten of them in a row."""
    backend, stored = SqliteBackend(tmp_path / "events.db"), threading.Event()
    async with rig(tmp_path, backend=backend) as made:
        session = await whole_turn(made, "update('a')")
        commit = backend.commit
        monkeypatch.setattr(backend, "commit", lambda ops: stored.wait() and commit(ops))
        session.stream.append([Draft("plan", b'{"x":"%b"}' % (b"y" * SHARE_LIMIT))])
        room = asyncio.create_task(session.room())
        for _ in range(20):
            await asyncio.sleep(0)
        waits = not room.done()
        stored.set()
        await room
        assert waits


async def test_a_long_update_comes_back_byte_for_byte_from_memory_and_from_the_disk(tmp_path: Path) -> None:
    """With what stands beside the update, and in its place among the others."""
    small = b"[" + b",".join([b'{"a":1}'] * (LARGEST // 8)) + b"]"
    fields = b'"sessionUpdate":"tool_call","toolCallId":"t1","title":"t","rawInput":' + small
    params = b'{"sessionId":"s1","_meta":{"x":1},"update":{%b}}' % fields
    store = tmp_path / "events.db"
    async with rig(tmp_path, backend=SqliteBackend(store)) as made:
        session = await whole_turn(made, "update('before'); call(1, small); update('after')")
        live = await of_type(session, "agent-message-chunk", "tool-call")
        assert [event.type for event in live] == ["agent-message-chunk", "tool-call", "agent-message-chunk"]
        assert live[1].raw == params
        name = session.id
    async with EventLog(SqliteBackend(store)) as log:
        stream = await log.stream(name)
        stored = [event async for event in stream.subscribe(follow=False) if event.type == "tool-call"]
        assert [event.raw for event in stored] == [params]
        assert params in sse.frames(stored).data
        assert _longest(store, "page") < MIB
        await stream.delete()
    with closing(sqlite3.connect(store)) as database, database:
        assert database.execute("select count(*) from part").fetchone() == (0,)


def _longest(store: Path, table: str) -> int:
    with closing(sqlite3.connect(store)) as database, database:
        (found,) = database.execute(f"select max(length(body)) from {table}").fetchone()
    return int(found)


async def test_others_commits_come_between_the_parts_of_a_long_text(tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    async with rig(tmp_path, backend=SqliteBackend(store)) as made:
        await whole_turn(made, "call(1, small)")
    assert _longest(store, "part") <= MIB


async def test_a_long_text_is_whole_for_those_who_read_the_projection(tmp_path: Path) -> None:
    text = "é\\n" * (MIB // 2)
    source = f"update('before'); update('é\\\\n' * {MIB // 2}); update('after')"
    async with rig(tmp_path) as made:
        session = await whole_turn(made, source)
        projector = Projector(FACTS)
        rows = [
            json.loads(each.encode()) for event in await events(session) for each in projector.feed(event)
        ]
    deltas = [row["data"]["delta"] for row in rows if row["type"] == "item.delta"]
    assert "".join(deltas) == f"before{text}after"
    ended = [row["data"]["item"]["content"] for row in rows if row["type"] == "item.completed"]
    assert "".join(part["text"] for content in ended for part in content if part["type"] == "text").endswith(
        f"before{text}after"
    )


async def test_a_permission_that_nobody_could_be_shown_is_refused_with_a_word(tmp_path: Path) -> None:
    source = """
raw(b'{"id":9,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"c","rawInput":' + small
    + b'},"options":' + json.dumps(OPTIONS).encode() + b'}}\\n')
update(json.dumps(answer(9)))
"""
    async with rig(tmp_path) as made:
        session = await whole_turn(made, source)
        (said,) = await of_type(session, "agent-message-chunk")
        assert "cancelled" in json.loads(said.payload)["content"]["text"]
        assert await of_type(session, "permission-asked") == []
        assert "agent/unreadable-permission" in [each.code for each in made.reported]


async def test_a_long_file_is_written_as_it_was(tmp_path: Path) -> None:
    source = """
send(id=3, method="fs/write_text_file", params={"sessionId": "s1", "path": %r, "content": "x" * 3000000})
update(json.dumps(answer(3)))
"""
    async with rig(tmp_path) as made:
        path = made.work / "long.txt"
        session = await whole_turn(made, source % str(path))
        (said,) = await of_type(session, "agent-message-chunk")
        assert "error" not in json.loads(said.payload)["content"]["text"]
        assert path.stat().st_size == 3_000_000


async def test_a_long_answer_is_taken(tmp_path: Path) -> None:
    source = (
        'raw(b\'{"id":%d,"result":{"stopReason":"end_turn","_meta":\' % prompt + small + b\'}}\\n\'); stay()'
    )
    async with rig(tmp_path) as made:
        session = await made.script(BEGIN + source)
        assert (await go(session)).stop_reason == "end_turn"


async def test_a_flood_of_answers_to_nothing_is_few_events_with_a_count(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await whole_turn(made, "for n in range(5000): send(id=90000 + n, result={})")
        found = await of_type(session, "diagnostic")
        assert len(found) < 50
        assert b"so far" in found[-1].raw


async def test_a_flood_on_standard_error_is_few_diagnostics(tmp_path: Path) -> None:
    """Each write is read by itself if it can be: `answer` waits between them."""
    source = """
for n in range(300):
    os.write(2, b"x\\n"); send(id=n, method="no/such", params={}); answer(n)
"""
    seen: list[Event] = []
    async with rig(tmp_path) as made:
        made.host.subscribe(None, 0, seen.append)
        await whole_turn(made, source)
    said = [event for event in seen if b'"agent/stderr"' in event.raw]
    assert 0 < len(said) < 200


ANNOUNCED = """
def announce(value, status="pending", kind="execute"):
    told(b'"sessionUpdate":"tool_call","toolCallId":"t1","title":"t","kind":"%b","status":"%b","rawInput":%b'
        % (kind.encode(), status.encode(), value))
def ask(**call):
    permission("p", toolCallId="t1", **call); return answer("p")
def heard(answer):
    update(json.dumps(answer["result"]))
long = b'{"command":"echo ' + b"a" * 1200000 + b'; rm -rf /"}'
many = b'{' + b",".join([b'"a%d":1' % n for n in range(300)]) + b',"cmd":"rm -rf /","x":"' + b"a" * 1200000 + b'"}'
"""


class Noted:
    """Approves all, and remembers it."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    async def decide(self, ask: Ask) -> Decision:
        self.asks.append(ask)
        return Decision("approved", "test", "yes")


@pytest.mark.parametrize("value", ["long", "many"], ids=["a long command", "a command among many arguments"])
async def test_nobody_is_asked_about_a_part_of_a_call_that_was_told_in_a_long_line(
    tmp_path: Path, value: str
) -> None:
    """The permission itself is short, and names no more than the call."""
    approver = Noted()
    async with rig(tmp_path, approver=approver) as made:
        session = await whole_turn(made, ANNOUNCED + f"announce({value}); heard(ask())")
        (last,) = await of_type(session, "agent-message-chunk")
        assert not approver.asks
        assert b"cancelled" in last.raw
        (told,) = [each for each in made.reported if each.code == "agent/unreadable-permission"]
        assert "raw_input" in told.message


async def test_a_permission_that_says_all_of_it_again_is_asked_about(tmp_path: Path) -> None:
    approver = Noted()
    async with rig(tmp_path, approver=approver) as made:
        await whole_turn(made, ANNOUNCED + 'announce(long); heard(ask(rawInput={"command": "ls"}))')
    assert [ask.action.command for ask in approver.asks] == ["ls"]


async def test_a_call_whose_output_alone_is_long_is_judged_by_all_of_its_arguments(tmp_path: Path) -> None:
    approver = Noted()
    async with rig(tmp_path, approver=approver) as made:
        source = """
announce(b'{"command":"ls"}'); heard(ask())
told(b'"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","rawOutput":"' + b"a" * 1200000 + b'"')
"""
        session = await whole_turn(made, ANNOUNCED + source)
        assert not await of_type(session, "unasked-effect")
    assert [ask.action.command for ask in approver.asks] == ["ls"]


async def test_what_was_done_unasked_in_a_long_line_is_unclear(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=Noted()) as made:
        session = await whole_turn(made, ANNOUNCED + 'announce(many, "completed")')
        (found,) = await of_type(session, "unasked-effect")
        assert json.loads(found.raw)["action"]["unclear"] == ["raw_input"]


async def test_open_calls_that_say_much_are_not_all_kept_and_no_permission_is_judged_without_them(
    tmp_path: Path,
) -> None:
    approver = Noted()
    source = """
for n in range(100): told(b'"sessionUpdate":"tool_call","toolCallId":"t%d","title":"t","rawInput":{"command":"ls","x":"%b"}' % (n, b"a" * 60000))
permission("p", toolCallId="t99"); heard(answer("p"))
permission("q", toolCallId="t0"); heard(answer("q"))
"""
    async with rig(tmp_path, approver=approver) as made:
        session = await whole_turn(made, ANNOUNCED + source)
        assert sum(session.talk.tool_calls._sizes.values()) <= KEPT_BYTES
        first, second = await of_type(session, "agent-message-chunk")
        assert b"selected" in first.raw
        assert b"cancelled" in second.raw
    assert [ask.tool_call_id for ask in approver.asks] == ["t99"]


async def test_a_long_notification_of_a_vendor_is_told_of_and_not_recorded(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        source = 'raw(b\'{"method":"_vendor/news","params":\' + small + b\'}\\n\'); raw(b\'{"method":"_vendor/short"}\\n\')'
        session = await whole_turn(made, source)
        (told,) = await of_type(session, "extension-message")
        assert b"_vendor/short" in told.raw
        (skipped,) = [each for each in made.reported if each.code == "agent/line-too-long"]
        assert "_vendor/news" in skipped.message
