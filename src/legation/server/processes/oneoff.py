"""A command that is run to its end, or to the end of its time, and what it wrote.

INV-P7  However it ends, also when its caller has gone, nothing of its process tree is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from legation.clock import Clock
from legation.proc import Exit, Launcher
from legation.server.processes.output import OutputReader
from legation.server.processes.process import signal_name
from legation.server.processes.starting import Order, begin
from legation.wire.api.processes import ProcessRunResult

Gone = Callable[[], Awaitable[None]]
"""Returns when nobody waits for the result any more."""


class Kept:
    """The first bytes of a stream; the rest is taken and let go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()
        self.truncated = False

    def take(self, data: bytes) -> None:
        room = self._most - len(self._data)
        self._data += data[:room]
        self.truncated = self.truncated or len(data) > room

    def text(self) -> str:
        if not self.truncated:
            return self._data.decode(errors="replace")
        # Cut in the middle of a character, its beginning says nothing.
        for cut in range(4):
            with suppress(UnicodeDecodeError):
                return self._data[: len(self._data) - cut].decode()
        return self._data.decode(errors="replace")


async def run_once(
    launcher: Launcher, order: Order, *, seconds: float, most: int, gone: Gone, clock: Clock
) -> ProcessRunResult:
    began = clock.monotonic()
    leaving = asyncio.ensure_future(gone())
    try:
        begun = await begin(launcher, order)
        begun.child.close_stdin()
        out, err = Kept(most), Kept(most)
        readers = [
            OutputReader(each, (out if stream == "stdout" else err).take) for stream, each in begun.outputs
        ]
        ending = asyncio.ensure_future(begun.child.wait())
        try:
            await asyncio.wait({ending, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not ending.done()
        finally:
            await begun.child.stop(grace=0.0)
            found: Exit = await ending
            for reader in readers:
                reader.finish()
    finally:
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
    return ProcessRunResult(
        exit_code=None if timed_out else found.code,
        exit_signal=None if timed_out else signal_name(found),
        timed_out=timed_out,
        stdout=out.text(),
        stderr=err.text(),
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        duration_ms=round((clock.monotonic() - began) * 1000),
    )
