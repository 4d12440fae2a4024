"""The connection itself, with a child that is nothing but two queues."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from legation.agents.outlines import DENSE_BYTES, MOST_BYTES, ODD_BYTES
from legation.agents.rpc import REQUESTS_AT_ONCE, AgentRefused, RpcFault, RpcPeer
from legation.errors import AgentError, TimedOut, TransportClosed
from legation.proc import Child
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

LIMIT = 60.0  # seconds for anything here to happen
PROCESS_LIMIT = 60.0  # where a process has to start for it, on a busy machine
UPDATE = b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan","n":%d}}}'


class Pipe:
    """The two ends of a child that is not there."""

    def __init__(self) -> None:
        self.output: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
        self.input: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()  # of lines that are not written at once
        self.closed = False
        self.unsent = 0

    async def blocks(self) -> list[bytes]:
        lines = await self.output.get()
        if lines is None:
            return []
        return lines if len(lines) == 1 else [b"\n".join(lines)]

    def write(self, data: bytes) -> None:
        if self.closed:
            raise TransportClosed("cannot write")
        if not (data.startswith(b"{") and data.endswith(b"\n")):
            self.written.put_nowait(data)
            return
        for line in data.splitlines():
            self.input.put_nowait(json.loads(line))

    async def drain(self, _timeout: float | None = None) -> None:
        await asyncio.sleep(0)

    def say(self, *lines: bytes) -> None:
        self.output.put_nowait(list(lines))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT):
            return await self.input.get()


class Seen:
    """An inbox that writes down what it gets; `serve` answers requests."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.troubles: list[DiagnosticCode] = []
        self.serve: Callable[[str, bytes], Awaitable[object]] = self._refuse
        self.full = asyncio.Event()
        self.full.set()

    def _refuse(self, method: str, _: bytes) -> Awaitable[object]:
        raise RpcFault(-32601, f"{method} is not offered")

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        self.order += [(session_id, json.loads(draft.payload).get("n")) for draft in drafts]

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.troubles.append(code)

    def notification(self, method: str, _: bytes) -> None:
        self.order.append(method)

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        self.order.append(method)
        return self.serve(method, params)

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        await self.full.wait()


class Line:
    def __init__(self) -> None:
        self.pipe, self.seen = Pipe(), Seen()
        self.peer = RpcPeer(cast(Child, self.pipe), self.seen)
        self.running = asyncio.create_task(self.peer.run())

    async def end(self) -> None:
        self.pipe.output.put_nowait(None)
        async with asyncio.timeout(LIMIT):
            await self.running

    def request(self, number: int, method: str = "m") -> None:
        self.pipe.say(json.dumps({"id": number, "method": method, "params": {}}).encode())


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    await made.end()


async def test_everything_is_handled_in_the_order_it_came(line: Line) -> None:
    answered: list[object] = []

    def on_answer(_: bytes | AgentError) -> None:
        answered.append(list(line.seen.order))

    calling = asyncio.create_task(line.peer.call("a", {}, timeout=LIMIT, on_answer=on_answer))
    await line.pipe.hear()
    line.pipe.say(UPDATE % 1, UPDATE % 2, b'{"method":"note"}', b'{"id":1,"result":5}', UPDATE % 3)
    assert await calling == b"5"
    assert answered == [[("s", 1), ("s", 2), "note"]]
    assert line.seen.order[-1] == ("s", 3)


async def test_an_error_answer_is_raised_with_what_the_agent_said(line: Line) -> None:
    calling = asyncio.create_task(line.peer.call("a", {}, timeout=LIMIT))
    await line.pipe.hear()
    line.pipe.say(b'{"id":1,"error":{"code":-5,"message":"no","data":[1]}}')
    with pytest.raises(AgentRefused, match="no") as caught:
        await calling
    assert (caught.value.error.code, caught.value.error.data) == (-5, [1])


async def test_a_null_error_beside_a_result_is_no_error(line: Line) -> None:
    calling = asyncio.create_task(line.peer.call("a", {}, timeout=LIMIT))
    await line.pipe.hear()
    line.pipe.say(b'{"id":1,"result":{},"error":null}')
    assert await calling == b"{}"


