"""One prompt with one agent, reported to its caller from the first moment to the end.

INV-Q1  A folder has one prompt. Started again on it, a runner sends what was not accepted and says that the prompt failed:
        its agent died with its keeper. It never asks an agent twice.
INV-Q2  The terminal report is the last thing that is said, behind all that the agent said; whatever ends the prompt, there
        is one, or it is in the spool.
INV-Q3  In its folder stands who runs there (`runner.json`: pid and start time) and, at the end, how that went (`exit.json`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

import legation
from legation.agents.modes import Setting, flat, match
from legation.approvals.policy.facts import Facts
from legation.clock import Clock, SystemClock
from legation.errors import (
    CapabilityUnsupported,
    ConfigInvalid,
    InvalidParams,
    LegationError,
    StorageFailed,
    Unavailable,
)
from legation.host.changes import FolderChanges, Snapshot
from legation.host.host import AcpHost
from legation.host.launch import Launch, hide, start_agent
from legation.host.options import HostOptions, Limits, SessionPlace
from legation.host.requests.handlers import ApproveAll
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc import keeper
from legation.proc.registry import reap
from legation.proc.tree import process
from legation.redact import Redactor
from legation.runner.callback import Callback
from legation.runner.channel import MOST_BYTES, RemoteApprover, RunnerChannel
from legation.runner.config import AgentChoice, RunnerConfig
from legation.runner.faults import model_fault
from legation.runner.reporter import Reporter, ReportTimes, Spool, SpoolLog
from legation.store.codec import StorageTrouble
from legation.store.files import write_atomically
from legation.tasks import TaskSet
from legation.wire.acp.updates import ContentBlock, Text
from legation.wire.action import Ask, Decision
from legation.wire.callbacks import (
    ChangedFile,
    PromptEnd,
    ReportedChanges,
    ReportFault,
    ReportIds,
    ReportKind,
)
from legation.wire.event_types import SessionStatus

SESSION: Final = "session"  # the stream of one that is new
START_LIMIT: Final = 300.0  # seconds for the agent to start: its registry's time, by npx
IDLE_LIMIT: Final = 3600.0  # seconds without a sign of life of it
STOP_GRACE: Final = 5.0  # seconds that it has to end
SPOOL_GRACE: Final = (
    30.0  # seconds that a full disk or spool has to get room: the caller's time, or the owner's
)
PROMPT_FAILED: Final = 6  # the exit code
DEFECT: Final = 1
CANCEL_AGAIN: Final = 0.2  # seconds between two tries to cancel a turn that is not there yet
CHANGES_LIMIT: Final = 60.0  # seconds to compare the folder: git's time
MOST_PATCH: Final = 4 * 1024 * 1024  # bytes; a longer one is left out
MOST_FILES: Final = 5_000  # that are named
RUNNER_FILE, EXIT_FILE, HOST = "runner.json", "exit.json", "host"
GUARD_LIMIT: Final = 10.0  # seconds for the guard to hear that it is not needed: the machine's time
CONTINUE: Final = (Text(text="Continue with the task where you were interrupted: the usage limit is over."),)
SHOWN: Final = 20  # names in a message that says what there is

_log = logging.getLogger(__name__)


class AutoApprove(ApproveAll):
    """Says yes to all, as seed 000 has it: once where that is offered, else always."""

    async def decide(self, ask: Ask) -> Decision:  # noqa: ARG002 - the answer is the same for all
        reason = "the configuration names no permissions: all are approved"
        return Decision(outcome="approved", by="runner", reason=reason, grant="runner")


@dataclass(frozen=True, slots=True)
class RunnerTimes:
    """Times that only tests change."""

    reports: ReportTimes = field(default_factory=ReportTimes)
    spool_grace: float = SPOOL_GRACE
    stop_grace: float = STOP_GRACE


class Stopped(Exception):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name, self.code = signal.Signals(number).name, 128 + number


class StopSignals:
    """The first signal that tells us to stop, and a second one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[Stopped] = loop.create_future()
        self.again: asyncio.Future[Stopped] = loop.create_future()

    def take(self, number: int) -> None:
        for each in (self.first, self.again):
            if not each.done():
                each.set_result(Stopped(number))
                return


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    kind: ReportKind
    end: PromptEnd
    code: int


