"""The gate at which Amp asks before it acts: a socket of one turn, and the two ways by which Amp comes to it.

Amp asks nobody over its pipes. Its plugins are asked about every call of a tool; its permission rules, where it has and
heeds them, can delegate to a program. Both lead here, and a call that comes by both is asked about once.

INV-G1  Whatever cannot be read, or could not be shown, or is not answered, is refused.
INV-G2  A question whose asker has hung up is taken back.
INV-G3  A decision is used once by each way: the next call, be it the same, is asked about again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from legation.agents import outlines
from legation.agents.amp import tools
from legation.agents.amp.options import Flags
from legation.agents.claude.messages import UserBody
from legation.agents.native import NativeAgent, PermissionDecision
from legation.agents.rpc import REQUESTS_AT_ONCE, TOO_MANY
from legation.clock import new_id
from legation.errors import AgentError, ConfigInvalid
from legation.store.datafolder import make_folder
from legation.tasks import TaskSet
from legation.wire import jsontext

DOOR: Final = "door"
VARIABLE: Final = "LEGATION_AMP_DOOR"
LONGEST_QUESTION: Final = 32 * 1024 * 1024  # bytes; a file that is written whole is in it
LONGEST_PATH: Final = 100  # bytes of a socket's path that every kernel takes
CLOSE_LIMIT: Final = 2.0  # seconds for the questions that are open to be taken back: our own time
_log: Final = logging.getLogger(__name__)
_REFUSED: Final = "Legation refused it"
_TURN_OVER: Final = "the turn is over"

Way: TypeAlias = Literal["plugin", "delegate"]


class GateQuestion(msgspec.Struct, frozen=True):
    """A line from the plugin or from the delegate; `hello` is the plugin's first."""

    way: Way
    tool: str = ""
    input: object = None
    id: str = ""
    hello: bool = False

    @property
    def action(self) -> bytes:
        return _action(self.tool, self.input)


@dataclass(slots=True)
class _Decided:
    """The decision on one action, for the ways that have not asked about it yet."""

    action: bytes
    answer: asyncio.Task[PermissionDecision]
    asked_by: set[Way] = field(default_factory=set)