async def test_a_call_that_times_out_is_cancelled_at_the_agent_and_its_late_answer_reported(
    line: Line,
) -> None:
    with pytest.raises(TimedOut):
        await line.peer.call("a", {}, timeout=0.01)
    await line.pipe.hear()
    assert await line.pipe.hear() == {
        "jsonrpc": "2.0",
        "method": "$/cancel_request",
        "params": {"requestId": 1},
    }
    line.pipe.say(b'{"id":1,"result":{}}', b'{"id":1,"result":{}}')
    await line.end()
    assert line.seen.troubles == [DiagnosticCode.AGENT_LATE_RESPONSE] * 2


async def test_a_call_given_up_that_the_agent_cancels_is_no_trouble(line: Line) -> None:
    with pytest.raises(TimedOut):
        await line.peer.call("a", {}, timeout=0.01)
    calling = asyncio.create_task(line.peer.call("b", {}))
    for _ in range(3):
        await line.pipe.hear()
    calling.cancel()
    assert (await line.pipe.hear())["params"] == {"requestId": 2}
    cancelled = b'{"id":%d,"error":{"code":-32800,"message":"cancelled"}}'
    line.pipe.say(cancelled % 1, cancelled % 2)
    await line.end()
    assert line.seen.troubles == []


async def test_a_call_that_nobody_gave_up_cannot_be_cancelled_twice_in_silence(line: Line) -> None:
    with pytest.raises(TimedOut):
        await line.peer.call("a", {}, timeout=0.01)
    line.pipe.say(
        *[b'{"id":%d,"error":{"code":-32800,"message":"cancelled"}}' % number for number in (1, 1, 9)]
    )
    await line.end()
    assert line.seen.troubles == [DiagnosticCode.AGENT_LATE_RESPONSE] * 2


async def test_an_answer_that_was_seen_counts_though_time_runs_out_meanwhile(line: Line) -> None:
    seen: list[object] = []

    def answer_at_once(data: bytes) -> None:
        line.peer._take_other(b'{"id":1,"result":5}')

    line.pipe.write = answer_at_once  # type: ignore[method-assign]
    assert await line.peer.call("a", {}, timeout=0, on_answer=seen.append) == b"5"
    assert seen == [b"5"]


async def test_a_call_that_the_agent_does_not_read_is_given_up(line: Line) -> None:
    async def stuck(_timeout: float | None = None) -> None:
        raise TimedOut("cannot write")

    line.pipe.drain = stuck  # type: ignore[method-assign]
    with pytest.raises(TimedOut):
        await line.peer.call("a", {})
    assert [(await line.pipe.hear())["method"] for _ in range(2)] == ["a", "$/cancel_request"]


@pytest.mark.parametrize("number", [b"1.0", b"1e0", b" 1 "])
async def test_an_answer_may_spell_its_number_otherwise(line: Line, number: bytes) -> None:
    calling = asyncio.create_task(line.peer.call("a", {}, timeout=LIMIT))
    await line.pipe.hear()
    line.pipe.say(b'{"id":%b,"result":5}' % number)
    assert await calling == b"5"


async def test_a_second_answer_to_one_call_is_reported(line: Line) -> None:
    calling = asyncio.create_task(line.peer.call("a", {}, timeout=LIMIT))
    await line.pipe.hear()
    line.pipe.say(b'{"id":1,"result":1}', b'{"id":1,"result":2}')
    assert await calling == b"1"
    assert line.seen.troubles == [DiagnosticCode.AGENT_LATE_RESPONSE]


async def test_the_end_of_the_output_ends_every_call(line: Line) -> None:
    calls = [asyncio.create_task(line.peer.call("a", {})) for _ in range(3)]
    await line.pipe.hear()
    await line.end()
    for call in calls:
        with pytest.raises(TransportClosed):
            await call
    with pytest.raises(TransportClosed):
        await line.peer.call("a", {})


async def test_an_unknown_request_is_answered_with_the_agents_own_id(line: Line) -> None:
    line.pipe.say(b'{"id":"x\\u00e9","method":"m"}', b'{"id":7,"method":"session/update","params":{}}')
    first, second = await line.pipe.hear(), await line.pipe.hear()
    assert (first["id"], first["error"]["code"]) == ("xé", -32601)
    assert (second["id"], second["error"]["code"]) == (7, -32601)