class CallerLost(Unavailable):
    """Nobody has taken anything for so long that the agent works for nobody."""


class CallerCancelled(Exception):
    """The caller has told us to end, and there is no turn whose end could be waited for."""


async def run(
    config: RunnerConfig,
    choice: AgentChoice,
    folder: Path,
    *,
    times: RunnerTimes | None = None,
    clock: Clock | None = None,
) -> int:
    """Run the prompt of a configuration in its folder, or end what an earlier life began there. Return the exit code."""
    times, clock = times or RunnerTimes(), clock or SystemClock()
    redactor = Redactor()
    hide((config.token, *choice.secrets, *config.hide), redactor)
    spool, trouble = Spool(config.spool_limit), DiskTrouble()
    async with (
        _signals() as signals,
        SpoolLog(folder, spool, clock, trouble) as log,
        _on_file(config, folder, clock) as left,
    ):
        approver = None
        if config.is_routed:
            approver = RemoteApprover(_facts(config, choice), config.rule_folders)
            approver.limit_waits = config.limit_waits
        async with (
            Callback(config.callback_url) as callback,
            Reporter(
                callback,
                config.token.reveal(),
                config.ids,
                log,
                clock=clock,
                spool=spool,
                times=times.reports,
                tell=approver.tell if approver is not None else None,
            ) as reporter,
        ):
            if reporter.has_lived:
                await asyncio.to_thread(reap, folder / HOST / "children")  # of one whose guard was killed too
                left.code = await _unless_stopped(_end_earlier(reporter, config), signals, times.stop_grace)
                return left.code
            if config.rest_only:
                _log.warning("nothing was begun here, and nothing is: the caller wants the rest alone")
                left.code = 0
                return left.code
            await reporter.begin_life()
            async with AsyncExitStack() as stack:
                stack.enter_context(_guard_of(folder / HOST))
                channel = None
                if approver is not None:
                    commands = await stack.enter_async_context(Callback(config.commands_url, MOST_BYTES))
                    channel = RunnerChannel(commands, config.ids, reporter, approver, clock, times.reports)
                prompt = _Prompt(config, choice, log, reporter, redactor, times, folder, channel)
                outcome = await prompt.run(spool, trouble, signals.first)
            left.code = await _unless_stopped(
                _report_end(reporter, outcome, prompt.last_seq, config), signals, times.stop_grace
            )
            return left.code


async def _report_end(reporter: Reporter, outcome: PromptOutcome, upto: int, config: RunnerConfig) -> int:
    await reporter.finish(outcome.kind, outcome.end, upto, config.flush_timeout)
    return outcome.code


async def _unless_stopped(telling: Coroutine[Any, Any, int], signals: StopSignals, grace: float) -> int:
    """Let the rest be told. A signal leaves it a little more time, the second none; what was not told stays in the spool."""
    told, was_stopped = asyncio.create_task(telling), signals.first.done()
    try:
        ends: set[asyncio.Future[Any]] = {told, signals.again if was_stopped else signals.first}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not told.done() and not was_stopped:
            ends = {told, signals.again}
            await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            return told.result()
    finally:
        told.cancel()
        await asyncio.gather(told, return_exceptions=True)
    stop = signals.first.result()
    _log.warning(
        "stopped by %s before the last report was accepted: it is kept, start the runner again on the same folder",
        stop.name,
    )
    return stop.code


def _facts(config: RunnerConfig, choice: AgentChoice) -> Facts:
    place, home = str(config.repo_dir), choice.definition.home
    return Facts(place, place, str(home) if home is not None else None)


