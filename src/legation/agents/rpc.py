"""JSON-RPC with one agent over its pipes: one reader, one order.

INV-R1  Messages are handled in the order they came: updates are handed on before the response behind them,
        and `on_answer` is called before the updates behind that.
INV-R2  Every request of the agent gets exactly one answer, whatever becomes of it.
INV-R3  A line that is no message is reported and skipped; it never ends the connection.
INV-R4  No agent holds the loop: of what it wrote at once, `SLICE_LINES` are handled, and then everybody else has a turn;
        a line that would take long by itself is read elsewhere (`outlines`), and those behind it wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from legation.agents import outlines
from legation.agents.driver import OnAnswer
from legation.agents.messages import (
    RUN_LINES,
    UpdateReader,
    id_key,
    is_odd,
    pieces,
    read_call_id,
    read_cancelled_id,
    read_error,
    read_message,
    read_odd_update,
)
from legation.errors import AgentError, AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Exit
from legation.proc.lines import MAX_LINE
from legation.wire import jsontext
from legation.wire.acp.methods import CancelledOutcome, RequestPermissionResponse
from legation.wire.acp.rpc import CANCEL_REQUEST, AgentMethod, ClientMethod, ErrorCode, RpcError
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

# Output of an agent's process, read to its end by one task; and that end, told in words.

EXIT_LIMIT = (
    1.0  # seconds from the end of a process's output to its exit, where it is its end: the kernel's time
)
REST_LIMIT = 5.0  # seconds for a stopped agent's last words to be taken: the store's time
STDERR_SHOWN = 2000  # characters of it in an error
SHOWN_BYTES = 200  # of a stray line, in the diagnostic
ANSWER_LIMIT = 1024 * 1024  # bytes that a program says when it is asked for its version or help
STRAY_LINES = 5  # of a program that speaks no protocol, in an error
STRAY_SHOWN = 200  # characters of each
MUTE = "it closed its output and went on, so it is stopped: nothing that it does could be seen any more"
HEADER = re.compile(r"^content-length:", re.IGNORECASE | re.MULTILINE)
FRAMED = " (messages behind headers, as language servers have them; an agent writes one message a line)"

_log = logging.getLogger(__name__)


class Stray:
    """The first lines of a program that are no messages: what is wrong with it stands there, as in `npm warn` or its
    usage. Bounded, and without what a terminal would obey; secrets were hidden where it was read."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._settled = False

    def settle(self) -> None:
        """Forget what was kept: it speaks the protocol, and what it says besides is told one by one."""
        self._settled = True
        self._lines.clear()

    def add(self, line: bytes) -> None:
        if not self._settled and len(self._lines) < STRAY_LINES:
            self._lines.append(printable(line))

    def said(self, unfinished: bytes = b"") -> str:
        """Words for the end of a message. `unfinished` is a line that never ended, as in another framing."""
        if self._settled:
            return ""
        lines = [*self._lines, printable(unfinished)][:STRAY_LINES]
        shown = "\n".join(line for line in lines if line.strip())
        if not shown:
            return ""
        hint = FRAMED if HEADER.search(shown) else ""
        return f", having written to its standard output what is no message{hint}:\n{shown}\n"


def printable(line: bytes) -> str:
    """A line of a program's, for people: cut, and with nothing in it that a terminal would obey."""
    text = line[: STRAY_SHOWN * 4].decode(errors="replace")
    cut = "..." if len(text) > STRAY_SHOWN or len(line) > STRAY_SHOWN * 4 else ""
    return (
        "".join(each if each.isprintable() else "\ufffd" for each in text.expandtabs().rstrip()[:STRAY_SHOWN])
        + cut
    )


def last_words(child: Child, stray: Stray | None = None) -> str:
    """Words for the end of a message: what it wrote to its standard error last, and first to its output that is no message."""
    tail = child.stderr_tail().strip()[-STDERR_SHOWN:]
    found = f", having said:\n{tail}\n" if tail else ""
    return found if stray is None else f"{found}{stray.said(child.unfinished())}"


def skipped(line: bytes) -> str:
    """The words of the diagnostic for a line that is no message."""
    return f"skipped a line of {len(line)} bytes: {line[:SHOWN_BYTES].decode(errors='replace')}"


