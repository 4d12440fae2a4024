"""Output of an agent's process, read to its end by one task; and that end, told in words."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from legation.errors import AgentError, AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Exit
from legation.wire.event_types import DiagnosticCode

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
