"""A session of Amp's. Each of its turns is a process that is given a prompt, speaks, asks at the gate, and ends.

INV-T1  Where Amp takes its prompt as JSON it gets none before its plugin has called at the gate.
INV-T2  A tool that acts on this machine and was not asked about ends the turn.
INV-T3  When `done` is over, nothing of the turn is left: no process, no folder, no open question.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from legation.agents.amp.launch import AmpLaunch, command_for, refuse_untrusted, takes_json, write_settings
from legation.agents.amp.options import DEFAULT, STREAM, Flags, refused_option
from legation.agents.amp.permissions import AmpPermissions, Gate, must_be_gated, write_delegate
from legation.agents.amp.translate import NO_KEY, AmpTranslator, exit_error, line_of, not_gated, refusal
from legation.agents.claude import messages as native
from legation.agents.claude.translate import outcome as outcome_of
from legation.agents.claude.translate import usage_of
from legation.agents.driver import OpenRequest
from legation.agents.native import DriverContext, PendingReply, read_lines
from legation.agents.rpc import SHOWN_BYTES, WRITE_TIMEOUT, AgentRefused, skipped
from legation.clock import new_id
from legation.errors import AgentError, LegationError, TimedOut, Unavailable
from legation.proc import Child, Command, Exit
from legation.store.datafolder import make_folder
from legation.wire.acp.methods import PromptResponse
from legation.wire.acp.updates import AgentMessageChunk, Notice, Text
from legation.wire.event_types import DiagnosticCode

if TYPE_CHECKING:
    from legation.agents.amp.driver import AmpAgent

GATE_LIMIT: Final = 60.0  # seconds for Amp to sign in and load its plugins: Amp's and its server's time
AFTER_RESULT: Final = 5.0  # seconds from the end of a turn to that of its process: Amp's time to tidy up
EXIT_LIMIT: Final = 10.0  # seconds from the end of its output to its exit: Amp's time
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class AmpSession:
    """`request` has its name; `thread` is Amp's, once it has begun."""

    request: OpenRequest
    thread: str | None
    mode: str = DEFAULT
    turn: AmpTurn | None = None
    done: asyncio.Task[None] | None = None  # of the newest turn

    async def prompt(self, turn: AmpTurn, text: str) -> PromptResponse:
        before, self.turn = self.done, turn
        name = f"legation-{self.request.session_id}"
        self.done = asyncio.create_task(self._run(turn, text, before), name=name)
        return await turn.reply.value()

    async def _run(self, turn: AmpTurn, text: str, before: asyncio.Task[None] | None) -> None:
        if before:  # the process of the turn before has told its end and is still about to leave
            await asyncio.wait({before})
        await turn.run(text, self.thread, None if self.mode == DEFAULT else self.mode)

    async def stop(self) -> None:
        if self.turn:
            await self.turn.stop()
        if self.done:
            await asyncio.wait({self.done})