@contextmanager
def _guard_of(folder: Path) -> Iterator[None]:
    """Have somebody who ends the agent where we are killed: not every agent notices that its input has ended."""
    packages = Path(legation.__file__).parents[1]
    told = (keeper.GUARD, str(packages), str(folder / "children"), str(os.getpid()))
    argv = [sys.executable, "-I", keeper.__file__, *told]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env={}, start_new_session=True
    ) as waiting:
        try:
            yield
        finally:
            try:
                waiting.communicate(b"x", GUARD_LIMIT)
            except (OSError, subprocess.TimeoutExpired):  # it was killed, or is held up
                waiting.kill()


@dataclass(slots=True)
class _Left:
    code: int = DEFECT


@asynccontextmanager
async def _on_file(config: RunnerConfig, folder: Path, clock: Clock) -> AsyncIterator[_Left]:
    """INV-Q3. The folder is ours alone by now."""
    own, left = process(os.getpid()), _Left()
    started = own.started if own is not None else 0
    ids = msgspec.to_builtins(config.ids)
    _must_be_its_own(folder, config.ids)
    with suppress(OSError):  # a full disk ends the prompt, and says so itself
        (folder / EXIT_FILE).unlink(missing_ok=True)
        who = {"pid": os.getpid(), "started": started, **ids, "at": clock.now_ms()}
        write_atomically(folder / RUNNER_FILE, msgspec.json.encode(who))
    try:
        yield left
    except LegationError as error:
        left.code = error.status.exit
        raise
    finally:
        with suppress(OSError):
            how = {"code": left.code, **ids, "at": clock.now_ms()}
            write_atomically(folder / EXIT_FILE, msgspec.json.encode(how))


def _must_be_its_own(folder: Path, ids: ReportIds) -> None:
    """INV-Q1. What another prompt has left there is not sent under these names."""
    try:
        found = msgspec.json.decode((folder / RUNNER_FILE).read_bytes(), type=ReportIds)
    except (OSError, msgspec.MsgspecError):  # there was none, or its disk was full
        return
    if found != ids:
        names = ", ".join(f"{name} {value!r}" for name, value in msgspec.to_builtins(found).items())
        raise ConfigInvalid(
            f"cannot use {folder}: it has the prompt with {names}; give another --folder, or these names to send what it left"
        )


async def _end_earlier(reporter: Reporter, config: RunnerConfig) -> int:
    done = "has ended" if reporter.ended is not None else "was begun by a runner that was killed"
    _log.warning(
        "this prompt %s: what was not accepted is sent, and no agent is started; to ask again, give another promptId",
        done,
    )
    if reporter.ended is None:
        fault = ReportFault(
            "cannot finish the prompt: the runner was killed, and its agent died with it", "runner"
        )
        await reporter.follow_rest()
        await reporter.finish("prompt_failed", PromptEnd(error=fault), 0, config.flush_timeout)
    else:
        await reporter.destroy(0, config.flush_timeout)
    return PROMPT_FAILED if reporter.ended is None or reporter.ended.error else 0


class DiskTrouble:
    """Watches whether the log can be written."""

    def __init__(self) -> None:
        self.is_failing, self.is_well = asyncio.Event(), asyncio.Event()

    def __call__(self, told: StorageTrouble) -> None:
        if told.code == "storage/write-failed":
            self.is_failing.set()
            self.is_well.clear()
        elif told.code == "storage/recovered":
            self.is_failing.clear()
            self.is_well.set()


