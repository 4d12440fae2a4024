"""Long lines of agents that speak protocols of their own: a digest is decoded, the line is kept whole, nothing is allowed."""

import asyncio
import json
import shutil
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.agents.amp.rig import STANDIN
from tests.agents.codex.test_odd_servers import PRELUDE
from tests.agents.opencode.session_by_hand import SessionByHand, make_session
from tests.host.rig import Rig, events, of_type, rig

from legation.agents import messages, outlines
from legation.agents.claude import messages as claude_messages
from legation.agents.codex import server as codex_server
from legation.agents.native import read_lines
from legation.agents.opencode import messages as opencode_messages
from legation.agents.opencode.server import event_of
from legation.agents.rpc import SLICE_LINES
from legation.client.decode import read_event
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.proc import Child
from legation.server.routes.streams import page_of_events
from legation.server.streaming import sse
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire import jsontext
from legation.wire.acp.updates import Text
from legation.wire.events import Event
from legation.wire.jsontext import members
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import Metadata, SessionFacts

pytestmark = pytest.mark.heavy

MIB = 1024 * 1024
LARGEST = 5 * MIB
FACTS = SessionFacts("s", "agent", None, Metadata("agent"))

CLAUDE = r"""
import json, sys
if "--version" in sys.argv:
    print("2.1.0 (Claude Code)")
    sys.exit()
long = "é\n" * (5 * 1024 * 1024 // 4)
def raw(line):
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()
def send(**message):
    raw(json.dumps(message, ensure_ascii=False).encode())
def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()
def answer(number):
    while True:
        found = read()
        if found["type"] == "control_response" and found["response"]["request_id"] == number:
            return json.dumps(found["response"])
def say(text):
    send(type="assistant", message={"id": "m" + text[:9], "content": [{"type": "text", "text": text}]})
def ran(output):
    send(type="assistant", message={"id": "m1", "content": [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}]})
    send(type="user", message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": output}]}, uuid="u1")
def asked(number, given):
    send(type="control_request", request_id=number, request={"subtype": "can_use_tool", "tool_name": "Write", "tool_use_id": "c9", "input": given})
    return answer(number)
hello = read()
ready = {"commands": [], "models": [], "hooks_applied": True}
send(type="control_response", response={"subtype": "success", "request_id": hello["request_id"], "response": ready})
while True:
    prompt = read()
    exec(prompt["message"]["content"][0]["text"])
    say("and on")
    send(type="result", subtype="success", is_error=False, stop_reason="end_turn", user_message_uuids=[prompt["uuid"]])
"""

CODEX = (
    PRELUDE
    + r"""
long = "é\n" * (5 * 1024 * 1024 // 4)
def raw(line):
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()
def send(**message):
    raw(json.dumps(message, ensure_ascii=False).encode())
def prompted(message):
    def item(method, **more):
        tell(method, message, item={"id": "c1", **more})
    def ran(output):
        told = {"type": "commandExecution", "command": "ls", "cwd": "/", "commandActions": []}
        item("item/started", status="inProgress", **told)
        item("item/completed", status="completed", aggregatedOutput=output, exitCode=0, **told)
    def asked(number, given):
        params = {"threadId": message["params"]["threadId"], "turnId": "u", "itemId": "c9", "command": "ls", "cwd": "/"}
        send(id=number, method="item/commandExecution/requestApproval", params={**params, **given})
        return answer(number)
    def changed(text):
        change = {"path": "/a", "kind": {"type": "add"}, "diff": text}
        item("item/started", type="fileChange", changes=[change], status="inProgress")
        params = {"threadId": message["params"]["threadId"], "turnId": "u", "itemId": "c1"}
        send(id=77, method="item/fileChange/requestApproval", params=params)
        return answer(77)
    here = {**globals(), **locals(), "say": lambda text: say(message, text)}
    exec(message["params"]["input"][0]["text"], here)
    say(message, "and on")
    completed(message)
serve(prompted)
"""
)


