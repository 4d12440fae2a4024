"""A running child: its lines, its input, its end.

INV-1: however the child ends (by itself, by `stop`, by a cancelled `stop`, by the end of the event loop), its whole
tree is killed and reaped, its descriptors are closed and its registry file is removed.
INV-2: every wait on the way down is bounded: close stdin, TERM the group, KILL the group, sweep, reap, drain.
INV-3: what the child had written is delivered, even if the reader was behind.

A detached child is the exception to INV-1 at the end of the event loop: it lives on, and is released for a later owner.
Its process is its keeper (`legation.proc.keeper`): what ends by itself, or by a signal to all but the keeper, is on file
with its exit. That file, unlike others, stays until `forget`: an owner killed before it took note has a successor.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

import msgspec

from legation.errors import InvalidParams, TimedOut, Unavailable
from legation.proc.lines import (
    BUFFER_LIMIT,
    MAX_LINE,
    ErrorTail,
    InputWriter,
    LineReader,
    LineSplitter,
    Redact,
    hand_over,
    ignored,
    unchanged,
)
from legation.proc.tree import (
    SWEEP_LIMIT,
    SWEEP_PAUSE,
    Look,
    Process,
    ProcessTree,
    process,
    release_mark,
    send,
    strike,
)

# How a child ended, and the moment it does, without taking its exit code from the kernel.
#
# Until the code is taken the pid stays the child's own, so that its group can be signalled and its tree swept without
# ever meeting a later process of the same number.


class Exit(msgspec.Struct, frozen=True):
    """A code, or the signal that ended it, or neither if somebody else took the exit code first."""

    code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:  # a real-time signal other than the first and the last
            return f"SIG{self.signal}"

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal} ({self.signal_name})"
        return "unknown exit" if self.code is None else f"exit code {self.code}"


def peek(pid: int, *, block: bool = False) -> Exit | None:
    """Look how the child ended, and leave that for others to read again; None while it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG))
    except ChildProcessError:
        return Exit(None, None)
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Exit(found.si_status, None)
    return Exit(None, found.si_status)


class ExitWatch:
    """`ended` gets the exit as soon as there is one: from a pidfd, or from a thread where there are none. `peek` is
    another way to look than at a child of ours; it never blocks."""

    def __init__(self, pid: int, peek: Callable[[], Exit | None] | None = None) -> None:
        self._pid = pid
        self._peek = peek
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = None
        self.ended: asyncio.Future[Exit] = self._loop.create_future()
        try:
            self._descriptor = os.pidfd_open(pid)
            self._loop.add_reader(self._descriptor, self._look)
        except OSError:
            threading.Thread(target=self._wait, name=f"legation-exit-{pid}", daemon=True).start()
        else:
            if peek is not None:
                self._look()  # the number may have been another's already when we opened it

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _look(self) -> None:
        found = peek(self._pid) if self._peek is None else self._peek()
        if found is not None:
            self._resolve(found)
            self.close()

    def _wait(self) -> None:
        found = self._blocking()
        if found is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._resolve, found)
        except RuntimeError:  # the loop has been closed, nobody waits any more
            return

    def _blocking(self) -> Exit | None:
        if self._peek is None:
            return peek(self._pid, block=True)
        while (found := self._peek()) is None and not self._loop.is_closed():
            time.sleep(_PEEK_PAUSE)
        return found

    def _resolve(self, found: Exit) -> None:
        if not self.ended.done():
            self.ended.set_result(found)


# A child as the spawner thread hands it over: it runs, and nobody looks after it yet.

# The kernel's time to carry out KILL; a process stuck in the kernel takes longer.
KILL_LIMIT: Final = 5.0
_KILL_PAUSE: Final = 0.002
# Between looks at a process that is no child of ours, where the kernel has no pidfd.
_PEEK_PAUSE: Final = 0.1


class DetachedRecord(msgspec.Struct, frozen=True):
    """The file of a detached child: how it ended, as its keeper wrote, and the way to leave it to a later owner."""

    ended: Callable[[], Exit | None]
    release: Callable[[], None]