class _Prompt:
    def __init__(
        self,
        config: RunnerConfig,
        choice: AgentChoice,
        log: SpoolLog,
        reporter: Reporter,
        redactor: Redactor,
        times: RunnerTimes,
        folder: Path,
        channel: RunnerChannel | None,
    ) -> None:
        self._config, self._choice, self._log, self._reporter = config, choice, log, reporter
        self._redactor, self._times, self._channel = redactor, times, channel
        self._options = HostOptions(
            fs=None,  # it works in a sandbox of its own, with its own hands
            approver=AutoApprove() if channel is None else channel.approver,
            limits=Limits(start=START_LIMIT, idle=IDLE_LIMIT, permission=config.permission_timeout),
            kill_timeout_ms=times.stop_grace * 1000,
            data_dir=folder / HOST,
            redact=redactor.bytes,
            trusts=lambda _folder: choice.trusted,
        )
        self._session: Session | None = None

    @property
    def last_seq(self) -> int:
        return self._session.stream.head if self._session is not None else 0

    async def run(
        self, spool: Spool, trouble: DiskTrouble, stopped: asyncio.Future[Stopped]
    ) -> PromptOutcome:
        """Play it, until it ends or something ends it."""
        async with AsyncExitStack() as stack:
            before = await self._look_before(stack)
            outcome = await self._run(spool, trouble, stopped)
            if self._channel is not None and self._channel.unheard:
                end = msgspec.structs.replace(outcome.end, unheard=self._channel.unheard)
                outcome = PromptOutcome(outcome.kind, end, outcome.code)
            return await self._with_changes(outcome, before)

    async def _run(
        self, spool: Spool, trouble: DiskTrouble, stopped: asyncio.Future[Stopped]
    ) -> PromptOutcome:
        async with AcpHost(self._options, log=self._log) as host:
            agents: list[str] = []
            playing = asyncio.create_task(self._play(host, agents))
            watches = TaskSet("legation-runner-watch")
            ends: list[asyncio.Future[Any]] = [
                stopped,
                watches.start(self._refused()),
                watches.start(self._full(spool.is_full, spool.has_room, "spoolLimit is reached")),
                watches.start(self._full(trouble.is_failing, trouble.is_well, "the disk is full or fails")),
                watches.start(self._alone()),
            ]
            if (channel := self._channel) is not None:
                ends += [watches.start(channel.poll()), watches.start(self._cancelled(channel, host))]
            try:
                first: set[asyncio.Future[Any]] = {playing, *ends}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                outcome = self._outcome(host, playing, ends)
            finally:
                if channel is not None:
                    await channel.resume()  # a stopped agent does not end
                playing.cancel()
                await watches.close()
                await asyncio.gather(playing, return_exceptions=True)
            for each in agents:  # its last words are heard before the end is told
                await host.dispose_agent(each)
            return self._with_exit(outcome)

    def _outcome(
        self, host: AcpHost, playing: asyncio.Task[PromptResult], ends: list[asyncio.Future[Any]]
    ) -> PromptOutcome:
        if playing.done():
            return self._of_play(playing)
        error = next(each.result() for each in ends if each.done())
        if isinstance(error, Stopped):
            said = f"cannot finish the prompt: the runner was stopped by {error.name}"
            host.hurry()
            return PromptOutcome("prompt_failed", PromptEnd(error=ReportFault(said, "runner")), error.code)
        if isinstance(error, CallerCancelled):
            return PromptOutcome("prompt_complete", PromptEnd(stop_reason="cancelled"), 0)
        assert isinstance(error, LegationError)
        if isinstance(error, StorageFailed):
            self._reporter.give_up_on_disk()
        fault = ReportFault(error.message, error.code)
        code = PROMPT_FAILED if isinstance(error, CallerLost) else error.status.exit
        return PromptOutcome("prompt_failed", PromptEnd(error=fault), code)

    def _of_play(self, playing: asyncio.Task[PromptResult]) -> PromptOutcome:
        error = playing.exception()
        if error is None:
            return self._of_result(playing.result())
        if not isinstance(error, LegationError):
            raise error
        return self._failed(error.message, error.code)

    def _of_result(self, result: PromptResult) -> PromptOutcome:
        if result.error is not None:
            found = model_fault(result.error, self._log.clock.now_ms())
            return self._failed(result.error.message, str(result.error.code) if found is None else found.code)
        usage = msgspec.Raw(msgspec.json.encode(result.usage)) if result.usage is not None else msgspec.UNSET
        return PromptOutcome("prompt_complete", PromptEnd(stop_reason=result.stop_reason, usage=usage), 0)

    def _failed(self, message: str, code: str) -> PromptOutcome:
        if self._channel is not None and self._channel.cancelled.is_set():
            # That an agent says it with an error, or has to be stopped, is what the caller wanted, and no failure.
            return PromptOutcome("prompt_complete", PromptEnd(stop_reason="cancelled"), 0)
        fault = ReportFault(self._redactor.text(message), code)
        return PromptOutcome("prompt_failed", PromptEnd(error=fault), PROMPT_FAILED)

    # What the agent changed.

    async def _look_before(self, stack: AsyncExitStack) -> Snapshot | LegationError | None:
        if not self._config.changes:
            return None
        try:
            async with asyncio.timeout(CHANGES_LIMIT):
                return await stack.enter_async_context(await Snapshot.take(self._config.repo_dir))
        except (LegationError, OSError, TimeoutError) as error:
            _log.warning("what the agent changes cannot be told (%s)", type(error).__name__)
            return Unavailable("cannot compare the folder: it could not be read before the agent began")

    async def _with_changes(
        self, outcome: PromptOutcome, before: Snapshot | LegationError | None
    ) -> PromptOutcome:
        if before is None:
            return outcome
        if isinstance(before, LegationError):
            changes = ReportedChanges("", incomplete=before.message)
        else:
            try:
                async with asyncio.timeout(CHANGES_LIMIT):
                    changes = self._reported(await before.changes())
            except (LegationError, OSError, TimeoutError) as error:
                said = (
                    error.message if isinstance(error, LegationError) else "cannot compare the folder in time"
                )
                changes = ReportedChanges("", incomplete=said)
        end = msgspec.structs.replace(outcome.end, changes=changes)
        return PromptOutcome(outcome.kind, end, outcome.code)

    def _reported(self, found: FolderChanges) -> ReportedChanges:
        patch, notes = self._redactor.text(found.diff), [found.incomplete] if found.incomplete else []
        if len(patch.encode(errors="replace")) > MOST_PATCH:
            patch = ""
            notes.append(f"the patch is longer than {MOST_PATCH} bytes")
        if len(found.files) > MOST_FILES:
            notes.append(f"{len(found.files)} files changed, of which {MOST_FILES} are named")
        files = [
            ChangedFile(self._redactor.text(each.path), each.status, each.added, each.removed, each.binary)
            for each in found.files[:MOST_FILES]
        ]
        return ReportedChanges(patch, tuple(files), "; ".join(notes) or None)

    def _with_exit(self, outcome: PromptOutcome) -> PromptOutcome:
        """Add how the agent's process ended; where it was stopped by us, that says nothing."""
        exit_ = self._session.exit if self._session is not None else None
        if exit_ is None or outcome.kind == "prompt_complete":
            return outcome
        tail = self._redactor.text(exit_.stderr_tail) if exit_.stderr_tail else None
        end = msgspec.structs.replace(
            outcome.end, exit_code=exit_.code, signal=exit_.signal, stderr_tail=tail
        )
        return PromptOutcome(outcome.kind, end, outcome.code)

    async def _play(self, host: AcpHost, agents: list[str]) -> PromptResult:
        config, model = self._config, self._config.model_id
        choice = self._choice
        agent = (await start_agent(host, Launch(choice.definition, choice.key_method))).agent_id
        agents.append(agent)
        after = 0
        if config.session_id is None:

            async def prepare(opening: Setting) -> None:
                if model is not None:
                    await choose_model(opening, model)

            opened = await host.create_session(
                agent,
                cwd=config.repo_dir,
                mcp_servers=config.mcp_servers,
                session_id=SESSION,
                prepare=prepare,
            )
            session = self._session = host.session(opened.session_id)
        else:
            place = SessionPlace(config.repo_dir, config.mcp_servers)
            opened = await host.resume_or_load(agent, config.session_id, place, to_load=False)
            session = self._session = host.session(opened.session_id)
            after = await _end_of_history(session)
            if model is not None:
                await choose_model(session, model)
        await self._reporter.follow(session.stream, after, session.meta.agent_session_id)
        channel = self._channel
        if channel is None:
            return await host.prompt(session.id, config.prompt)
        await channel.bind(lambda: host.driver(agent).processes, session.heard)
        message, result = config.prompt, PromptResult("cancelled")
        while message and not channel.cancelled.is_set():
            result = await self._turn(host, session, channel, message)
            message = await channel.next_message(config.idle_timeout)
        return result

    async def _turn(
        self, host: AcpHost, session: Session, channel: RunnerChannel, message: tuple[ContentBlock, ...]
    ) -> PromptResult:
        """Take a turn; where a usage limit of the provider ends it, wait for that to be over and go on, so often and so long."""
        left, clock = self._config.limit_seconds, self._log.clock
        for number in range(1, self._config.limit_waits + 2):
            head = session.stream.head
            result = await host.prompt(session.id, message)
            now = clock.now_ms()
            fault = None if result.error is None else model_fault(result.error, now)
            if fault is None or fault.kind != "limit" or channel.cancelled.is_set():
                return result
            wait = max(0.0, (fault.until(number, now) - now) / 1000)
            if number > self._config.limit_waits or wait > left:
                return result
            left -= wait
            _log.warning("a usage limit of the provider is reached: going on in %.0f s", wait)
            await channel.until_limit_is_over(wait)
            if await _has_acted(session, head):
                message = CONTINUE
        return result

    # What ends it besides.

    async def _cancelled(self, channel: RunnerChannel, host: AcpHost) -> BaseException:
        """Cancel the turn, whose end is then the end; where there is none, that is the end."""
        await channel.cancelled.wait()
        session = self._session
        if session is None:
            return CallerCancelled()
        while True:  # one that is just being begun has no turn yet
            with suppress(LegationError):  # its agent is gone
                await host.cancel(session.id)
            await self._log.clock.sleep(CANCEL_AGAIN)

    async def _alone(self) -> BaseException:
        """Notice that nobody takes anything any more."""
        limit, clock = self._config.orphan_after, self._log.clock
        while (left := self._reporter.heard_at + limit - clock.monotonic()) > 0:
            await clock.sleep(left)
        return CallerLost(
            f"cannot go on: the caller has taken nothing for {limit:g} s; what was said is kept, start the runner"
            " again on the same folder when it is back"
        )

    async def _refused(self) -> BaseException:
        return await asyncio.shield(self._reporter.broken)

    async def _full(self, begins: asyncio.Event, ends: asyncio.Event, what: str) -> BaseException:
        """Give it some time to pass: the agent is paused meanwhile."""
        await begins.wait()
        _log.warning("%s: the agent is paused", what)  # once: beside a slow caller that comes and goes
        while True:
            await begins.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.spool_grace):
                    await ends.wait()
                continue
            return StorageFailed(f"cannot keep what the agent says: {what}; make room, or raise it")


