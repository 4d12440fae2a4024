"""One turn of a session: from the prompt to its one end, with the times in which the agent must show life; its tool calls,
told whole, and what was decided about them: who was asked before what was done.

INV-E1  A decision covers what Legation does for the agent only within its turn, while its tool call runs, and at the very
        place that it was about when it was asked: a link that was put there since leads to another.
INV-E2  A tool call counts as asked if it was approved: that call, or its paths or its command while it ran. To have been
        refused, or to have asked about no more than a look, is no leave to act.
INV-E3  Nothing is decided by a part of it: whose arguments came in a line that is read in the small (INV-W5) says so.
"""

from __future__ import annotations

import asyncio
import os.path
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from legation.agents.outlines import ITEMS_SHOWN
from legation.agents.rpc import AgentRefused
from legation.clock import Clock
from legation.errors import AgentExited, Cancelled, LegationError, TimedOut, TransportClosed
from legation.store.stream import Receipt
from legation.wire import event_types
from legation.wire.acp.methods import PromptResponse, Usage
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import (
    ContentBlock,
    Diff,
    Terminal,
    ToolCall,
    ToolCallPatch,
    ToolCallUpdate,
    merged,
)
from legation.wire.action import EFFECTLESS, MAX_PATH, Action, Ask, Decision
from legation.wire.event_types import PromptFinished, PromptStarted, TurnState
from legation.wire.events import CUT, Draft, Payload

CANCEL_GRACE = 10.0  # seconds an agent has to end a cancelled turn: its time; after that it is stopped


class CutWords(NamedTuple):
    """Words for what a host's end cuts off."""

    ran: str  # of a turn
    waited: str  # of a question


@dataclass(frozen=True, slots=True)
class PromptResult:
    """End of a turn, as the agent told it. With an `error`, the stop reason is a placeholder."""

    stop_reason: str
    error: RpcError | None = None
    usage: Usage | None = None

    def raise_for_error(self) -> None:
        """Raise `AgentRefused` where the agent answered with an error."""
        if self.error is not None:
            raise AgentRefused(AgentMethod.SESSION_PROMPT, self.error)


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """End of a turn, for whoever took it; `told` is for a client. `receipt` is None where no more events were taken."""

    result: PromptResult
    receipt: Receipt | None = None
    error: LegationError | None = None  # its agent is gone, or showed no sign of life
    cancelled: bool = False  # by whoever took it

    @property
    def cut(self) -> str | None:
        """Reason why its agent could not end it, where that is gone."""
        return self.error.message if isinstance(self.error, AgentExited | TransportClosed) else None

    def told(self) -> PromptResult:
        """Raises where there is no answer of the agent's. Who cancelled it gets what he asked for, however that came."""
        if self.cancelled and isinstance(self.error, AgentExited | TransportClosed | TimedOut):
            raise Cancelled(
                f"cannot finish the turn: it was cancelled ({self.error.message})"
            ) from self.error
        if self.error is not None:
            raise self.error
        refused = self.result.error is not None and self.result.error.code == ErrorCode.REQUEST_CANCELLED
        return PromptResult("cancelled") if self.cancelled and refused else self.result


def unplayed_turn(
    turn: str, prompt: tuple[ContentBlock, ...], error: RpcError, message: str | None
) -> tuple[Payload, ...]:
    """Return all of a turn that no agent has seen: what was to be said, and why it was not."""
    return (
        PromptStarted(turn=turn, prompt=prompt, message=message),
        PromptFinished(turn=turn, stop_reason="cancelled", error=error),
        TurnState(turn=turn, state="idle", reason="cancelled"),
    )