async def test_a_handler_that_fails_is_an_internal_error_without_its_text(line: Line) -> None:
    async def later(_: str, __: bytes) -> object:
        raise ValueError("private")

    def now(_: str, __: bytes) -> Awaitable[object]:
        raise ValueError("private")

    for serve in (later, now):
        line.seen.serve = serve
        line.request(1)
        answer = await line.pipe.hear()
        assert answer["error"] == {"code": -32603, "message": "cannot answer m: ValueError"}


async def test_a_cancelled_request_is_answered_even_if_nobody_had_looked_at_it(line: Line) -> None:
    async def never(_: str, __: bytes) -> object:
        return await asyncio.get_running_loop().create_future()

    line.seen.serve = never
    line.pipe.say(b'{"id":1,"method":"m"}', b'{"method":"$/cancel_request","params":{"requestId":1}}')
    assert (await line.pipe.hear())["error"]["code"] == -32800
    line.request(1)
    line.pipe.say(b'{"method":"$/cancel_request","params":{"requestId":1}}')
    assert (await line.pipe.hear())["error"]["code"] == -32800
    line.pipe.say(b'{"method":"$/cancel_request","params":{"requestId":9}}', b'{"method":"$/cancel_request"}')


@pytest.mark.parametrize(
    ("asked", "cancelled"),
    [(b'"x"', b'"x"'), (b'"\\u00e9/"', '"é\\/"'.encode()), (b'"1"', b'"1"'), (b"7", b"7.0")],
)
async def test_a_request_is_cancelled_by_the_value_of_its_id(
    line: Line, asked: bytes, cancelled: bytes
) -> None:
    async def never(_: str, __: bytes) -> object:
        return await asyncio.get_running_loop().create_future()

    line.seen.serve = never
    line.pipe.say(b'{"id":%b,"method":"m"}' % asked)
    line.pipe.say(b'{"method":"$/cancel_request","params":{"requestId":%b}}' % cancelled)
    answer = await line.pipe.hear()
    assert (answer["id"], answer["error"]["code"]) == (json.loads(asked), -32800)


async def test_a_text_and_a_number_are_different_ids(line: Line) -> None:
    answers: dict[bytes, asyncio.Future[object]] = {}

    def wait(_: str, params: bytes) -> Awaitable[object]:
        return answers.setdefault(params, asyncio.get_running_loop().create_future())

    line.seen.serve = wait
    line.pipe.say(b'{"id":1,"method":"m","params":[1]}', b'{"id":"1","method":"m","params":[2]}')
    line.pipe.say(b'{"method":"$/cancel_request","params":{"requestId":"1"}}')
    answer = await line.pipe.hear()
    assert answer["id"] == "1"
    answers[b"[1]"].set_result("kept")
    assert await line.pipe.hear() == {"jsonrpc": "2.0", "id": 1, "result": "kept"}


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("result", [object(), {"a": object()}, CYCLE], ids=["object", "inside", "cycle"])
async def test_an_answer_that_is_no_json_is_an_internal_error(line: Line, result: object) -> None:
    async def odd(_: str, __: bytes) -> object:
        return result

    line.seen.serve = odd
    line.request(1)
    assert (await line.pipe.hear())["error"]["code"] == -32603


async def test_an_id_that_is_under_way_is_refused_and_free_again_after_the_answer(line: Line) -> None:
    answers: list[asyncio.Future[object]] = []

    def wait(_: str, __: bytes) -> Awaitable[object]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    line.seen.serve = wait
    line.request(1)
    line.request(1)
    assert (await line.pipe.hear())["error"]["code"] == -32600
    answers[0].set_result("one")
    assert (await line.pipe.hear())["result"] == "one"
    line.request(1)
    while len(answers) < 2:
        await asyncio.sleep(0)
    answers[1].set_result("two")
    assert (await line.pipe.hear())["result"] == "two"


async def test_requests_beyond_the_bound_are_refused(line: Line) -> None:
    def wait(_: str, __: bytes) -> Awaitable[object]:
        return asyncio.get_running_loop().create_future()

    line.seen.serve = wait
    for number in range(REQUESTS_AT_ONCE + 1):
        line.request(number)
    refused = await line.pipe.hear()
    assert (refused["id"], refused["error"]["code"]) == (REQUESTS_AT_ONCE, -32600)
    await line.end()
    assert {(await line.pipe.hear())["error"]["code"] for _ in range(REQUESTS_AT_ONCE)} == {-32800}


