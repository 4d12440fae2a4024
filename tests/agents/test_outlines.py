"""Lines that are too much for the loop, read in a process of their own."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legation.agents import outlines
from legation.agents.messages import UpdateReader, read_message
from legation.agents.outlines import Outline, OutlineReader, digest, digest_of_update, is_heavy, outline
from legation.wire.acp.updates import ToolCall, decode_update

pytestmark = pytest.mark.heavy

MIB = 1024 * 1024
LIMIT = 60.0  # seconds for a process to start and to read, on a busy machine
SMALL = b"[" + b",".join([b'{"a":1}'] * (2 * MIB // 8)) + b"]"


def update(fields: bytes) -> bytes:
    return b'{"method":"session/update","params":{"sessionId":"s","update":{%b},"_meta":{"x":1}}}' % fields


CALL = b'"sessionUpdate":"tool_call","rawInput":%b,"toolCallId":"t","title":"A title","status":"completed"'


@pytest.fixture
async def reader() -> AsyncIterator[OutlineReader]:
    made = OutlineReader()
    async with asyncio.timeout(LIMIT):
        with made.in_use():
            yield made


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("line", "heavy"),
    [
        (b'"%b"' % (b"x" * (MIB + 1)), True),
        (b'"%b"' % (b"x" * (MIB - 10)), False),
        (b"[" + b"1," * 40_000 + b"1]", True),
        (b"[" * 100_000, True),
        (b"[" + b"1," * 20_000 + b"1]", False),  # 40 kB are read at once, whatever they are
    ],
)
def test_what_is_heavy_is_long_or_has_many_values(line: bytes, heavy: bool) -> None:
    assert is_heavy(line) is heavy


async def test_a_heavy_update_is_found_whole_and_told_in_the_small(reader: OutlineReader) -> None:
    line = update(CALL % SMALL)
    found = await reader.read(line)
    assert found is not None
    assert (found.session, found.type, found.method) == ("s", "tool-call", "session/update")
    params = line[slice(*found.part)]
    assert json.loads(params)["_meta"] == {"x": 1}
    before, behind = found.span
    assert params[before : len(params) - behind] == b"{%b}" % (CALL % SMALL)
    assert len(found.digest) < 100_000
    told = decode_update(found.digest.encode())
    assert isinstance(told, ToolCall)
    assert (told.tool_call_id, told.title, told.status) == ("t", "A title", "completed")


async def test_what_is_no_message_is_none(reader: OutlineReader) -> None:
    assert await reader.read(b"x" * (2 * MIB)) is None
    assert await reader.read(b"[" * (2 * MIB)) is None


async def test_the_next_line_is_read_after_the_process_was_killed(reader: OutlineReader) -> None:
    assert await reader.read(update(CALL % SMALL)) is not None
    first = reader.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await reader.read(update(CALL % SMALL)) is not None
    assert reader.pid not in (None, first)


async def test_a_line_that_is_not_read_in_time_is_none_and_the_next_one_is_read(
    reader: OutlineReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlines, "LINE_LIMIT", 0.001)
    assert await reader.read(update(CALL % SMALL)) is None
    monkeypatch.setattr(outlines, "LINE_LIMIT", LIMIT)
    assert await reader.read(update(CALL % SMALL)) is not None


async def test_the_process_starts_with_the_first_line_and_ends_with_the_last_user() -> None:
    made = OutlineReader()
    async with asyncio.timeout(LIMIT):
        with made.in_use(), made.in_use():
            before = made.pid
            await made.read(b"x")
            pid = made.pid
        assert before is None
        assert pid is not None
        while not ended(pid):
            await asyncio.sleep(0.01)


async def test_the_process_has_nothing_of_the_environment(
    reader: OutlineReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATION_TOKEN", "a secret of the server")
    await reader.read(b"x")
    with open(f"/proc/{reader.pid}/environ", "rb") as file:  # noqa: PTH123
        assert b"secret" not in file.read()


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8) | st.just("long " * 2000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
_tags = st.sampled_from(["plan", "tool_call", "agent_message_chunk", "mystery"])


@given(
    st.builds(
        lambda tag, rest: {**rest, "sessionUpdate": tag}, _tags, st.dictionaries(st.text(max_size=3), _json)
    )
)
def test_an_outline_is_what_the_loop_would_have_read(value: dict[str, Any]) -> None:
    line = json.dumps({"method": "session/update", "params": {"sessionId": "s", "update": value}}).encode()
    found = outline(line)
    ((session, (draft,)),) = [each for each in UpdateReader().read(line) if not isinstance(each, bytes)]
    assert isinstance(found, Outline)
    assert (found.session, found.type, found.span) == (session, draft.type, draft.span)
    assert line[slice(*found.part)] == draft.raw
    assert found.digest.encode() == draft.payload or len(found.digest) < len(draft.payload)


@given(st.sampled_from(["result", "params", "error"]), _json)
def test_other_messages_are_outlined_as_they_are_read(member: str, value: object) -> None:
    message: dict[str, object] = {"id": 7, member: value}
    if member == "params":
        message["method"] = "m"
    line = json.dumps(message).encode()
    found, read = outline(line), read_message(line)
    assert found is not None
    assert read is not None
    assert (found.method, found.id) == (read.method, "7")
    if member != "error":
        assert line[slice(*found.part)] == bytes(read.params if member == "params" else read.result)


@pytest.mark.heavy
@settings(deadline=None)
@given(_json)
def test_a_digest_is_json_of_a_bounded_size(value: object) -> None:
    raw = json.dumps([value] * 400).encode()
    told = digest(raw)
    msgspec.json.decode(told)
    assert len(told) <= max(2 * outlines.DIGEST_BYTES, 400)


def test_what_says_what_it_is_stays_in_a_digest_though_there_be_a_thousand_members_before_it() -> None:
    junk = b",".join([b'"k%d":%d' % (number, number) for number in range(100_000)])
    told = decode_update(digest_of_update(b"{%b,%b}" % (junk, CALL % SMALL)))
    assert isinstance(told, ToolCall)
    assert (told.tool_call_id, told.status) == ("t", "completed")


async def test_a_text_in_slices_is_the_text_at_once() -> None:
    line = ("é" * 60_000 + "x").encode() + b"\xff\xc3" + "é".encode() * 70_000 + b"\xc3"
    assert await outlines.as_text(line) == line.decode(errors="replace").encode()


async def test_whoever_comes_after_the_last_one_has_gone_gets_the_answer_to_his_own_line() -> None:
    """The one who is gone may have left the process at work; nobody waits for that."""
    made = OutlineReader()
    async with asyncio.timeout(LIMIT):
        with made.in_use():
            await made.read(update(CALL % b"1"))
            pid = made.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            left = asyncio.create_task(made.read(update(CALL.replace(b'"t"', b'"theirs"') % b"1")))
            await asyncio.sleep(0)
        with made.in_use():
            found = await made.read(update(CALL.replace(b'"t"', b'"ours"') % b"1"))
            assert made.pid != pid
            assert found is not None
            assert '"ours"' in found.digest
        assert await left is None
        while not ended(pid):
            await asyncio.sleep(0.01)


async def test_a_line_that_takes_long_keeps_nobody_elses_waiting(
    reader: OutlineReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlines, "LINE_LIMIT", LIMIT)
    await reader.read(b"x")
    first = reader.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # as one that is at a line for long
    slow = asyncio.create_task(reader.read(update(CALL % b"1")))
    await asyncio.sleep(0)
    assert await reader.read(update(CALL % SMALL)) is not None
    assert not slow.done()
    assert len(reader.pids) == 2
    os.kill(first, signal.SIGCONT)
    assert await slow is not None
    assert await reader.read(update(CALL % SMALL)) is not None
    assert len(reader.pids) == 2  # the first is free again


async def test_many_lines_at_once_are_read_by_few_processes(reader: OutlineReader) -> None:
    lines = [update(CALL.replace(b'"t"', b'"t%d"' % number) % b"1") for number in range(20)]
    found = await asyncio.gather(*map(reader.read, lines))
    assert [each is not None and f'"t{number}"' in each.digest for number, each in enumerate(found)] == [
        True
    ] * 20
    assert 1 < len(reader.pids) <= outlines.MOST_PROCESSES
