"""What an agent writes on its stdout that is no message, or hardly one: never the end of the connection."""

import json
from pathlib import Path

import pytest
from tests.host.rig import events, go, of_type, play, rig
from tests.store.backends import make_backend

from legation.host.endpoint import project_event
from legation.wire.acp.updates import Text

pytestmark = pytest.mark.heavy

SKIPPED = ("text", "null", "number", "array", "string", "half-line", "nan")
KEPT = ("invalid-utf8", "lone-surrogate", "depth", "2**80")


async def test_stray_lines_are_reported_and_skipped(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        result = await play(session, *(f"garbage {kind}" for kind in SKIPPED), "garbage blank", "say done")
        assert result.stop_reason == "end_turn"
        told = [json.loads(event.payload) for event in await of_type(session, "diagnostic")]
        assert [each["code"] for each in told] == ["agent/stray-line"] * len(SKIPPED)
        assert "hello, this line is not JSON" in told[0]["message"]
        assert len(made.reported) == len(SKIPPED)
        assert len(await of_type(session, "agent-message-chunk")) == 1


async def test_odd_updates_are_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, *(f"garbage {kind}" for kind in KEPT), "say done")
        found = await of_type(session, "agent-message-chunk", "unrecognized-update")
        assert len(found) == len(KEPT) + 1
        invalid, surrogate, deep, large, _ = found
        assert "\ufffd\ufffd broken" in json.loads(invalid.payload)["content"]["text"]
        assert b"\xff\xfe broken" in invalid.native
        assert rb"\ud800 alone" in surrogate.raw
        assert b"[" * 20_000 in deep.raw
        assert b"%d" % 2**80 in large.raw
        assert made.reported == []


async def test_an_update_is_kept_byte_for_byte(tmp_path: Path) -> None:
    odd = r'{ "sessionUpdate":"agent_message_chunk", "x": 1.0e2, "content" : {"text":"\u0041\/é"} , "x":2}'
    source = f"""
hello(); session(); prompt = prompted()
raw(b'{{"params":{{"update":' + {odd.encode()!r} + b',"sessionId":"s1"}},"method":"session/update"}}\\r\\n')
done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (event,) = await of_type(session, "agent-message-chunk")
        assert event.raw == b'{"update":%b,"sessionId":"s1"}' % odd.encode()
        assert event.payload == odd.encode()


@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
async def test_what_stands_beside_an_update_is_kept(tmp_path: Path, kind: str) -> None:
    """`_meta` and members that nobody knows, wherever they stand; in the store, and in what is made of it."""
    update = '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"}}'
    beside = '"_meta":{"trace": "a\\u0041"},"sessionId":"s1", "vendor" : [1.0, null]'
    before, behind = "{" + beside + ',"update":' + update + "}", '{"update":' + update + "," + beside + "}"
    source = f"""
hello(); session(); prompt = prompted()
for params in {[before.encode(), before.encode(), behind.encode()]!r}:
    raw(b'{{"jsonrpc":"2.0","method":"session/update","params":' + params + b'}}\\n')
done(prompt); stay()
"""
    async with rig(tmp_path, backend=make_backend(kind, tmp_path / "log")) as made:
        session = await made.script(source)
        await go(session)
        await session.stream.durable(session.stream.head)
        found = await of_type(session, "agent-message-chunk")
        assert [event.raw.decode() for event in found] == [before, before, behind]
        assert [event.payload.decode() for event in found] == [update] * 3
        shown = [project_event(event) for event in found]
        assert [each["payload"] for each in shown] == [{"content": {"type": "text", "text": "hi"}}] * 3


@pytest.mark.parametrize(
    "stray",
    [
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{x}}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":7,"update":{}}}',
        b'{"jsonrpc":"2.0","method":"session/update"}',
        b'{"jsonrpc":"2.0","method":5,"params":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 300_000,
        b'{"a":' * 300_000,
    ],
)
async def test_a_line_that_says_nothing_is_reported(tmp_path: Path, stray: bytes) -> None:
    source = f"hello(); session(); prompt = prompted()\nraw({stray[:500]!r} * {1 if len(stray) < 500 else 600} + b'\\n')"
    async with rig(tmp_path) as made:
        session = await made.script(source + "\nupdate('on'); done(prompt); stay()")
        assert (await go(session)).stop_reason == "end_turn"
        assert [each.code for each in made.reported] == ["agent/stray-line"]
        assert len(await of_type(session, "agent-message-chunk")) == 1


async def test_an_answer_that_nobody_waits_for_is_reported(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "garbage stray-reply", "say done")
        assert [each.code for each in made.reported] == ["agent/late-response"]


async def test_a_torn_line_costs_itself_and_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "garbage torn", "say lost", "say kept")
        assert len(await of_type(session, "agent-message-chunk")) == 1
        assert [each.code for each in made.reported] == ["agent/stray-line"]


async def test_a_line_of_ten_megabytes_arrives(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "big 10000000")
        (event,) = await of_type(session, "agent-message-chunk")
        assert len(event.raw) > 9_999_000


async def test_a_line_over_the_cap_is_skipped_with_its_size(tmp_path: Path) -> None:
    async with rig(tmp_path, max_line=100_000) as made:
        session = await made.rehearse()
        await play(session, "big 300000", "say done")
        assert [each.code for each in made.reported] == ["agent/line-too-long"]
        assert "299999" in made.reported[0].message
        assert len(await of_type(session, "agent-message-chunk")) == 1


async def test_unknown_updates_are_kept_verbatim(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "unknown-update", "out-of-order")
        (event,) = await of_type(session, "unrecognized-update")
        assert json.loads(event.payload)["mystery"] == {"answer": 42}
        assert len(await of_type(session, "tool-call", "tool-call-update")) == 4


async def test_a_session_that_takes_no_more_does_not_end_the_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        closed = await made.rehearse()
        other = await made.open_another(closed)
        await closed.stream.close()
        before = len(await events(closed))
        await closed.agent.prompt(closed.meta.agent_session_id, (Text(text="#!rehearse\nsay lost"),))
        assert (await play(other, "say fine")).stop_reason == "end_turn"
        assert len(await events(closed)) == before
        assert {each.code for each in made.reported} == {"agent/unknown-session"}