class SessionTurn:
    def __init__(self, turn_id: str, clock: Clock, idle: float) -> None:
        self.id = turn_id
        self.sent = False  # the prompt is on its way to the agent
        self.stuck = False  # no sign of life came for the idle time
        self.unasked: str | None = None  # what it did without asking, where that ends it
        self.cut: CutWords | None = None  # why its host ends it
        self.answer: PromptResponse | LegationError | None = None  # the agent's
        self.end: TurnEnd | None = None
        self.running: asyncio.Task[None] | None = None  # until there is an end
        self._clock = clock
        self._idle = idle
        self._begun = clock.monotonic()
        self.cancelled = False
        self._cancelled_at = 0.0
        self._cancelling: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cancelled_by_client(self) -> bool:
        """Cancelled, and not by us, for something that the agent did or did not do."""
        return self.cancelled and not self.stuck and self.unasked is None and self.cut is None

    def cancel(self) -> None:
        self.cancelled, self._cancelled_at = True, self._clock.monotonic()
        self._cancelling.set_result(None)

    def time_left(self, heard_at: float, patience: float) -> float:
        """`patience` times the idle limit may pass from the last sign of life on, or from the turn's beginning."""
        if self.cancelled:
            return self._cancelled_at + CANCEL_GRACE - self._clock.monotonic()
        return max(self._begun, heard_at) + self._idle * patience - self._clock.monotonic()

    async def wait(self, asking: asyncio.Task[Any], seconds: float) -> None:
        """Wait for the answer, for a cancel, or for that long."""
        timer = asyncio.create_task(self._clock.sleep(seconds))
        first: set[asyncio.Future[Any]] = {asking, timer}
        if not self.cancelled:
            first.add(self._cancelling)
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()


KEPT = 1000  # of a turn
KEPT_BYTES = 4 * 1024 * 1024  # of what they said: as objects it may be thirty times as much
RESOLVED = 16  # paths of a decision whose links are followed; with more it covers nothing
TOOL_CALL_TYPES = frozenset(("tool-call", "tool-call-update"))

_OVER = frozenset(("completed", "failed"))
_WRITING = frozenset(("edit", "move", "other"))  # kinds of a permission to write
_RUNNING = frozenset(("execute", "other"))
# A shell of another folder may be anything.
_BY_SHELL: Final = re.compile(r"(?:/bin/|/usr/bin/)?(?:sh|bash|dash|zsh)[ \t]+-l?c[ \t]+(?=\S)")
# Characters of a command that is taken apart: of a long one that takes the square of its length.
LONGEST_SPLIT = 8192


# By which a call is judged, as they are spelt on the wire and here.
_JUDGED: Final = {"rawInput": "raw_input", "locations": "locations", "content": "content", "title": "title"}


class _Cuts(msgspec.Struct):
    names: tuple[str, ...] = msgspec.field(name=CUT, default=())


_read_cuts = msgspec.json.Decoder(_Cuts).decode