class StartedChild(msgspec.Struct, frozen=True):
    name: str
    process: subprocess.Popen[bytes] | None  # None if it was adopted
    tree: ProcessTree
    mark: int | None
    unregister: Callable[[], None]
    record: DetachedRecord | None = None  # of a detached one
    status: int | None = None  # where its keeper says that it has started it; closed by whoever hears that

    def peek(self) -> Exit | None:
        """Look how it ended; None while it runs."""
        if self.record is None:
            return peek(self.tree.pid)
        found = process(self.tree.pid)
        if found is not None and found.started == self.tree.started and not found.dead:
            return None
        # A keeper that was itself killed leaves none.
        return self.record.ended() or Exit(None, None)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; of a detached child to all but its keeper, and KILL to its tree."""
        if self.record is not None:
            for each in self.tree.members(Look()):
                if number is signal.SIGKILL or each.group == self.tree.pid:
                    send(each, number)
            return
        assert self.process is not None
        if self.process.returncode is not None or peek(self.tree.pid) == Exit(None, None):
            return  # its exit code was taken, by us or another: the number may be another group's by now
        try:
            os.killpg(self.tree.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def kill(self) -> None:
        """The whole tree, without an event loop; blocks, for milliseconds unless something is stuck."""
        self.tree.observe()
        if self.record is not None:
            self.end_keeper()  # first, or it might start the child yet
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + KILL_LIMIT
        while self.peek() is None and time.monotonic() < deadline:
            time.sleep(_KILL_PAUSE)
        self.tree.sweep()

    def end_keeper(self) -> None:
        found = process(self.tree.pid)
        if found is not None and found.started == self.tree.started:
            send(found, signal.SIGKILL)

    def discard(self) -> None:
        """Undo the start, or the adoption; blocks."""
        if self.process is None:
            self.release()
            return
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.forget()
        self.unregister()

    def release(self) -> None:
        """Leave a detached child to a later owner."""
        if self.process is not None and self.process.poll() is None:
            self.process.returncode = 0  # nobody will wait for it, and Python need not warn of that
        if self.record is not None:
            self.record.release()
        release_mark(self.mark)

    def forget(self) -> None:
        """After its end: take the exit code and give back what was set aside for it."""
        if self.process is not None:
            self.process.poll()
        else:
            self.tree.reap()  # the keeper of an owner below us became our child when that one died
        release_mark(self.mark)
        if self.record is None:
            self.unregister()


# One thread that starts every child, looks at all processes for whoever asks, and never ends.
#
# The kernel delivers "your parent has died" (PR_SET_PDEATHSIG, which jails rely on) when the *thread* that started the
# child ends: a worker thread of a pool would take its children along. The event loop, for its part, must not wait for
# a fork, nor for a look at hundreds of processes. Looks that are asked for while one is under way are the next one,
# together: who stops a hundred children at once looks a few times, not a hundred.

T = TypeVar("T")
Job = Callable[[], None]


class Spawner:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="legation-spawner", daemon=True).start()

        self._asked_lock = threading.Lock()
        self._asked: list[tuple[ProcessTree, bool, Future[list[Process]]]] = []

    def observe(self, tree: ProcessTree) -> Future[list[Process]]:
        """Have the tree remember who belongs to it now."""
        return self._ask(tree, kill=False)

    def kill(self, tree: ProcessTree) -> Future[list[Process]]:
        """One round of `ProcessTree.kill`."""
        return self._ask(tree, kill=True)

    def _ask(self, tree: ProcessTree, *, kill: bool) -> Future[list[Process]]:
        future: Future[list[Process]] = Future()
        with self._asked_lock:
            self._asked.append((tree, kill, future))
            first = len(self._asked) == 1
        if first:
            self._jobs.put(self._look)
        return future

    def _look(self) -> None:
        with self._asked_lock:
            asked, self._asked = self._asked, []
        wanted = [each for each in asked if each[2].set_running_or_notify_cancel()]
        try:
            look = Look()
            strike([tree for tree, kill, _ in wanted if kill], look)
            for tree, kill, future in wanted:
                if kill:
                    future.set_result(tree.kill(look))
                else:
                    tree.observe(look)
                    future.set_result([])
        except BaseException as error:  # noqa: BLE001  the task boundary: it is raised where it is awaited
            for _, _, future in wanted:
                if not future.done():
                    future.set_exception(error)

    def submit(self, start: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = start()
            except BaseException as error:  # noqa: BLE001  the task boundary: it is raised where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while True:
            self._jobs.get()()


_lock = threading.Lock()
_spawner: Spawner | None = None


def spawner() -> Spawner:
    global _spawner
    with _lock:
        if _spawner is None:
            _spawner = Spawner()
        return _spawner


def _forget() -> None:
    # A forked copy of this process has no such thread, and perhaps a lock that nobody will release.
    global _spawner, _lock
    _spawner = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


log = logging.getLogger(__name__)

PIPE_SIZE: Final = 1024 * 1024
# The child's time to finish its work once its input is closed; `stop` may give another.
GRACE: Final = 5.0
# The child's time to obey TERM.
TERM_GRACE: Final = 2.0
# The same two where whoever started it is ending itself and has promised to be gone within a second.
HURRIED_GRACE: Final = 0.2
HURRIED_TERM_GRACE: Final = 0.2
# The keeper's time to write how a killed child ended, and to end what is left.
KEEPER_GRACE: Final = 10.0
# The time of what has escaped the sweep and holds the pipes open after the child's exit.
LINGER: Final = 1.0
# The loop's time to close our ends of the pipes.
CLOSE_LIMIT: Final = 1.0
# How long a daemon that has ended by itself may stay a zombie of ours.
ADOPTED_PERIOD: Final = 30.0
# The spawner thread's time for one look at the processes; a look that is late must not hold up the ladder.
LOOK_LIMIT: Final = 2.0


class Pipes(msgspec.Struct, frozen=True):
    """The way in which a child's output is read. `redact` is applied once to each block of lines, before anybody sees it."""

    max_line: int = MAX_LINE
    buffer_limit: int = BUFFER_LIMIT
    redact: Redact = unchanged
    on_line_too_long: Callable[[int], None] = ignored
    on_stderr: Callable[[list[bytes]], None] | None = None