def exited(doing: str, name: str, found: Exit, said: str = "") -> AgentExited:
    """The error of whoever waits for an agent that has ended. `said` are its last words, or what to do."""
    return AgentExited(
        f"cannot {doing}: {name!r} ended with {found}{said}", {"exitCode": found.code, "signal": found.signal}
    )


class Output:
    """`read` takes all of it, from the start on. When that is over the process has ended, or is made to: an agent that
    can say nothing any more is none. `over` is told then. Whoever makes it stops it."""

    def __init__(
        self,
        child: Child,
        read: Callable[[], Awaitable[None]],
        *,
        trouble: Callable[[DiagnosticCode, str], None],
        over: Callable[[LegationError], None] | None = None,
        stray: Stray | None = None,
    ) -> None:
        self._child = child
        self._trouble = trouble
        self._over = over
        self._mute = False  # it closed its output and did not end
        self.stray = stray or Stray()
        self._reading = asyncio.create_task(self._live(read), name=f"legation-output-{child.pid}")

    @property
    def ended(self) -> bool:
        return self._reading.done()

    async def wait(self) -> Exit:
        """Return when the process has ended and everything it said was handed on."""
        found = await self._child.wait()
        await asyncio.wait({self._reading})
        return found

    async def stop(self, grace: float) -> Exit:
        found = await self._child.stop(grace)
        await asyncio.wait({self._reading}, timeout=REST_LIMIT)
        if not self._reading.done():
            _log.warning("cannot keep the last output of %r: the store takes no more", self._child.name)
            self._reading.cancel()
            await asyncio.wait({self._reading})
        return found

    def said(self) -> str:
        return last_words(self._child, self.stray)

    async def end(self, doing: str) -> LegationError:
        """The error that says why that cannot be done any more, once the reading is over."""
        await asyncio.wait({self._reading})
        return await self._error(doing)

    async def _live(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except TimedOut as error:  # it does not take what it is written
            self._trouble(DiagnosticCode.AGENT_PROCESS_ERROR, error.message)
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits for an answer is told of the end
            _log.exception("cannot go on reading the output of %r", self._child.name)
        if not await self._child.ends_within(EXIT_LIMIT):
            self._mute = True
            if self._child.output_ended:
                self._trouble(DiagnosticCode.AGENT_PROCESS_ERROR, MUTE)
            with suppress(TimedOut):  # stuck in the kernel; whoever stops it is told
                await self._child.stop(grace=0)
        if self._over is not None:
            self._over(await self._error("go on"))

    async def _error(self, doing: str) -> LegationError:
        name = self._child.name
        if self._mute:
            return TransportClosed(
                f"cannot {doing}: {name!r} closed its output and went on{self.said()}; it was stopped: start it again"
            )
        found = await self._child.wait()
        error = exited(doing, name, found, self.said())
        error.stderr = self._child.stderr_tail()
        return error


async def all_said(child: Child) -> bytes:
    """Read a program that is only asked something to its end. Raises where it does not stop talking."""
    said: list[bytes] = []
    length = 0
    async for lines in child.lines():
        said += lines
        length += sum(map(len, lines)) + len(lines)
        if length > ANSWER_LIMIT:
            raise AgentError(
                f"cannot use {child.name!r}: asked what it is, it said more than {ANSWER_LIMIT} bytes; run it by hand"
            )
    return b"\n".join(said)


REQUESTS_AT_ONCE = 64  # of one agent; more are refused, so that a runaway cannot fill our memory
TOO_MANY = f"{REQUESTS_AT_ONCE} of its requests wait for an answer already, or one of them has the same id"
OUTBOX_LIMIT = 32 * 1024 * 1024  # bytes that may wait for an agent to read them before it is not read either
WRITE_TIMEOUT = 30.0  # seconds in which an agent must take what we write: its time
# Messages between two turns of the loop: some milliseconds, if each of them is as dear as they get.
SLICE_LINES = RUN_LINES
SLICE_BYTES = 64 * 1024  # that are read at once
LINE_BYTES = (
    SLICE_BYTES // SLICE_LINES
)  # for which a line counts as one more: what is long and dense is dear, too
OTHER_BYTES = 128  # the same of a line that is no update: some are walked through, token by token
FILE_BYTES = 16 * 1024 * 1024  # of a request to write a file
REQUEST_LINES = 8  # messages that a request of the agent counts for: whoever serves it begins at once
# Seconds for which an agent is read no further, for each byte of a request: whoever judges it, keeps it and shows it goes
# over all of it many times. Counted of requests that are longer than `outlines.DENSE_BYTES`.
REQUEST_REST = 0.025 / outlines.MOST_BYTES
# For which a line that no parser takes counts as one more: it is read in three ways before that is sure. Not more for short
# ones: turns that take next to no time keep threads from theirs (`SWITCH_S` of the server).
STRAY_BYTES = 16
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)  # no JSON can be made of it
_ASKS = frozenset({ClientMethod.REQUEST_PERMISSION, ClientMethod.ELICITATION_CREATE})  # of people
_OURS = frozenset(AgentMethod)  # whose answers are read here; others are for whoever asked, as they are