class AmpTurn:
    """Runs from the start on. Whoever makes it waits for `done`."""

    def __init__(
        self,
        agent: AmpAgent,
        context: DriverContext,
        request: OpenRequest,
        reply: PendingReply[PromptResponse],
    ) -> None:
        self.reply = reply
        self._agent, self._context, self._request = agent, context, request
        self._child: Child | None = None
        self._cancelled = self._stopped = False
        self._stopping: asyncio.Task[Exit] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._translator = AmpTranslator()
        self._permissions = AmpPermissions(agent, request.session_id, self._translator.calls)
        self._message = new_id("msg")
        self._spoke = False
        self._gate: Gate | None = None
        self._last_words = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def stderr_tail(self) -> str:
        return self._child.stderr_tail() if self._child else self._last_words

    def cancel(self) -> None:
        """End its process: it has no way to be asked."""
        self._cancelled = True
        self._end()

    async def stop(self) -> None:
        self._stopped = True
        self._end()
        if self._stopping:
            await asyncio.shield(self._stopping)

    def _end(self) -> None:
        if self._gate:
            self._gate.cancel_all()
        if self._child and self._stopping is None:
            self._stopping = asyncio.create_task(self._child.stop(grace=0), name="legation-amp-stop")

    # The turn.

    async def run(self, text: str, thread: str | None, mode: str | None) -> None:
        try:
            await self._run(text, thread, mode)
        except AgentRefused as error:
            self.reply.give(error)
        except LegationError as error:
            self.reply.fail(error)
        except Exception:  # noqa: BLE001 - a task boundary
            _log.exception("cannot go on with a turn of %r", self._agent.name)
            self.reply.fail(
                AgentError(f"cannot go on with a turn of {self._agent.name!r}: a mistake of ours")
            )

    async def _run(self, text: str, thread: str | None, mode: str | None) -> None:
        if thread and not self._agent.flags.can_continue:
            raise refusal("this version of Amp cannot continue a thread; start a new session, or update it")
        if not self._context.trusts(
            self._request.cwd
        ):  # each time: a turn may have written what the next one runs
            await asyncio.to_thread(refuse_untrusted, Path(self._request.cwd))
        folder = await asyncio.to_thread(self._make_folder)
        gate = self._gate = self._permissions.gate_at(folder)
        try:
            settings = await asyncio.to_thread(self._prepare, folder)
            await gate.open()
            await self._converse(AmpLaunch(self._request.cwd, thread, mode, settings, gate.door), text, gate)
        finally:
            await gate.close()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="amp-", dir=self._context.command.env.get("TMPDIR")))

    def _prepare(self, folder: Path) -> Path:
        self._agent.set_up_gate()  # each time: a turn may have changed what gates the next one
        return write_settings(folder, write_delegate(folder), self._request.mcp_servers)

    async def _converse(self, launch: AmpLaunch, text: str, gate: Gate) -> None:
        """Run the turn, and again with less where Amp refuses an option that its help lists."""
        while True:
            flags = self._agent.flags
            must_be_gated(self._agent.name, flags)
            if self._cancelled or self._stopped:
                self._conclude(Exit(None, None), "", plain=False)
                return
            child = await self._spawn(command_for(self._context.command, launch, flags))
            found = await self._play(child, flags, text, gate)
            refused = refused_option(self._last_words) if found.code and not self._spoke else None
            if refused is None or not flags.has(refused):
                self._conclude(found, self._last_words, plain=not flags.has(STREAM))
                return
            self._agent.forget(refused)

    async def _spawn(self, command: Command) -> Child:
        child = self._child = await self._context.launcher.spawn(command, self._context.pipes)
        if self._cancelled or self._stopped:
            self._end()
        return child

    async def _play(self, child: Child, flags: Flags, text: str, gate: Gate) -> Exit:
        writing = asyncio.create_task(self._write(child, flags, text, gate), name="legation-amp-write")
        hear = self._hear if flags.has(STREAM) else self._hear_plain
        take = partial(self._agent.hear, self._request.session_id, hear)
        try:
            listener = self._context.listener
            await read_lines(child, take, listener.room, listener.trouble)
            await asyncio.wait({ending := asyncio.ensure_future(child.wait())}, timeout=EXIT_LIMIT)
            found = ending.result() if ending.done() else await child.stop(grace=0)
        finally:
            writing.cancel()
            await asyncio.wait({writing})
            await child.stop(grace=0)
            self._last_words, self._child = child.stderr_tail(), None
            if self._keeping:
                await asyncio.wait({self._keeping})
        return found

    async def _write(self, child: Child, flags: Flags, text: str, gate: Gate) -> None:
        if takes_json(flags) and flags.has_plugins:
            try:
                async with asyncio.timeout(GATE_LIMIT):
                    await gate.greeted.wait()
            except TimeoutError:
                self._refuse(not_gated(f"Legation's plugin did not call within {GATE_LIMIT:g} s"))
                return
        with suppress(LegationError):  # it has ended, and says why itself
            child.write(line_of(text) if takes_json(flags) else text.encode())
            with suppress(TimedOut):  # a prompt that it does not read: the host's watch over the turn ends it
                await child.drain(WRITE_TIMEOUT)
            child.close_stdin()

    def _conclude(self, found: Exit, complaint: str, *, plain: bool) -> None:
        if self.reply.given:
            return
        if self._cancelled:
            self.reply.give(PromptResponse(stop_reason="cancelled"))
        elif plain and found.code == 0:
            self.reply.give(PromptResponse(stop_reason="end_turn"))
        else:
            raise exit_error(self._agent.name, found, complaint)

    def _refuse(self, why: AgentError) -> None:
        self.reply.give(why)
        self._end()

    # Amp speaks.

    def _hear_plain(self, line: bytes, _: bytes) -> None:
        text = line.decode(errors="replace")
        if text.startswith(NO_KEY):
            self._refuse(refusal(text))
        elif not self.reply.given:
            self._spoke = True
            self._agent.say(
                self._request.session_id,
                AgentMessageChunk(content=Text(text=f"{text}\n"), message_id=self._message),
            )

    def _hear(self, line: bytes, brief: bytes) -> None:
        if not line.strip():
            return
        heard = self._translator.take(brief)
        if heard.message is None:
            self._stray(line)
            return
        self._spoke = True
        if not self._cancelled:
            self._agent.say(self._request.session_id, *heard.updates, native=line if heard.known else b"")
            if not heard.known:
                self._agent.say_unknown(self._request.session_id, line)
        match heard.message:
            case native.Init(session_id=thread) if thread and self._keeping is None:
                self._keeping = asyncio.create_task(
                    self._agent.began(self._request.session_id, thread), name="legation-amp-thread"
                )
            case native.UserLine(message=told) if ran := self._permissions.ungated(told):
                what = f"Amp ran {ran} without asking Legation"
                self._agent.say(self._request.session_id, Notice(severity="error", title=what))
                self._refuse(not_gated(what))
            case native.Result():
                self._result(heard.message, heard.failure)

    def _result(self, result: native.Result, failure: str | None) -> None:
        found = outcome_of(result, failure, cancelled=self._cancelled)
        if self._cancelled:  # it was quicker than its end
            found = PromptResponse(stop_reason="cancelled", usage=usage_of(result))
        self.reply.give(found)
        self._leave()

    def _stray(self, line: bytes) -> None:
        if line.startswith(NO_KEY.encode()):
            self._refuse(refusal(line[:SHOWN_BYTES].decode(errors="replace")))
        elif not self.reply.given:  # what follows that has a link to sign in with
            self._context.listener.trouble(DiagnosticCode.AGENT_STRAY_LINE, skipped(line))

    def _leave(self) -> None:
        """Stop a process that does not end by itself."""
        child = self._child
        if child and self._stopping is None:
            self._stopping = asyncio.create_task(child.stop(AFTER_RESULT), name="legation-amp-leave")