class Gate:
    """`decide` is asked once for each call, `refuse` of one that nobody could be shown (INV-N2). Whoever opens it closes it."""

    def __init__(
        self,
        folder: Path,
        decide: Callable[[GateQuestion], asyncio.Task[PermissionDecision]],
        refuse: Callable[[], PermissionDecision] = lambda: PermissionDecision(allowed=False),
        tell_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell_refused = tell_refused
        self._folder = folder
        self._decide = decide
        self._refuse = refuse
        self._server: asyncio.Server | None = None
        self._directory = -1
        self._decided: list[_Decided] = []
        self._serving = TaskSet("legation-amp-gate")
        self.greeted = asyncio.Event()  # its plugin is at work
        self.asked: set[str] = set()  # ids of the calls that were asked about
        self.asked_tools: set[str] = set()  # names, where a way tells no id

    @property
    def door(self) -> Path:
        return self._folder / DOOR

    async def open(self) -> None:
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._server = await asyncio.start_unix_server(self._accept, self._address(), limit=LONGEST_QUESTION)

    def _address(self) -> str:
        if len(os.fsencode(self.door)) <= LONGEST_PATH:
            return str(self.door)
        return f"/proc/self/fd/{self._directory}/{DOOR}"

    async def close(self) -> None:
        """Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self.cancel_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                await self._serving.close()
        os.close(self._directory)

    def cancel_all(self) -> None:
        """The turn is being ended: what is open is taken back. Its asker is told nothing any more, so that it does not
        take that for a mere no and go on."""
        for each in self._decided:
            each.answer.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= REQUESTS_AT_ONCE:  # no answer is a no
            self._tell_refused(TOO_MANY)
            writer.close()
            return
        self._serving.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline(), reader)
            writer.write(jsontext.write(answer) + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):  # it hung up, or its line is too long: no answer is a no
            pass
        except Exception:  # noqa: BLE001 - a task boundary; no answer is a no (INV-G1)
            _log.exception("cannot answer a question of Amp")
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, line: bytes, reader: asyncio.StreamReader) -> Mapping[str, object]:
        is_cut = outlines.is_heavy(line)
        if is_cut:
            with outlines.reader.in_use():
                found = await outlines.reader.read(line, native=True)
            line = found.digest.encode() if found else b""
        try:
            question = msgspec.json.decode(line, type=GateQuestion)
        except (ValueError, RecursionError):
            return _no("the question could not be read")
        if question.hello:
            self.greeted.set()
            return {"allow": False, "message": "hello"}
        (self.asked if question.id else self.asked_tools).add(question.id or question.tool)
        if is_cut:
            return _told(self._refuse(), question)
        decided = self._decision(question)
        decided.asked_by.add(question.way)
        permission = await _unless_gone(decided.answer, reader)
        if permission is None:
            await reader.read()  # until its process is ended, or the gate closed
            raise ConnectionResetError
        if permission.params is not None:  # by the other way it asks about what it is going to do now
            decided.action = _action(question.tool, permission.params)
        return _told(permission, question)

    def _decision(self, question: GateQuestion) -> _Decided:
        for each in self._decided:
            if each.action == question.action and question.way not in each.asked_by:
                return each
        made = _Decided(question.action, self._decide(question))
        self._decided.append(made)
        return made


def _action(tool: str, given: object) -> bytes:
    """Its digest: what a turn has written is not kept until its end."""
    return hashlib.sha256(msgspec.json.encode((tool, given), order="deterministic")).digest()


async def _unless_gone(
    answer: asyncio.Task[PermissionDecision], reader: asyncio.StreamReader
) -> PermissionDecision | None:
    """Return the decision, None where the turn took it back. Raises where the asker is gone and nobody needs it."""
    gone = asyncio.ensure_future(reader.read(1))
    waiting: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    if not answer.done():
        answer.cancel()
        raise ConnectionResetError
    return None if answer.cancelled() else answer.result()


def _told(permission: PermissionDecision, question: GateQuestion) -> Mapping[str, object]:
    if not permission.allowed:
        return _no(permission.message or (_TURN_OVER if permission.cancelled else _REFUSED))
    if permission.params is None or _action(question.tool, permission.params) == question.action:
        return {"allow": True}
    if question.way == "delegate":  # which can only say yes or no to what was asked
        return _no("it was allowed with other arguments, which this version of Amp does not take; try those")
    return {"allow": True, "input": permission.params}


def _no(message: str) -> Mapping[str, object]:
    return {"allow": False, "message": message}


# What Amp is given.


def install_plugin(home: Path) -> None:
    """Into the agent's own home, where no repository has a say. Other plugins there are its owner's."""
    source = Path(__file__).with_name("gate_plugin.ts").read_bytes()
    folder = home / ".config" / "amp" / "plugins"
    target = folder / "legation.ts"
    try:
        if target.is_file() and target.read_bytes() == source:
            return
        make_folder(folder)
        draft = folder / f".legation.{os.getpid()}"
        draft.write_bytes(source)
        draft.replace(target)
    except OSError as error:
        raise ConfigInvalid(
            f"cannot put Legation's plugin into the home of Amp: {error.strerror}; check {folder}"
        ) from error


def write_delegate(folder: Path) -> Path:
    """A program without arguments, as Amp wants it."""
    program = folder / "ask"
    script = Path(__file__).with_name("gate_delegate.py")
    words = (sys.executable, "-I", "-S", str(script), str(folder / DOOR))
    program.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    program.chmod(0o700)
    return program


# A turn's questions.


class AmpPermissions:
    """`calls` are those that the stream told: the name and the arguments of each, by its id."""

    def __init__(self, agent: NativeAgent, session_id: str, calls: Mapping[str, tuple[str, object]]) -> None:
        self._agent = agent
        self._session = session_id
        self._calls = calls
        self._gate: Gate | None = None

    def gate_at(self, folder: Path) -> Gate:
        self._gate = Gate(folder, self._decide, self._agent.refused_permission, self._agent.tell_refused)
        return self._gate

    def _decide(self, question: GateQuestion) -> asyncio.Task[PermissionDecision]:
        call = question.id or self._announced(question)
        about = tools.described(call, question.tool, question.input)
        return self._agent.ask_permission(self._session, about)

    def _announced(self, question: GateQuestion) -> str:
        """The call of its stream that it asks about, where it does not say which."""
        for call, about in reversed(tuple(self._calls.items())):
            if about == (question.tool, question.input):
                return call
        return new_id("call")

    def ungated(self, told: UserBody) -> str:
        """The tool that was run on this machine and not asked about; empty where there is none."""
        for block in told.content:
            if isinstance(block, str) or block.type != "tool_result" or block.is_error:
                continue
            name, _ = self._calls.get(block.tool_use_id, ("", None))
            if tools.is_local(name) and not self._was_asked(block.tool_use_id, name):
                return name
        return ""

    def _was_asked(self, call: str, name: str) -> bool:
        gate = self._gate
        return gate is not None and (call in gate.asked or name in gate.asked_tools)


def must_be_gated(name: str, flags: Flags) -> None:
    if not (flags.has_plugins or flags.has_permissions):
        raise AgentError(
            f"cannot start {name!r}: this version of Amp has neither plugins nor permission rules, so that nobody could"
            " decide on what it does; update it"
        )