@pytest.mark.parametrize("method", ["session/request_permission", "elicitation/create"])
async def test_an_ask_beyond_the_bound_is_refused_with_a_word_to_those_who_read(
    line: Line, method: str
) -> None:
    """Of 180 asks 116 were seen by nobody but their agent."""
    line.seen.serve = lambda _method, _params: asyncio.get_running_loop().create_future()
    for number in range(REQUESTS_AT_ONCE + 3):
        line.request(number, method)
    assert [(await line.pipe.hear())["id"] for _ in range(3)] == [
        REQUESTS_AT_ONCE + each for each in range(3)
    ]
    assert line.seen.order == [method] * REQUESTS_AT_ONCE
    assert line.seen.troubles == [DiagnosticCode.AGENT_UNREADABLE_PERMISSION] * 3


async def test_an_agent_that_went_away_with_its_question_is_no_trouble(line: Line) -> None:
    line.pipe.closed = True
    line.request(1)
    line.pipe.say(UPDATE % 1)
    while line.seen.order != ["m", ("s", 1)]:
        await asyncio.sleep(0)


async def test_nothing_more_is_read_while_there_is_no_room(line: Line) -> None:
    line.seen.full.clear()
    line.pipe.say(UPDATE % 1)
    line.pipe.say(UPDATE % 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert line.seen.order == [("s", 1)]
    line.seen.full.set()
    await line.end()
    assert line.seen.order == [("s", 1), ("s", 2)]


@pytest.mark.parametrize(
    "stray", [b"null", b"123", b"[]", b'"x"', b"text", b'{"id":1', b"{}", b"\xff", b'{"id":null}']
)
async def test_a_stray_line_is_reported_and_the_next_is_read(line: Line, stray: bytes) -> None:
    line.pipe.say(UPDATE % 1, stray, b"  ", UPDATE % 2)
    await line.end()
    assert line.seen.troubles == [DiagnosticCode.AGENT_STRAY_LINE]
    assert line.seen.order == [("s", 1), ("s", 2)]


async def test_runs_of_updates_are_handed_on_by_session(line: Line) -> None:
    other = (UPDATE % 9).replace(b'"s"', b'"t"')
    line.pipe.say(UPDATE % 1, other, other, UPDATE % 2)
    await line.end()
    assert line.seen.order == [("s", 1), ("t", 9), ("t", 9), ("s", 2)]


AT_ONCE = 256  # messages of one agent that nobody else is kept waiting for longer than


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b'{"id":777,"result":{}}', id="answers to nothing"),
        pytest.param(b"this is no message", id="stray lines"),
        pytest.param(b'{"method":"no/such"}', id="notifications"),
        pytest.param(b'{"id":"r","method":"no/such"}', id="requests"),
        pytest.param(UPDATE % 1, id="updates"),
    ],
)
async def test_others_have_their_turns_between_the_messages_that_an_agent_wrote_at_once(
    line: Line, said: bytes
) -> None:
    loop, seen, steps, count = asyncio.get_running_loop(), line.seen, [0], 10_000

    def handled() -> int:
        return len(seen.order) + len(seen.troubles)

    def neighbour() -> None:
        steps.append(handled())
        if steps[-1] < count:
            loop.call_soon(neighbour)

    line.pipe.say(*[said] * count)
    loop.call_soon(neighbour)
    await line.end()
    assert handled() == count
    assert max(after - before for before, after in pairwise(steps)) <= AT_ONCE


async def test_lines_that_are_long_are_few_between_two_turns_of_others(line: Line) -> None:
    """Each of them may be thousands of values."""
    loop, seen, steps, count = asyncio.get_running_loop(), line.seen, [0], 40
    said = UPDATE.replace(b"%d", b'1,"x":[%b]' % b",".join([b"1"] * 25_000))

    def neighbour() -> None:
        steps.append(len(seen.order))
        if steps[-1] < count:
            loop.call_soon(neighbour)

    line.pipe.say(*[said] * count)
    loop.call_soon(neighbour)
    await line.end()
    assert len(seen.order) == count
    assert max(after - before for before, after in pairwise(steps)) <= 2