_FOLDER: Final = Path(".config") / "amp" / "legation-threads"
_SESSION: Final = re.compile(r"amp_\w{1,64}")
_THREAD: Final = re.compile(r"T-[\w-]{1,128}")


class Threads:
    """Threads of Amp by session, in files. Its I/O is done where it is called: in a thread."""

    def __init__(self, home: Path) -> None:
        self._folder = home / _FOLDER

    def begin(self) -> str:
        """A session that has no thread yet; its id."""
        session_id = new_id("amp")
        self.keep(session_id, "")
        return session_id

    def keep(self, session_id: str, thread: str) -> None:
        path = self._path(session_id)
        try:
            make_folder(self._folder)
            draft = path.with_suffix(".new")
            draft.write_text(thread)
            draft.replace(path)
        except OSError as error:
            raise Unavailable(
                f"cannot keep the thread of session {session_id}: {error.strerror}; free some room and try again"
            ) from error

    def find(self, session_id: str) -> str | None:
        """Find the thread of a session: empty where it has not begun, None where it is not known; a thread of Amp's is its own."""
        if is_thread(session_id):
            return session_id
        if not _SESSION.fullmatch(session_id):
            return None
        try:
            thread = self._path(session_id).read_text()
        except OSError:
            return None
        return thread if is_thread(thread) else ""

    def _path(self, session_id: str) -> Path:
        return self._folder / session_id


def is_thread(text: str) -> bool:
    return _THREAD.fullmatch(text) is not None