class ToolCalls:
    def __init__(self) -> None:
        self._calls: dict[str, ToolCallPatch] = {}  # that are not over, also of turns before
        self._over: dict[str, None] = {}
        self._lines: dict[str, str | None] = {}  # the commands of those that this turn has heard of
        self._cuts: dict[str, frozenset[str]] = {}  # what is not known in full, by the name of the call
        self._sizes: dict[str, int] = {}  # of those that are not over

    def take(self, draft: Draft) -> ToolCallPatch | None:
        """Return all that is known of the call, where this ends it: told once."""
        call = event_types.decode(draft)
        if not isinstance(call, ToolCall | ToolCallUpdate):
            return None
        name = call.tool_call_id
        self._note_cuts(call, draft)
        if call.status in _OVER:
            whole = self.whole(call)
            self._forget(name)
            known = name in self._over and isinstance(call, ToolCallUpdate)  # else a new call under an old id
            self._over[name] = None
            _forget_oldest(self._over)
            return None if known else whole
        if name in self._lines or len(self._lines) < KEPT:
            whole = self._calls[name] = self.whole(call)
            self._lines[name] = command_line(_argument(whole, "command"))
            self._over.pop(name, None)  # some agents use an id again
            self._make_room(name, len(draft.brief))
        return None

    def _make_room(self, name: str, size: int) -> None:
        """The oldest are known no more, when all of them say too much."""
        self._sizes[name] = max(self._sizes.get(name, 0), size)
        while sum(self._sizes.values()) > KEPT_BYTES and len(self._sizes) > 1:
            oldest = next(each for each in self._sizes if each != name)
            self._forget(oldest)
            self._cuts[oldest] = frozenset(_JUDGED.values())

    def _forget(self, name: str) -> None:
        self._calls.pop(name, None)
        self._lines.pop(name, None)
        self._sizes.pop(name, None)

    def _note_cuts(self, call: ToolCallPatch, draft: Draft) -> None:
        cuts = self.unseen(call)
        if draft.digest:
            cuts |= {_JUDGED[name] for name in _read_cuts(draft.digest).names if name in _JUDGED}
        if cuts:
            self._cuts[call.tool_call_id] = cuts
            _forget_oldest(self._cuts)
        else:
            self._cuts.pop(call.tool_call_id, None)

    def unseen(self, call: ToolCallPatch) -> frozenset[str]:
        """Return what a call is judged by and is not known in full, unless the call says it again (INV-E3)."""
        cuts = self._cuts.get(call.tool_call_id, frozenset())
        return frozenset(name for name in cuts if getattr(call, name) in (None, UNSET)) if cuts else cuts

    def hidden(self, call: ToolCallPatch) -> list[str]:
        """Arguments and places of a call, told whole, that are not known in full. A long output hides none."""
        cuts = self._cuts.get(call.tool_call_id, frozenset())
        outputs = {"title"} if len(call.content or ()) >= ITEMS_SHOWN else {"title", "content"}
        return sorted(cuts - outputs)

    def whole(self, call: ToolCallPatch) -> ToolCallPatch:
        """Return what is known of it, with what is new."""
        known = self._calls.get(call.tool_call_id)
        return merged(known, call) if known else call

    def about(self, path: str | None, command: str | None) -> str | None:
        """The call that runs and names that path or command."""
        line = command_line(command)
        for name, own in reversed(self._lines.items()):
            if path is not None and path in _named(self._calls[name]):
                return name
            if line is not None and own == line:
                return name
        return None

    def is_over(self, name: str) -> bool:
        return name in self._over

    def at_work(self) -> bool:
        return any(self._calls[name].status == "in_progress" for name in self._lines)

    def clear(self) -> None:
        self._lines.clear()
        while len(self._calls) > KEPT:
            self._forget(next(iter(self._calls)))


@dataclass(slots=True, eq=False)
class AskedAction:
    """Question about an action. `places` are its paths, `real` where they led when it was asked."""

    call: str | None
    turn: str | None
    kind: str
    places: frozenset[str]
    real: frozenset[str]
    commands: frozenset[str | None]
    decision: Decision | None = None
    claimed_by: str | None = None  # the tool call that it was found to be about

    @property
    def approved(self) -> bool:
        return self.decision is not None and self.decision.outcome == "approved"

    @property
    def acts(self) -> bool:
        """More than a look was asked about; a command is, whatever its agent calls it."""
        return bool(self.commands) or self.kind not in EFFECTLESS