class Decoded:
    """How much was decoded at once in this process, by what a native agent's text comes to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        for module, name in (
            (msgspec.json, "decode"),
            (jsontext, "read_leniently"),
            (messages, "_decode_message"),
        ):
            monkeypatch.setattr(module, name, self._watched(getattr(module, name)))
        for module, names in (
            (claude_messages, ("_head",)),
            (opencode_messages, ("_envelopes", "_payloads", "_sessions")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, self._decoder(getattr(module, name)))
        for held in (claude_messages._DECODERS, opencode_messages._bodies):
            for key, decoder in cast(Mapping[str, Any], held).items():
                monkeypatch.setitem(cast(dict[str, Any], held), key, self._decoder(decoder))

    def _decoder(self, whole: Any) -> Any:
        return type("Watched", (), {"decode": staticmethod(self._watched(whole.decode))})()

    def _watched(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def watched(text: Any, **options: Any) -> Any:
            self.sizes.append(len(text))
            return decode(text, **options)

        return watched


def definition(made: Rig, kind: str) -> AgentDefinition:
    if kind == "amp":
        program = made.place / "amp.py"
        shutil.copyfile(STANDIN, program)
        args: tuple[str, ...] = ("-I", "-S", str(program))
    else:
        args = ("-I", "-S", "-c", CLAUDE if kind == "claude" else CODEX)
    return AgentDefinition(
        id=kind,
        command=sys.executable,
        args=args,
        cwd=made.work,
        env={"AMP_API_KEY": "k"},
        driver=cast(Any, kind),
    )


@asynccontextmanager
async def opened(place: Path, kind: str, **options: Any) -> AsyncIterator[tuple[Rig, Session]]:
    async with rig(place, **options) as made:
        yield made, await made.open((await made.host.spawn_agent(definition(made, kind))).agent_id)


async def turn(session: Session, source: str) -> str | None:
    return (await session.prompt((Text(text=source),))).stop_reason


async def heard(session: Session) -> str:
    chunks = await of_type(session, "agent-message-chunk")
    return "".join(json.loads(chunk.payload)["content"]["text"] for chunk in chunks)


LONG = "é\n" * (LARGEST // 4)
OUTPUT = {
    "claude": "ran(long)",
    "codex": "ran(long)",
    "amp": f"tool('Grep', {{}}, lambda _: 'x\\n' * {LARGEST // 3}, ask=False); text('and on')",
}


async def result_of(session: Session) -> Event:
    """The update that tells a tool's long result."""
    (found,) = [event for event in await of_type(session, "tool-call-update") if len(event.native) > MIB]
    return found


@pytest.mark.parametrize("kind", ["claude", "codex", "amp"])
async def test_a_long_result_is_decoded_as_a_digest_and_kept_whole_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with opened(tmp_path, kind) as (made, session):
        with monkeypatch.context() as patch:
            decoded = Decoded(patch)
            assert await turn(session, OUTPUT[kind]) == "end_turn"
            assert max(decoded.sizes) <= MIB
        assert "and on" in await heard(session)
        found = await result_of(session)
        text = "x\n" * (LARGEST // 3) if kind == "amp" else LONG
        assert text in _strings(json.loads(found.native))
        assert text in _strings(json.loads(found.payload))
        assert len(found.digest) < MIB
        assert made.reported == []


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for each in inner for found in _strings(each)]


async def test_a_long_native_line_comes_back_byte_for_byte_to_every_reader(tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    async with opened(tmp_path, "claude", backend=SqliteBackend(store)) as (_, session):
        await turn(session, OUTPUT["claude"])
        live = await result_of(session)
        name = session.id
    async with EventLog(SqliteBackend(store)) as log:
        stream = await log.stream(name)
        stored = [event async for event in stream.subscribe(follow=False)]
        (found,) = [event for event in stored if len(event.native) > MIB]
        assert found == live
        data = sse.frames([found]).data
        assert read_event(data.split(b"data: ", 1)[1].strip()).native == live.native
        assert b64encode(live.native[:300]) in data
        page = await page_of_events(stream, found.seq - 1, 1)
        assert read_event(msgspec.json.encode(page.items[0])).native == live.native
    projector = Projector(FACTS)
    rows = [each.encode(include_raw=True) for event in stored for each in projector.feed(event)]
    assert sum(live.native in row for row in rows) == 1


@pytest.mark.parametrize("kind", ["claude", "codex"])
async def test_a_permission_that_nobody_could_be_shown_is_refused_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with opened(tmp_path, kind) as (made, session):
        decoded = Decoded(monkeypatch)
        source = "say(asked('r1', {'file_path': '/a', 'content': long, 'reason': long}))"
        assert await turn(session, source) == "end_turn"
        assert max(decoded.sizes) <= MIB
        said = await heard(session)
        assert ("deny" if kind == "claude" else "decline") in said
        assert "and on" in said
        assert await of_type(session, "permission-asked") == []
        assert "agent/unreadable-permission" in [each.code for each in made.reported]


async def test_a_short_permission_about_a_call_that_a_long_line_told_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, "codex") as (made, session):
        assert await turn(session, "say(changed(long))") == "end_turn"
        assert "decline" in await heard(session)
        assert await of_type(session, "permission-asked") == []
        assert "agent/unreadable-permission" in [each.code for each in made.reported]


async def test_what_amp_asks_at_its_gate_and_nobody_could_be_shown_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, "amp") as (made, session):
        source = f"tool('create_file', {{'path': 'a', 'content': 'x' * {LARGEST}}}, write); text('and on')"
        assert await turn(session, source) == "end_turn"
        assert not (made.work / "a").exists()
        assert await of_type(session, "permission-asked") == []
        assert "agent/unreadable-permission" in [each.code for each in made.reported]
        assert "and on" in await heard(session)


