"""A launcher whose children play recordings: how a driver is tested without its agent.

A recorded `in` line waits until the driver has written one of its kind; then the `out` lines behind it are said, up to
the next. Ids that the driver chose stand in what is said in place of those in the recording.

INV-R4  Nothing is said before what it answers was written.
INV-R5  A driver that does not write what the recording waits for fails the test, by name, within a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from signal import SIGTERM
from typing import Final

from legation.proc import Child, Command, Exit, Pipes
from legation.testing.recorder import (
    BY_ITSELF,
    OUTPUT_ENDED,
    STDIN_CLOSED,
    STOPPED,
    Correspondence,
    RecordedEntry,
    in_blocks,
    kind_of,
    lines_of,
    message_of,
    read_recording,
)

WITHIN: Final = 10.0  # seconds for the driver to write the next line: the driver's time
_ENDS: Final = (STDIN_CLOSED, STOPPED, BY_ITSELF)
NO_PID: Final = 2**30  # beyond what any kernel gives: whoever signals it reaches nobody


class ReplayMismatch(AssertionError):
    """The driver wrote something else than the recording foresaw."""


class Replay:
    """Gives the recordings out in their order, one a child. `places` puts folders in the place of their words, such
    as `{"/w": str(folder)}`. At the end of the test, `check` it."""

    def __init__(
        self, *recordings: Path, places: Mapping[str, str] | None = None, within: float = WITHIN
    ) -> None:
        self._left = [(path.stem, read_recording(path)) for path in recordings]
        self._places = dict(places or {})
        self._within = within
        self.commands: list[Command] = []
        self.children: list[ReplayedChild] = []

    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child:
        if not self._left:
            raise ReplayMismatch(f"cannot start {command.name!r}: there is no recording left for it")
        name, entries = self._left.pop(0)
        child = ReplayedChild(command, pipes or Pipes(), name, entries, self._places, self._within)
        self.commands.append(command)
        self.children.append(child)
        return child

    def check(self) -> None:
        problems = [child.problem for child in self.children if child.problem]
        problems += [f"{name} was never played" for name, _ in self._left]
        if problems:
            raise ReplayMismatch("cannot accept the replay: " + "; ".join(problems))


class ReplayedChild(Child):
    """`written` is what the driver wrote, `unasked` what of it the recording has no place for."""

    def __init__(
        self,
        command: Command,
        pipes: Pipes,
        recording: str,
        entries: tuple[RecordedEntry, ...],
        places: Mapping[str, str],
        within: float,
    ) -> None:
        self.name, self.pid, self.started = command.name, NO_PID, 0
        self.survivors = ()
        self.written: list[object] = []
        self.problem = ""
        self._pipes = pipes
        self._recording = recording
        self._entries = entries
        self._within = within
        self._waiting: list[object] = []  # written, and not yet met by the recording
        self._unfinished = b""
        self._ids = Correspondence(places)
        self._said: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
        self._errors: list[bytes] = []
        self._blocks = self._hear()
        self._change = asyncio.Event()
        self._closed = self._stopped = False
        self._life = asyncio.create_task(self._play(), name=f"legation-replay-{recording}")

    @property
    def unasked(self) -> tuple[object, ...]:
        return tuple(self._waiting)

    # The child that the driver sees.

    async def _hear(self) -> AsyncIterator[list[bytes]]:
        while (lines := await self._said.get()) is not None:
            yield lines
        self._said.put_nowait(None)  # for whoever asks again

    def lines(self) -> AsyncIterator[list[bytes]]:
        return self._hear()

    def forget(self) -> None:
        """Do nothing: no file has how it ended."""

    async def blocks(self) -> list[bytes]:
        return await in_blocks(self._blocks)

    @property
    def buffered(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        messages = [message_of(line) for line in lines]
        self.written += messages
        self._waiting += messages
        self._change.set()

    @property
    def unsent(self) -> int:
        return 0

    async def drain(self, timeout: float | None = None) -> None:
        """Return: all that is written is taken at once."""

    def close_stdin(self) -> None:
        if self._unfinished:
            self.write(b"\n")
        self._closed = True
        self._change.set()

    def stderr_tail(self) -> str:
        return b"\n".join(self._errors).decode("utf-8", "replace")

    @property
    def output_ended(self) -> bool:
        return self._life.done()

    def unfinished(self) -> bytes:
        return b""

    async def ends_within(self, seconds: float) -> bool:
        await asyncio.wait({self._life}, timeout=seconds)
        return self._life.done()

    async def wait(self) -> Exit:
        return await asyncio.shield(self._life)

    async def stop(self, grace: float = 0.0) -> Exit:  # noqa: ARG002 - it obeys at once
        self._closed = self._stopped = True
        self._change.set()
        return await self.wait()

    # The recording.

    async def _play(self) -> Exit:
        try:
            return await self._play_on()
        finally:
            self._said.put_nowait(None)

    async def _play_on(self) -> Exit:
        for entry in self._entries:
            match entry.dir:
                case "in" if not await self._met(entry.msg):
                    return Exit(None, SIGTERM)
                case "out":
                    self._say(entry.msg)
                case "err":
                    self._complain(entry.msg)
                case "note" if entry.msg == OUTPUT_ENDED:
                    self._said.put_nowait(None)
                case "note" if entry.msg in (STDIN_CLOSED, STOPPED):
                    await self._until_left(stopped=entry.msg == STOPPED)
                case "exit":
                    return await self._exit(entry.msg)
        await self._until_left(stopped=False)
        return Exit(0, None)

    async def _met(self, expected: object) -> bool:
        """Wait for a line of its kind, and tell whether the driver wrote one before it left."""
        try:
            async with asyncio.timeout(self._within):
                while (found := self._taken(expected)) is None:
                    if self._stopped:
                        return False
                    await self._changed()
        except TimeoutError:
            self.problem = f"{self._recording} waited in vain for {' '.join(kind_of(expected))}"
            return False
        self._ids.learn(expected, found)
        return True

    def _taken(self, expected: object) -> object | None:
        for place, written in enumerate(self._waiting):
            if kind_of(written) == kind_of(expected):
                return self._waiting.pop(place)
        return None

    def _say(self, message: object) -> None:
        lines = [self._pipes.redact(line) for line in lines_of([self._ids.put(message)])]
        self._said.put_nowait(lines)

    def _complain(self, message: object) -> None:
        lines = [self._pipes.redact(line) for line in lines_of([self._ids.put(message)])]
        self._errors += lines
        if self._pipes.on_stderr is not None:
            self._pipes.on_stderr(lines)

    async def _exit(self, message: object) -> Exit:
        """One that ended well after a conversation was left, unless its recording says otherwise."""
        code = message.get("rc") if isinstance(message, Mapping) else None
        told = any(each.dir == "note" and each.msg in _ENDS for each in self._entries)
        if code == 0 and not told and any(each.dir == "in" for each in self._entries):
            await self._until_left(stopped=False)
        if not isinstance(code, int):
            return Exit(None, None)
        return Exit(code, None) if code >= 0 else Exit(None, -code)

    async def _until_left(self, *, stopped: bool) -> None:
        """Wait until the child is left, not longer than a test lasts: whoever holds it stops it."""
        while not (self._stopped or (self._closed and not stopped)):
            await self._changed()

    async def _changed(self) -> None:
        self._change.clear()
        await self._change.wait()