async def _has_acted(session: Session, after: int) -> bool:
    """Whether the agent did anything in the turn behind that: then it is not told its task again."""
    async for event in session.stream.subscribe(after, follow=False):
        if event.type in ("tool-call", "agent-message-chunk"):
            return True
    return False


async def _end_of_history(session: Session) -> int:
    """Find where the agent had taken the session up: what it says behind that is new."""
    found = 0
    async for event in session.stream.subscribe(follow=False):
        if event.type == SessionStatus.event_type() and b'"active"' in event.raw:
            found = event.seq
    return found


async def choose_model(session: Setting, name: str) -> None:
    option = session.offers.choice("model")
    if option is None:
        raise CapabilityUnsupported("cannot choose modelId: the agent offers no models; leave it out")
    value = match(name, flat(option.options))
    if value is None:
        there = ", ".join([each for each, _ in flat(option.options)][:SHOWN])
        raise InvalidParams(f"cannot choose that modelId: choose from {there}")
    if value != option.current_value:
        await session.set_option(option.id, value)


@asynccontextmanager
async def _signals() -> AsyncIterator[StopSignals]:
    loop, signals = asyncio.get_running_loop(), StopSignals()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        with suppress(
            ValueError, RuntimeError
        ):  # not in the main thread: whoever runs us there stops us otherwise
            loop.add_signal_handler(number, signals.take, number)
    try:
        yield signals
    finally:
        for number in numbers:
            with suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)