_T = TypeVar("_T")


class AgentListener(Protocol):
    """The receiver of an agent's messages. `updates` and `trouble` are called while reading and must not wait. No updates are
    a sign of life: the agent said something that is nobody's concern."""

    def updates(self, session_id: str, drafts: list[Draft]) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def notification(self, method: str, params: bytes) -> None: ...

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        """The result, later. What must keep its place among the updates is done before this returns.
        Raise `RpcFault`, now or later, for an error of one's choice."""

    async def keep(self, session_id: str, draft: Draft) -> Draft:
        """The same, with its long text stored ahead of it if that can be."""

    async def room(self) -> None:
        """Returns when more may be read: the back-pressure on the agent."""


class RpcFault(Exception):
    """The error with which a request of the agent is answered."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = RpcError(code, message)


def read_params(params: bytes, shape: type[_T]) -> _T:
    """Read what a request of the agent says. `RpcFault` where it is none of that shape."""
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(params, type=shape)  # what it does not ask for is skipped, not made
    try:
        return msgspec.convert(jsontext.read(params), shape)
    except jsontext.READ_ERRORS as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, str(error)) from None


class AgentRefused(AgentError):
    """The agent answered a request of ours with an error; `error` is what it said."""

    def __init__(
        self, method: str, error: RpcError, advice: str = "", data: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(
            f"cannot complete {method}: the agent answered with error {error.code}: {error.message}{advice}",
            {"code": error.code, "message": error.message, **(data or {})},
        )
        self.method = method
        self.error = error


def raw_answer(method: str, raw: bytes | RpcError) -> bytes | AgentError:
    return AgentRefused(method, raw) if isinstance(raw, RpcError) else raw


class RpcPeer:
    def __init__(self, child: Child, listener: AgentListener, stray: Stray | None = None) -> None:
        self._child = child
        self._strayed = stray or Stray()
        self._listener = listener
        self.calls = OutgoingCalls(child, self._cancel, jsonrpc="2.0")
        self._answering: dict[bytes, asyncio.Future[object]] = {}
        self._updates = UpdateReader()
        self._handled = 0  # messages since others had their turn
        self._asked = 0  # bytes of long requests since then

    async def run(self) -> None:
        """Read until the agent's output ends; then whoever waits for an answer learns that none will come."""
        try:
            with outlines.reader.in_use():
                while blocks := await self._child.blocks():
                    for piece in pieces(blocks, SLICE_BYTES):
                        await self._take(piece)
                        await self._listener.room()
        finally:
            self.calls.close()
            for coming in self._answering.values():
                coming.cancel()

    async def call(
        self, method: str, params: object, *, timeout: float | None = None, on_answer: OnAnswer[bytes] = None
    ) -> bytes:
        """Make a call; its raw result. A call given up is cancelled at the agent too."""
        return await self.calls.ask(method, params, partial(raw_answer, method), timeout, on_answer)

    async def notify(self, method: str, params: object) -> None:
        """Send a notification, without waiting for the agent to read it: it is small, and the agent may be stuck."""
        self.calls.write(method=method, params=params)

    def _cancel(self, call: OutgoingCall) -> None:
        with suppress(LegationError):  # the agent may be gone, which is as good
            self.calls.write(method=CANCEL_REQUEST, params={"requestId": call.number})

    async def _take(self, block: bytes) -> None:
        """The hot path: a run of updates of one session goes on as one list."""
        if len(block) > outlines.DENSE_BYTES and outlines.is_heavy(block):
            await self._take_heavy(block)
            await self._until_read()
            return
        for found in self._updates.read(block):
            if not isinstance(found, bytes):
                session, drafts = found
                self._listener.updates(session, drafts)
                await self._rest_after(len(drafts))
            elif len(found) > outlines.ODD_BYTES and is_odd(found):
                await self._take_heavy(found)
                await self._until_read()
            else:
                self._take_other(found)
                await self._rest_after(1 + len(found) // OTHER_BYTES)
                await self._until_read()
        await self._rest_after(len(block) // LINE_BYTES)

    async def _rest_after(self, messages: int) -> None:
        """Let others have their turn (INV-R4)."""
        self._handled += messages
        if self._handled >= SLICE_LINES:
            rest = self._asked * REQUEST_REST
            self._handled = self._asked = 0
            await asyncio.sleep(rest)

    async def _until_read(self) -> None:
        """Wait for an agent that does not read our answers: no more is read once it has asked for something."""
        if self._child.unsent > OUTBOX_LIMIT:
            await self._child.drain(WRITE_TIMEOUT)

    async def _take_heavy(self, line: bytes) -> None:
        found = await outlines.reader.read(line)
        if found is None:
            self._stray(line)
            return
        if found.part[1] > MAX_LINE:  # no UTF-8: U+FFFD is longer than what it stands for
            self._listener.trouble(
                DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped a line of {len(line)} bytes, which is no UTF-8"
            )
            return
        if found.session is not None:
            await self._take_heavy_update(found.session, found, line)
        elif not found.method:
            await self._take_heavy_response(found, line)
        elif found.has_id:
            await self._take_heavy_request(found, line)
        elif outlines.is_heavy(line):
            self._listener.trouble(
                DiagnosticCode.AGENT_LINE_TOO_LONG,
                f"skipped a notification, {found.method[:SHOWN_BYTES]!r}: {_too_much(len(line))}",
            )
        elif found.method == CANCEL_REQUEST:
            self._take_cancel(await outlines.part(line, found))
        else:
            self._listener.notification(found.method, await outlines.part(line, found))

    async def _take_heavy_update(self, session: str, found: outlines.Outline, line: bytes) -> None:
        digest = found.digest.encode() if outlines.is_heavy(line) else b""  # else it can be read as it is
        if digest and not found.whole:
            what = f"a line of {len(line)} bytes is no UTF-8: it is kept with U+FFFD where it is none"
            self._listener.trouble(DiagnosticCode.AGENT_STRAY_LINE, what)
        native = b"" if digest or found.whole else line
        draft = Draft(found.type, await outlines.part(line, found), native, found.span, digest)
        if len(draft.raw) > outlines.MOST_BYTES:
            draft = await self._listener.keep(session, draft)
        self._listener.updates(session, [draft])

    async def _take_heavy_response(self, found: outlines.Outline, line: bytes) -> None:
        """Each copy of a long one takes a while: of an answer that nobody waits for there is none."""
        raw_id = found.id.encode()
        method = self.calls.method(id_key(raw_id))
        is_read_here = method is None or method in _OURS
        result = found.digest.encode() if is_read_here else await outlines.part(line, found)
        self._take_response(raw_id, result, found.error.encode())

    async def _take_heavy_request(self, found: outlines.Outline, line: bytes) -> None:
        raw_id = await outlines.id_of(line, found)
        if not outlines.is_heavy(line) or (found.id_part is None and _is_file(found.method, line)):
            self._take_request(found.method, raw_id, await outlines.part(line, found))
        else:
            self._refuse(found.method, raw_id, len(line))

    def _refuse(self, method: str, raw_id: bytes, size: int) -> None:
        """Refuse a request that nobody could be shown. To a permission that is a no: some agents hang after an error."""
        why = _too_much(size)
        if method == ClientMethod.REQUEST_PERMISSION:
            what = f"the agent asked for a permission, was told `cancelled`, and nobody was asked: {why}"
            self._listener.trouble(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what)
            answer: object = RequestPermissionResponse(outcome=CancelledOutcome())
        else:
            self._listener.trouble(
                DiagnosticCode.AGENT_LINE_TOO_LONG,
                f"refused a request, {method[:SHOWN_BYTES]!r}: {why}",
            )
            answer = RpcError(ErrorCode.INVALID_REQUEST, f"cannot serve this request: {why}; send less")
        self._write_answer(raw_id, answer)

    def _take_other(self, line: bytes) -> None:
        text = line.decode(errors="replace").encode()
        message = read_message(text)
        if message is None or not (message.method or message.id):
            self._stray(line)
        elif message.method == "session/update" and not message.id:
            native = line if text != line else b""
            odd = read_odd_update(bytes(message.params), native)
            if odd:
                self._listener.updates(odd[0], [odd[1]])
            else:
                self._stray(line)
        elif not message.method:
            self._take_response(bytes(message.id), bytes(message.result), bytes(message.error))
        elif message.id:
            self._take_request(message.method, bytes(message.id), bytes(message.params))
        elif message.method == CANCEL_REQUEST:
            self._take_cancel(bytes(message.params))
        else:
            self._listener.notification(message.method, bytes(message.params))

    def _stray(self, line: bytes) -> None:
        self._handled += len(line) // STRAY_BYTES
        self._strayed.add(line)
        self._listener.trouble(DiagnosticCode.AGENT_STRAY_LINE, skipped(line))

    def _take_response(self, raw_id: bytes, result: bytes, error: bytes) -> None:
        odd = self.calls.take(id_key(raw_id), read_error(error) if error else result or b"null")
        if odd:
            self._listener.trouble(DiagnosticCode.AGENT_LATE_RESPONSE, odd)
        else:
            self._strayed.settle()

    def _take_request(self, method: str, raw_id: bytes, params: bytes) -> None:
        self._handled += REQUEST_LINES - 1
        self._asked += len(params) if len(params) > outlines.DENSE_BYTES else 0
        key = id_key(raw_id)
        if key in self._answering or len(self._answering) >= REQUESTS_AT_ONCE:
            if method in _ASKS:
                call = read_call_id(params)
                about = f" for call {call[:SHOWN_BYTES]!r}" if call else ""
                what = f"the agent asked {method!r}{about}, was refused, and nobody was asked: {TOO_MANY}"
                self._listener.trouble(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what)
            refusal = RpcError(
                ErrorCode.INVALID_REQUEST, "too many requests, or one with this id is under way"
            )
            self._write_answer(raw_id, refusal)
            return
        try:
            coming = asyncio.ensure_future(self._listener.request(method, params))
        except Exception as error:  # noqa: BLE001 - nothing an agent asks may end the connection
            self._write_answer(raw_id, _fault(method, error))
            return
        self._answering[key] = coming
        coming.add_done_callback(partial(self._answer, raw_id, method))

    def _take_cancel(self, params: bytes) -> None:
        coming = self._answering.get(id_key(read_cancelled_id(params)))
        if coming:
            coming.cancel()

    def _answer(self, raw_id: bytes, method: str, coming: asyncio.Future[object]) -> None:
        """Write the answer when it is there; also for a request that was cancelled before anybody looked at it."""
        del self._answering[id_key(raw_id)]
        self._write_answer(raw_id, answer_to(method, coming))

    def _write_answer(self, raw_id: bytes, answer: object) -> None:
        part = b"error" if isinstance(answer, RpcError) else b"result"
        try:
            text = jsontext.write(answer)
        except UNWRITABLE as error:
            part, text = b"error", jsontext.write(_fault("a request", error))
        with suppress(LegationError):  # the agent went away with its question
            if len(raw_id) <= outlines.NAME_BYTES:
                self._child.write(b'{"jsonrpc":"2.0","id":%b,"%b":%b}\n' % (raw_id, part, text))
                return
            self._child.write(b'{"jsonrpc":"2.0","id":')
            self._child.write(raw_id)  # as it is: each copy of a long one takes a while
            self._child.write(b',"%b":%b}\n' % (part, text))


def _too_much(size: int) -> str:
    return (
        f"it is {size} bytes long, or of more than {outlines.MOST_MARKS} values, which nobody could be shown"
    )


def _is_file(method: str, line: bytes) -> bool:
    """A text to be written, which is one value, however long."""
    return method == ClientMethod.WRITE_TEXT_FILE and len(line) <= FILE_BYTES


def answer_to(method: str, coming: asyncio.Future[object]) -> object:
    """Return the answer to a request that is over; an `RpcError` where it failed, or was cancelled before."""
    if coming.cancelled():
        return RpcError(ErrorCode.REQUEST_CANCELLED, "the request was cancelled")
    error = coming.exception()
    return coming.result() if error is None else _fault(method, error)


def _fault(method: str, error: BaseException) -> RpcError:
    if isinstance(error, RpcFault):
        return error.error
    _log.error("cannot answer %s", method, exc_info=error)
    return RpcError(ErrorCode.INTERNAL_ERROR, f"cannot answer {method}: {type(error).__name__}")


# Our requests: those that wait for an answer, and those given up whose answer may still come.


GIVEN_UP_KEPT = 1000  # an agent need not ever answer what we gave up


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingCall:
    """`answer` is None where there will be none."""

    number: int
    method: str
    on_answer: Callable[[bytes | RpcError], None]
    answer: asyncio.Future[bytes | RpcError | None]

    @property
    def answered(self) -> bool:
        return self.answer.done() and not self.answer.cancelled()


class OutgoingCalls:
    """Our requests over the pipes of one agent. `on_given_up` is told of one whose answer nobody waits for any more; `head`
    are the members that every message begins with."""

    def __init__(
        self, child: Child, on_given_up: Callable[[OutgoingCall], None] = lambda _: None, **head: object
    ) -> None:
        self._child = child
        self._on_given_up = on_given_up
        self._head = head
        self._closed = False
        self._last = 0
        self._open: dict[bytes, OutgoingCall] = {}
        self._given_up: dict[bytes, str] = {}  # id -> method, oldest first

    async def ask(
        self,
        method: str,
        params: object,
        read: Callable[[bytes | RpcError], _T | AgentError],
        timeout: float | None,
        on_answer: OnAnswer[_T] = None,
    ) -> _T:
        """Make a call, written before anything is waited for. Its answer is read once, in its place among the updates, where
        `on_answer` is called with what is returned or raised later; an answer that it has seen counts, though time run out
        meanwhile. Raises `TransportClosed` where none will come."""
        found: list[_T | AgentError] = []

        def answered(raw: bytes | RpcError) -> None:
            found.append(read(raw))
            if on_answer:
                on_answer(found[0])

        self._last += 1
        call = OutgoingCall(self._last, method, answered, asyncio.get_running_loop().create_future())
        key = b"%d" % call.number
        self._open[key] = call
        try:
            self.write(id=call.number, method=method, params=params)
            async with asyncio.timeout(timeout):
                await self._child.drain(WRITE_TIMEOUT)
                await call.answer
        except TimeoutError:
            if not call.answered:
                self._give_up(key, call)
                what = f"cannot complete {method}: the agent did not answer within {timeout} s"
                raise TimedOut(what) from None
        except (asyncio.CancelledError, LegationError):
            if not call.answered:
                self._give_up(key, call)
            raise
        finally:
            del self._open[key]
        if not found:
            raise TransportClosed(f"cannot complete {method}: the agent's output has ended; look at its exit")
        if isinstance(found[0], AgentError):
            raise found[0]
        return found[0]

    def write(self, **members: object) -> None:
        if self._closed:
            what = members["method"]
            raise TransportClosed(f"cannot send {what}: the agent's output has ended; start it again")
        self._child.write(jsontext.write({**self._head, **members}) + b"\n")

    def _give_up(self, key: bytes, call: OutgoingCall) -> None:
        """The agent still owes an answer, and that it was cancelled is then the one to expect."""
        if self._closed:
            return
        if len(self._given_up) >= GIVEN_UP_KEPT:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[key] = call.method
        self._on_given_up(call)

    def method(self, key: bytes) -> str | None:
        """The method of the call that waits for an answer with that id."""
        call = self._open.get(key)
        return call.method if call else None

    def take(self, key: bytes, answer: bytes | RpcError) -> str | None:
        """Hand the answer to whoever waits for it. Says what is odd about one that nobody waits for."""
        call = self._open.get(key)
        if call and not call.answer.done():
            call.answer.set_result(answer)
            call.on_answer(answer)
            return None
        method = self._given_up.pop(key, None)
        if method is None:
            return "an answer came that nobody waits for"
        if isinstance(answer, RpcError) and answer.code == ErrorCode.REQUEST_CANCELLED:
            return None
        return f"the answer to {method} came after it was given up"

    def close(self) -> None:
        """No answer will come any more, and nothing is sent."""
        self._closed = True
        for call in self._open.values():
            if not call.answer.done():
                call.answer.set_result(None)
