"""The way back to a runner: commands of its caller by a long poll, and permissions that the caller decides.

INV-L1  Commands are acted on in their order, each once: that it is acted on is on the disk before, and one that comes again
        is passed over.
INV-L2  A permission is the caller's to give. Silence, a refusal, and an answer that nobody understands are a no.
INV-L3  An approval that is to be used is used right before the agent hears of it, with where its paths lead by then; where
        that is refused, so is the permission.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, cast
from urllib.parse import urlencode

import msgspec

from legation.approvals.policy.facts import Facts, resolve_here
from legation.clock import Clock
from legation.errors import InvalidParams, LegationError
from legation.host.requests.handlers import Prepared
from legation.proc.tree import signal_all
from legation.runner.callback import Callback, CallbackAnswer
from legation.runner.faults import model_fault
from legation.runner.reporter import Reporter, ReportTimes
from legation.wire import jsontext
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import ContentBlock
from legation.wire.action import Ask, Decision
from legation.wire.callbacks import ReportIds, ReportKind, RunnerCommand, UnreadCommand, read_commands
from legation.wire.event_types import PermissionAnswered, PermissionAsked, PromptFinished, UnaskedEffect
from legation.wire.events import Event
from legation.wire.resolved import ResolvedPaths

WAIT: Final = 25  # seconds that the caller may hold a poll: below what proxies cut off
LEAST: Final = 1.0  # seconds between two polls that brought nothing: of a caller that does not hold them
MOST_BYTES: Final = 20 * 1024 * 1024  # of commands: a message may have images
PAUSE_ROUNDS: Final = 5  # looks for what was started while the rest was being stopped

# What is reported of an event, and under which name.
_TOLD: Final[dict[str, tuple[ReportKind, bytes]]] = {
    PermissionAsked.event_type(): ("permission_request", b"permission"),
    PermissionAnswered.event_type(): ("permission_resolved", b"permission"),
    UnaskedEffect.event_type(): ("unasked_effect", b"effect"),
    PromptFinished.event_type(): ("turn_ended", b"turn"),
}

UseAnswer: TypeAlias = Callable[[RunnerCommand, ResolvedPaths], Awaitable[str | None]]

_log = logging.getLogger(__name__)


class RemoteApprover:
    """An `Approver` whose answers come as commands. `facts` are where the agent works; `folders` those that rules of the
    caller's name."""

    def __init__(self, facts: Facts, folders: tuple[str, ...]) -> None:
        self._facts, self._folders = facts, folders
        self.use: UseAnswer = _never  # the channel's, once there is one
        self.limit_waits = 0  # usage limits that are waited for
        self._limits = 0  # that were told of
        self._answers: dict[str, asyncio.Future[RunnerCommand]] = {}  # by the permission
        self._resolved: dict[str, ResolvedPaths] = {}

    async def prepare(self, ask: Ask) -> Prepared:
        """Look up where its paths lead, before anybody is asked."""
        # At once: where that takes long it is asked without, and may be answered before it is decided.
        self._answers[ask.id] = asyncio.get_running_loop().create_future()
        self._resolved[ask.id] = await self._resolve(ask)
        return Prepared(None, self.decide)

    async def decide(self, ask: Ask) -> Decision:
        try:
            command = await self._answers[ask.id]
            assert command.outcome is not None
            if command.must_use and command.outcome == "approved":
                refused = await self.use(command, await self._resolve(ask))  # INV-L3
                if refused is not None:
                    return Decision("denied", "legation", refused, message=refused)
        finally:
            self._answers.pop(ask.id, None)
            self._resolved.pop(ask.id, None)
        reason = command.reason or "the caller decided it"
        return Decision(command.outcome, command.by or "caller", reason, command.option_id, command.message)

    def answer(self, command: RunnerCommand) -> None:
        """One that nobody waits for any more says nothing to anybody."""
        waiting = self._answers.get(command.permission or "")
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def tell(self, event: Event) -> tuple[ReportKind, msgspec.Raw] | None:
        """The report of an event, where the caller is to hear of it."""
        if (told := _TOLD.get(event.type)) is None:
            return None
        kind, name = told
        content = event.payload
        if kind == "permission_request":
            asked = msgspec.json.decode(content, type=_PermissionName).id
            if (resolved := self._resolved.get(asked)) is not None:
                content = b'%b,"resolved":%b}' % (content.rstrip()[:-1], jsontext.write(resolved))
        limited = self._limited(event) if kind == "turn_ended" and self._limits < self.limit_waits else b""
        return kind, msgspec.Raw(b'{"%b":%b%b}' % (name, content, limited))

    def _limited(self, event: Event) -> bytes:
        """Tell until when a usage limit is waited for, where it was that which ended the turn."""
        error = msgspec.json.decode(event.payload, type=_TurnError).error
        fault = None if error is None else model_fault(error, event.at)
        if fault is None or fault.kind != "limit":
            return b""
        self._limits += 1
        return b',"limitedUntil":%d' % fault.until(self._limits, event.at)

    async def _resolve(self, ask: Ask) -> ResolvedPaths:
        return await asyncio.to_thread(resolve_here, ask.action, self._facts, self._folders)


class _PermissionName(msgspec.Struct):
    id: str


class _TurnError(msgspec.Struct):
    error: RpcError | None = None


async def _never(_command: RunnerCommand, _resolved: ResolvedPaths) -> str | None:
    return "it cannot be used: there is no way to the caller"