@pytest.mark.parametrize("kind", ["claude", "codex"])
async def test_a_long_line_that_nobody_understands_is_kept_and_one_that_is_too_deep_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    line = b'{"type":"hologram","method":"holo/gram","params":{"threadId":"t1","x":[%b1]}}'
    source = f"raw({line!r} % (b'1,' * 2000000)); raw({line!r} % (b'[' * 2000000)); raw(b'\\xff' * 2000000)"
    async with opened(tmp_path, kind) as (made, session):
        decoded = Decoded(monkeypatch)
        assert await turn(session, source) == "end_turn"
        assert max(decoded.sizes) <= MIB
        (kept,) = await of_type(session, "unrecognized-update")
        assert kept.raw == line % (b"1," * 2_000_000)
        assert [each.code for each in made.reported] == ["agent/stray-line"] * 2
        assert "and on" in await heard(session)


async def test_a_line_that_is_too_deep_is_kept_and_not_walked_through_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b'{"method":"holo/gram","params":{"threadId":"t1","x":%b}}' % (b"[" * 9000 + b"]" * 9000)
    source = f"raw({line!r}); raw(b'[' * 60000)"
    async with opened(tmp_path, "codex") as (made, session):
        walked: list[int] = []

        def watched(text: bytes) -> dict[str, bytes]:
            walked.append(len(text))
            return members(text)

        monkeypatch.setattr(messages, "members", watched)
        monkeypatch.setattr(codex_server, "members", watched)
        assert await turn(session, source) == "end_turn"
        assert max(walked, default=0) <= outlines.ODD_BYTES
        (kept,) = await of_type(session, "unrecognized-update")
        assert kept.raw == line
        assert [each.code for each in made.reported] == ["agent/stray-line"]


async def test_a_picture_is_shown_whole_unless_its_line_is_very_long(tmp_path: Path) -> None:
    source = (
        "ran([{'type': 'image', 'source': {'type': 'base64', 'media_type': 'image/png', 'data': 'A' * %d}}])"
    )
    async with opened(tmp_path, "claude") as (_, session):
        await turn(session, source % 3_000_000)
        (block,) = json.loads((await result_of(session)).payload)["content"]
        assert block["content"] == {"type": "image", "data": "A" * 3_000_000, "mimeType": "image/png"}
    (tmp_path / "other").mkdir()
    async with opened(tmp_path / "other", "claude") as (_, session):
        await turn(session, source % 9_000_000)
        (block,) = json.loads((await result_of(session)).payload)["content"]
        assert block["content"] == {"type": "text", "text": "[a picture: 9,000,000 characters]"}


async def test_texts_that_begin_alike_are_each_put_back_in_their_place(tmp_path: Path) -> None:
    source = """
send(type="assistant", message={"id": "m1", "content": [{"type": "tool_use", "id": "c1", "name": "Write", "input": {"file_path": "/a", "content": "x" * 2000000 + "1"}}]})
send(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
     tool_use_result={"filePath": "/a", "content": "x" * 2000000 + "1", "originalFile": "x" * 2000000 + "2"})
"""
    async with opened(tmp_path, "claude") as (_, session):
        await turn(session, source)
        diff = json.loads((await result_of(session)).payload)["content"][0]
        assert (diff["newText"][-1], diff["oldText"][-1]) == ("1", "2")
        assert len(diff["newText"]) == len(diff["oldText"]) == 2_000_001


async def test_a_long_message_is_whole_in_the_projection(tmp_path: Path) -> None:
    async with opened(tmp_path, "claude") as (_, session):
        await turn(session, "say(long)")
        projector = Projector(FACTS)
        rows = [
            json.loads(each.encode()) for event in await events(session) for each in projector.feed(event)
        ]
        deltas = [row["data"]["delta"] for row in rows if row["type"] == "item.delta"]
        assert LONG in deltas


async def test_others_have_a_turn_after_so_many_lines_of_a_flood() -> None:
    """As many as came at once, which is what a pipe holds."""
    turns = 0
    taken: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Flood:
        async def lines(self) -> AsyncIterator[list[bytes]]:
            yield [b"{}"] * (SLICE_LINES * 5)

    async def room() -> None: ...

    neighbour = asyncio.create_task(others())
    await read_lines(cast(Child, Flood()), lambda *_: taken.append(turns), room, lambda *_: None)
    neighbour.cancel()
    assert max(taken.count(each) for each in set(taken)) <= SLICE_LINES


async def test_a_long_event_of_opencode_is_read_as_a_digest_and_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {
        "id": "per1",
        "sessionID": "ses1",
        "permission": "edit",
        "patterns": ["*"],
        "metadata": {"diff": LONG},
    }
    question = {
        "id": "que1",
        "sessionID": "ses1",
        "questions": [{"question": LONG, "header": "h", "options": []}],
    }
    bench = SessionByHand()
    session = make_session(bench, "ses1")
    decoded = Decoded(monkeypatch)
    with outlines.reader.in_use():
        for kind, body in (("permission.asked", asked), ("question.asked", question)):
            text = json.dumps({"directory": "/w", "payload": {"type": kind, "properties": body}})
            event = await event_of(text.encode(), bench.trouble)
            assert event is not None
            assert event.is_cut
            assert event.line == text.encode()
            session.take(event)
    await asyncio.sleep(0)
    assert max(decoded.sizes) <= MIB
    assert bench.cut == ["per1"]
    assert bench.questions == []
    await session.close()