class Decided:
    """Questions of a session and their decisions, newest last."""

    def __init__(self, calls: ToolCalls) -> None:
        self._calls = calls
        self._entries: dict[str, AskedAction] = {}
        self._terminals: dict[str, None] = {}
        self._questions: dict[str, None] = {}

    def begin(self, ask: Ask) -> None:
        paths = ask.action.paths
        self._entries[ask.id] = AskedAction(
            ask.tool_call_id,
            ask.turn,
            ask.action.kind,
            frozenset(paths),
            frozenset(map(real_path, paths)) if len(paths) <= RESOLVED else frozenset(),
            frozenset(map(command_line, ask.action.commands)),
        )
        _forget_oldest(self._entries)

    def settle(self, ask: Ask, decision: Decision) -> None:
        if ask.id in self._entries:
            self._entries[ask.id].decision = decision

    def decision(self, ask: Ask) -> Decision | None:
        entry = self._entries.get(ask.id)
        return entry.decision if entry else None

    def opened(self, terminal_id: str) -> None:
        """A terminal whose command was decided."""
        self._terminals[terminal_id] = None
        _forget_oldest(self._terminals)

    def questioned(self, call: str | None) -> None:
        """A person was asked a question, which is all that some tool calls do."""
        if call is not None:
            self._questions[call] = None
            _forget_oldest(self._questions)

    def begin_turn(self) -> None:
        """Decisions of turns before count for calls that still run, and for nothing else."""
        self._entries = {
            name: entry
            for name, entry in self._entries.items()
            if entry.decision is None or (entry.call is not None and not self._calls.is_over(entry.call))
        }

    def covers(self, action: Action, real: str | None, turn: str | None, cwd: str) -> bool:
        """Tell whether it was approved as part of its tool call (INV-E1). A command is another one in another folder,
        unless that was asked about."""
        if turn is None:
            return False
        kinds = _RUNNING if action.kind == "execute" else _WRITING
        approved = [
            each
            for each in self._entries.values()
            if each.approved
            and each.turn == turn
            and each.call is not None
            and not self._calls.is_over(each.call)
            if action.kind == "read" or each.kind in kinds
        ]
        if real is not None:
            return any(real in each.real for each in approved)
        line, folder = command_line(action.command), action.params.get("cwd")
        there = [each for each in approved if line in each.commands]
        return any(folder in (None, cwd) or real_path(str(folder)) in each.real for each in there)

    def was_asked(self, call: ToolCallPatch, action: Action, turn: str | None) -> bool:
        """INV-E2."""
        entries = [each for each in self._entries.values() if each.approved and each.acts]
        own = [each for each in entries if each.call == call.tool_call_id]
        if own and _fits(own, action):
            return True
        if any(
            each.terminal_id in self._terminals for each in call.content or () if isinstance(each, Terminal)
        ):
            return True
        name = call.tool_call_id
        if name in self._questions and not (action.command or action.paths or action.urls):
            return True
        others = [each for each in entries if each.turn == turn and each.claimed_by in (None, name)]
        if action.command is not None:
            wanted = frozenset(map(command_line, action.commands))
            found = [each for each in others if wanted <= each.commands][:1]
        else:
            found = _about(others, action.paths)
        for entry in found:
            entry.claimed_by = name
        return bool(found)


def _fits(own: list[AskedAction], action: Action) -> bool:
    """Tell whether the call did what was decided. What was not said then, or was changed by somebody, is not held
    against it."""
    if any(each.decision is not None and each.decision.params is not None for each in own):
        return True
    if action.command is not None:
        if any(not each.commands and each.kind in _RUNNING for each in own):
            return True
        commands = frozenset[str | None]().union(*(each.commands for each in own))
        return commands.issuperset(map(command_line, action.commands))
    places = frozenset[str]().union(*(each.places | each.real for each in own))
    return not places or all(path in places or real_path(path) in places for path in action.paths)


def _about(entries: list[AskedAction], paths: tuple[str, ...]) -> list[AskedAction]:
    """Return those that name the paths, where together they name all."""
    if not paths:
        return []
    wanted = set(paths)
    found = [each for each in entries if wanted & (each.places | each.real)]
    named = frozenset[str]().union(*(each.places | each.real for each in found))
    return found if wanted <= named else []


def real_path(path: str) -> str:
    """Follow its links; a path that is too long to be opened is returned as it is."""
    if len(path) > MAX_PATH:
        return path
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def command_line(command: object) -> str | None:
    """Reduce it to what the shell gets: agents ask about the line, and then have a shell run it."""
    if not isinstance(command, str):
        return None
    command = command.strip()
    begun = _BY_SHELL.match(command)
    if begun is None:
        return command
    line = command[begun.end() :]
    if len(command) > LONGEST_SPLIT:
        return line[1:-1].strip() if line[0] == line[-1] == "'" and line.count("'") == 2 else command
    try:
        words = shlex.split(line)
    except ValueError:
        return command
    return words[0].strip() if len(words) == 1 else command


def _named(call: ToolCallPatch) -> Iterable[object]:
    yield from (each.path for each in call.locations or ())
    yield from (each.path for each in call.content or () if isinstance(each, Diff))
    yield _argument(call, "path")
    yield _argument(call, "file_path")


def _argument(call: ToolCallPatch, name: str) -> object:
    return call.raw_input.get(name) if isinstance(call.raw_input, dict) else None


def _forget_oldest(kept: dict[str, Any]) -> None:
    while len(kept) > KEPT:
        del kept[next(iter(kept))]