class RunnerChannel:
    """The poll, and what its commands are about. `cancelled` is set for good."""

    def __init__(
        self,
        callback: Callback,
        ids: ReportIds,
        reporter: Reporter,
        approver: RemoteApprover,
        clock: Clock,
        times: ReportTimes,
    ) -> None:
        # For a caller that has one address for many.
        self._who = urlencode({"run": ids.run_id, "prompt": ids.prompt_id})
        self._callback, self._reporter, self._clock, self._times = callback, reporter, clock, times
        self.approver = approver
        approver.use = self._use
        self.cancelled = asyncio.Event()
        self.told_to_go_on = asyncio.Event()  # somebody wants no usage limit to be waited for any longer
        self._messages: deque[tuple[ContentBlock, ...]] = deque()
        self._told_to_end = False
        self._news = asyncio.Event()
        self._paused = False
        self._pids: Callable[[], tuple[int, ...]] | None = None  # of the agent, once there is one
        self._heard: Callable[[], None] = lambda: None

    @property
    def unheard(self) -> int:
        """Count the messages that no turn has taken."""
        return len(self._messages)

    async def bind(self, pids: Callable[[], tuple[int, ...]], heard: Callable[[], None]) -> None:
        """There is an agent: it can be paused from now on. `heard`: it is silent for a reason."""
        self._pids, self._heard = pids, heard
        if self._paused:
            await self._signal(signal.SIGSTOP)

    # Commands come.

    async def poll(self) -> BaseException:
        """Ask for commands until the caller refuses that for good; return the reason."""
        pause = self._times.retry_first
        while True:
            began = self._clock.monotonic()
            query = f"{self._who}&after={self._reporter.last_command}&wait={WAIT}"
            answer = await self._callback.get(query, self._reporter.headers, WAIT + self._times.answer)
            found = self._read(answer)
            if found is not None:
                self._reporter.heard()
                pause = self._times.retry_first
                if not await self._act_on(found):
                    await self._clock.sleep(max(0.0, began + LEAST - self._clock.monotonic()))
                if self._paused:
                    self._heard()
                continue
            if not answer.is_good and not answer.is_passing:
                return answer.refusal("the poll for commands")
            await self._clock.sleep(pause)
            pause = min(pause * 2, self._times.retry_most)

    def _read(self, answer: CallbackAnswer) -> list[RunnerCommand | UnreadCommand] | None:
        if not answer.is_good:
            _log.warning("commands cannot be asked for (%s): it is tried again", answer)
            return None
        try:
            return read_commands(answer.body)
        except InvalidParams as error:
            _log.warning("%s", error.message)
            return None

    async def _act_on(self, commands: list[RunnerCommand | UnreadCommand]) -> bool:
        """INV-L1. Return whether there were any."""
        fresh = [each for each in commands if each.id > self._reporter.last_command]
        for command in fresh:
            await self._reporter.note_command(command.id)
            if isinstance(command, UnreadCommand):
                _log.warning("command %d is passed over: %s", command.id, command.why)
            else:
                await self._act(command)
        return bool(fresh)

    async def _act(self, command: RunnerCommand) -> None:
        match command.kind:
            case "answer":
                self.approver.answer(command)
            case "message":
                self._messages.append(command.blocks)
            case "end":
                self._told_to_end = True
            case "cancel":
                await self.resume()  # a stopped agent hears nothing
                self.cancelled.set()
            case "pause":
                self._paused = True
                await self._signal(signal.SIGSTOP)
            case "resume":
                self.told_to_go_on.set()
                await self.resume()
        self._news.set()

    async def _use(self, command: RunnerCommand, resolved: ResolvedPaths) -> str | None:
        """Use an approval: None where that was taken, else why it was not. It is tried for as long as the agent waits."""
        body = jsontext.write({"resolved": resolved})
        pause = self._times.retry_first
        while True:
            sign = partial(self._reporter.headers, body)
            answer = await self._callback.post(
                body, sign, self._times.answer, below=f"/{command.id}/use", query=self._who
            )
            if answer.is_good:
                return None
            if not answer.is_passing:
                said = jsontext.read_object(answer.body).get("detail")
                return said if isinstance(said, str) else f"the caller no longer allows it ({answer.status})"
            await self._clock.sleep(pause)
            pause = min(pause * 2, self._times.retry_most)

    # What they are about.

    async def next_message(self, idle: float) -> tuple[ContentBlock, ...]:
        """Wait for a message, so long; an empty one where none comes any more."""
        deadline = self._clock.monotonic() + idle
        while not self.cancelled.is_set():
            if self._messages:
                return self._messages.popleft()
            left = deadline - self._clock.monotonic()
            if self._told_to_end or left <= 0:
                break
            self._news.clear()
            news = asyncio.ensure_future(self._news.wait())
            timer = asyncio.ensure_future(self._clock.sleep(left))
            try:
                await asyncio.wait({news, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                timer.cancel()
        return ()

    async def until_limit_is_over(self, seconds: float) -> None:
        """Wait so long, or until somebody has it go on, or be cancelled."""
        self.told_to_go_on.clear()
        events = (self.told_to_go_on.wait(), self.cancelled.wait(), self._clock.sleep(seconds))
        waits = [asyncio.ensure_future(cast(Awaitable[object], each)) for each in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def resume(self) -> None:
        if self._paused:
            self._paused = False
            await self._signal(signal.SIGCONT)
            self._heard()

    async def _signal(self, number: signal.Signals) -> None:
        if self._pids is None:
            return
        try:
            pids = self._pids()
        except LegationError:  # it is gone
            return
        await asyncio.to_thread(signal_all, pids, number, PAUSE_ROUNDS)