class Child:
    """Use it as `async with`, or call `stop`: either way nothing of it is left. Made by a `Launcher`."""

    def __init__(self, started: StartedChild, pipes: Pipes) -> None:
        self.name = started.name
        self.pid = started.tree.pid
        self.started = started.tree.started
        self.survivors: tuple[int, ...] = ()  # pids that the sweep could not kill: another user's, or stuck
        self._own = started
        splitter = LineSplitter(
            max_line=pipes.max_line, redact=pipes.redact, on_line_too_long=pipes.on_line_too_long
        )
        self._stdin = InputWriter(started.name)
        self._stdout = LineReader(splitter, pipes.buffer_limit)
        self._stderr = ErrorTail(pipes.redact, pipes.on_stderr)
        self.blocks = self._stdout.blocks
        self.write, self.drain = self._stdin.write, self._stdin.drain
        self._pipe_size = PIPE_SIZE
        self._ladder: asyncio.Task[Exit] | None = None

    @classmethod
    async def connect(cls, started: StartedChild, pipes: Pipes) -> Child:
        """Take over a child that was just started, or leave nothing of it."""
        child = cls(started, pipes)
        try:
            await child._connect_pipes()
        except BaseException as error:
            child._close_pipes()
            started.discard()
            if isinstance(error, OSError):  # no descriptor is left
                raise Unavailable(
                    f"cannot start {child.name!r}: {error.strerror}; end other programs or raise the limit and try again"
                ) from error
            raise
        child._watch = ExitWatch(child.pid, None if started.record is None else started.peek)
        child._hurried = asyncio.get_running_loop().create_future()
        child._life = asyncio.create_task(child._live(), name=f"legation-child-{child.pid}")
        return child

    _watch: ExitWatch
    _hurried: asyncio.Future[None]
    _life: asyncio.Task[Exit]

    def lines(self) -> AsyncIterator[list[bytes]]:
        """Each item is every line that has arrived by then, without its ending; for one task at a time."""
        return self._stdout

    @property
    def buffered(self) -> int:
        """Bytes of output that were read from the pipe and not yet taken by `lines`."""
        return self._stdout.buffered

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the child has not taken yet."""
        return self._stdin.unsent

    def close_stdin(self) -> None:
        self._stdin.close()

    @property
    def output_ended(self) -> bool:
        """Nobody can write to its output any more; what was written may not be taken yet."""
        return self._stdout.closed.done()

    def unfinished(self) -> bytes:
        """The beginning of a line of its output that has not ended yet."""
        return self._stdout.unfinished()

    def stderr_tail(self) -> str:
        return self._stderr.text()

    async def wait(self) -> Exit:
        """Wait until the child has ended, nothing of its tree is left and all it wrote has been read."""
        return await asyncio.shield(self._life)

    async def stop(self, grace: float = GRACE) -> Exit:
        """Down the ladder, once, however often it is called; a cancelled caller does not stop it. See `hurry`."""
        if self._ladder is None:
            self._ladder = asyncio.create_task(self._descend(grace), name=f"legation-stop-{self.pid}")
        return await asyncio.shield(self._ladder)

    def hurry(self) -> None:
        """From now on the steps of the ladder are short, also of one that it is going down."""
        if not self._hurried.done():
            self._hurried.set_result(None)

    async def release(self) -> None:
        """Leave a detached child to a later owner, in this process or another; this handle is of no more use."""
        if self._own.record is None:
            raise InvalidParams(f"cannot release {self.name!r}: it is not detached and ends with us; stop it")
        self._life.cancel()
        await asyncio.wait({self._life})
        self._watch.close()
        self._own.release()  # a second time does no harm, and a task cancelled before its first step did not

    def forget(self) -> None:
        """Remove the record of how a detached child ended: whoever calls this has taken note of it."""
        if self._own.record is not None and self._life.done():
            self._own.unregister()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        self.forget()

    async def _connect_pipes(self) -> None:
        process = self._own.process
        if process is None or process.stdin is None:  # files: what they hold is read there
            for pipe in (self._stdin, self._stdout, self._stderr):
                pipe.connection_lost(None)
            return
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipe_size = _widened(process.stdout)
        _widened(process.stdin)
        await hand_over(process.stdin, self._stdin)
        await hand_over(process.stdout, self._stdout)
        await hand_over(process.stderr, self._stderr)

    async def _live(self) -> Exit:
        try:
            found = await self._until_exit()
            await self._sweep()
            if self._own.process is not None:
                self._own.process.poll()
            await self._drain_output()
        except asyncio.CancelledError:  # the loop ends, and there is no more time for a ladder
            self._abandon()
            raise
        finally:
            self._close_pipes()
            self._watch.close()
        self._own.forget()
        return found

    async def _until_exit(self) -> Exit:
        while not await self.ends_within(ADOPTED_PERIOD):
            self._own.tree.reap_adopted()
        return self._watch.ended.result()

    async def _sweep(self) -> None:
        if self._own.record is None:
            self._own.signal(signal.SIGKILL)
        deadline = time.monotonic() + SWEEP_LIMIT
        while remaining := await asyncio.wrap_future(spawner().kill(self._own.tree)):
            if time.monotonic() > deadline:
                self.survivors = tuple(each.pid for each in remaining)
                log.warning("cannot kill all that %r left behind: pids %s", self.name, self.survivors)
                return
            await asyncio.sleep(SWEEP_PAUSE)

    async def _drain_output(self) -> None:
        self._stdout.allow(self._pipe_size)
        first, before = self._stdout.arrived, -1
        # A busy machine may not have read in that time what the pipe holds, which is no more than its size.
        while before < self._stdout.arrived <= first + self._pipe_size:
            before = self._stdout.arrived
            _, held = await asyncio.wait({self._stdout.closed, self._stderr.closed}, timeout=LINGER)
            if not held:
                break
        self._close_pipes()
        await asyncio.wait(
            {self._stdin.closed, self._stdout.closed, self._stderr.closed}, timeout=CLOSE_LIMIT
        )

    def _abandon(self) -> None:
        if self._own.record is not None:
            self._own.release()
        else:
            self._own.kill()
            self._own.forget()

    def _close_pipes(self) -> None:
        self._stdin.abort()
        self._stdout.close()
        self._stderr.close()

    async def _descend(self, grace: float) -> Exit:
        await self._observe()
        self._stdin.close()
        for act, limit, hurried in self._rungs(grace):
            if act is not None:
                await self._observe()
                await act()
            if await self._ends_within(limit, hurried):
                return await asyncio.shield(self._life)
        raise TimedOut(
            f"cannot stop {self.name!r}: pid {self.pid} does not end after KILL, so it is stuck in the kernel;"
            " look for a file system or a device that does not answer"
        )

    def _rungs(self, grace: float) -> tuple[tuple[Callable[[], Awaitable[None]] | None, float, float], ...]:
        """The steps of the ladder: what to do, and the time to end after it, also in a hurry."""
        term, kill = partial(self._signal, signal.SIGTERM), partial(self._signal, signal.SIGKILL)
        if self._own.record is None:
            return (
                (None, grace, HURRIED_GRACE),
                (term, TERM_GRACE, HURRIED_TERM_GRACE),
                (kill, KILL_LIMIT, KILL_LIMIT),
            )
        # It has no stdin of ours to close. Its keeper goes last, so that it can write how the child ended.
        return (
            (term, grace, HURRIED_TERM_GRACE),
            (kill, KEEPER_GRACE, KEEPER_GRACE),
            (self._end_keeper, KILL_LIMIT, KILL_LIMIT),
        )

    async def _signal(self, number: signal.Signals) -> None:
        if self._own.record is None:
            self._own.signal(number)
        else:  # it looks at all processes
            await asyncio.wrap_future(spawner().submit(partial(self._own.signal, number)))

    async def _end_keeper(self) -> None:
        self._own.end_keeper()

    async def _observe(self) -> None:
        look = asyncio.wrap_future(spawner().observe(self._own.tree))
        await asyncio.wait({look}, timeout=LOOK_LIMIT)

    async def _ends_within(self, limit: float, hurried: float) -> bool:
        """`hurried` counts from when it is, or from now."""
        if not self._hurried.done():
            either: set[asyncio.Future[Any]] = {self._watch.ended, self._hurried}
            await asyncio.wait(either, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if self._hurried.done():
            await self.ends_within(min(limit, hurried))
        return self._watch.ended.done()

    async def ends_within(self, seconds: float) -> bool:
        """Whether the process ends in that time; what is left of its tree and its output may take longer."""
        await asyncio.wait({self._watch.ended}, timeout=seconds)
        return self._watch.ended.done()


def _widened(pipe: IO[bytes]) -> int:
    """Make the pipe larger, where the user's quota allows; its size."""
    try:
        return fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        return fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ)