@pytest.mark.parametrize(("size", "rests"), [(DENSE_BYTES + 1, True), (DENSE_BYTES // 2, False)])
async def test_who_asks_at_length_is_read_on_when_others_had_time(
    line: Line, monkeypatch: pytest.MonkeyPatch, size: int, rests: bool
) -> None:
    """Whoever judges, keeps and shows it goes over all of it many times; ten of them were a quarter of a second."""
    monkeypatch.setattr("legation.agents.rpc.REQUEST_REST", LIMIT)  # seconds a byte: for ever
    line.pipe.say(b'{"id":"r","method":"no/such","params":{"x":"%b"}}' % (b"x" * size))
    line.pipe.say(UPDATE % 1)
    assert (await line.pipe.hear())["id"] == "r"
    for _ in range(20):
        await asyncio.sleep(0)
    assert line.seen.order == (["no/such"] if rests else ["no/such", ("s", 1)])
    if rests:
        line.running.cancel()
        await asyncio.wait({line.running})
        line.running = asyncio.create_task(line.peer.run())  # for the fixture, which ends it


async def test_lines_that_no_parser_takes_are_few_between_two_turns_of_others(line: Line) -> None:
    """They are walked through, token by token."""
    loop, seen, steps, count = asyncio.get_running_loop(), line.seen, [0], 20
    said = UPDATE.replace(b"%d", b'"\\ud800","x":[%b]' % b",".join([b"1"] * 1_800))
    assert len(said) < ODD_BYTES

    def neighbour() -> None:
        steps.append(len(seen.order))
        if steps[-1] < count:
            loop.call_soon(neighbour)

    line.pipe.say(*[said] * count)
    loop.call_soon(neighbour)
    await line.end()
    assert len(seen.order) == count
    assert max(after - before for before, after in pairwise(steps)) <= 5


@pytest.mark.parametrize(
    ("said", "most"),
    [
        pytest.param(b"this is no message", 64, id="no JSON"),
        pytest.param(b'{"jsonrpc":"2.0","method":"session/update","params":{"x"', 32, id="half a message"),
        pytest.param(b"1", 128, id="no object"),
    ],
)
async def test_stray_lines_are_few_between_two_turns_of_others(line: Line, said: bytes, most: int) -> None:
    """Each of them is read in three ways before it is one. Short ones are many: a turn that is far shorter than the
    time after which a thread asks for its own leaves the log's writer waiting."""
    loop, seen, steps, count = asyncio.get_running_loop(), line.seen, [0], 1_000

    def neighbour() -> None:
        steps.append(len(seen.troubles))
        if steps[-1] < count:
            loop.call_soon(neighbour)

    line.pipe.say(*[said] * count)
    loop.call_soon(neighbour)
    await line.end()
    assert len(seen.troubles) == count
    assert most / 2 < max(after - before for before, after in pairwise(steps)) <= most


@pytest.mark.parametrize("size", [300 * 1024, 2 * 1024 * 1024])
async def test_a_heavy_request_is_answered_however_long_its_id_is(line: Line, size: int) -> None:
    name = b'"%b"' % (b"i" * size)
    line.pipe.say(b'{"id":%b,"method":"m","params":{"x":"%b"}}' % (name, b"x" * MOST_BYTES))
    async with asyncio.timeout(PROCESS_LIMIT):
        written = b"".join([await line.pipe.written.get() for _ in range(3)])
    answer = json.loads(written)
    assert answer["id"] == json.loads(name)
    assert answer["error"]["code"] == -32600
    assert line.seen.troubles == [DiagnosticCode.AGENT_LINE_TOO_LONG]


class Watched(bytes):
    """A line that knows how often a long part of it was copied."""

    copied = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        if isinstance(found, bytes):
            self.copied += len(found) > MOST_BYTES
        return found


async def test_a_heavy_answer_that_nobody_waits_for_is_not_copied(line: Line) -> None:
    """Each copy of a long one takes a while."""
    call = asyncio.create_task(line.peer.call("_x", {}))
    number = (await line.pipe.hear())["id"]
    long = b'"%b"' % (b"x" * MOST_BYTES)
    strange, awaited = (
        Watched(b'{"id":900000,"result":%b}' % long),
        Watched(b'{"id":%d,"result":%b}' % (number, long)),
    )
    line.pipe.say(strange)
    line.pipe.say(awaited)
    async with asyncio.timeout(PROCESS_LIMIT):
        assert await call == long
    assert line.seen.troubles == [DiagnosticCode.AGENT_LATE_RESPONSE]
    assert (strange.copied, awaited.copied) == (0, 1)
