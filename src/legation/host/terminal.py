"""One terminal: a command that has been started, what it has written, and how it ended."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Self

from legation.host.tail import OutputTail
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire.acp.reverse import TerminalExitStatus, TerminalOutputResponse


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the command writes to stderr counts; its stdout should go there too, for the two to keep their order."""

    child: Child
    tail: OutputTail
    ended: asyncio.Task[Exit]

    @classmethod
    async def start(cls, launcher: Launcher, command: Command, output_limit: int) -> Self:
        tail = OutputTail(output_limit)
        child = await launcher.spawn(command, _raw(tail))
        child.close_stdin()
        ended = asyncio.create_task(child.wait(), name=f"legation-terminal-{child.pid}")
        return cls(child, tail, ended)

    def output(self) -> TerminalOutputResponse:
        ended = self.ended.done()
        self.child.stderr_tail()  # hands the tail what has come since
        text, truncated = self.tail.text(ended=ended)
        status = _status(self.ended.result()) if ended else None
        return TerminalOutputResponse(output=text, truncated=truncated, exit_status=status)

    async def wait(self) -> TerminalExitStatus:
        """For as long as the command runs: it is the agent who gives up, or kills it."""
        return _status(await asyncio.shield(self.ended))

    async def stop(self) -> None:
        """Its whole tree; bounded by the ladder of `proc`."""
        if not self.ended.done():
            await self.child.stop(grace=0.0)  # its input has been closed since its start
            await asyncio.shield(self.ended)


def _raw(tail: OutputTail) -> Pipes:
    """Lines would not do: a terminal shows a line before it is finished, however long it is. What is redacted
    to nothing in stderr's buffer is handed over once, as it came."""

    def take(data: bytes) -> bytes:
        tail.add(data)
        return b""

    return Pipes(redact=take)


def _status(found: Exit) -> TerminalExitStatus:
    if found.signal is None:
        return TerminalExitStatus(exit_code=found.code)
    return TerminalExitStatus(signal=_signal_name(found.signal))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal other than the first and the last
        return f"SIG{number}"
