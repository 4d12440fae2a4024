"""A session's log as events of sandbox-agent 0.1.11: a fold over it, whose state is small and can be copied.

INV-U1..U3 and U5 are those of `output`.
INV-U4  Nothing raises, and nothing is lost but what `SILENT` names: what has no shape of its own goes out as an item
        of kind `unknown`, what cannot be read at all as `agent.unparsed`.
INV-U6  Every item that is completed was started, once, and its deltas together are its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET

from legation.wire import event_types, jsontext
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    BooleanOption,
    CompactionSummaryChunk,
    CompactionUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    Notice,
    Plan,
    PlanFile,
    PlanItems,
    PlanMarkdown,
    PlanRemoved,
    PlanUpdate,
    SelectOption,
    SessionInfoUpdate,
    ToolCall,
    ToolCallUpdate,
    Unrecognized,
    UsageUpdate,
    UserMessageChunk,
)
from legation.wire.event_types import (
    AgentExited,
    Diagnostic,
    DiagnosticCode,
    ExtensionAnswered,
    ExtensionMessage,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SetupFacts,
    TurnState,
    UnaskedEffect,
    UnaskingMode,
)
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Event
from legation.wire.universal import shapes
from legation.wire.universal.asks import NOTHING_ASKED, Asks, AsksState
from legation.wire.universal.items import KEPT, ToolItems, ToolItemState
from legation.wire.universal.output import (
    Outbox,
    ProjectedEvent,
    ProjectedRow,
    embedded,
    json_value,
    nests_too_deep,
)
from legation.wire.universal.shapes import ItemLabel, SessionFacts
from legation.wire.universal.text import Chunk, MissingText, RecalledText, TextItems, TextState, part_of

# Updates that are no part of the conversation, in a few words; what they say whole stands beside them.


def _plan(plan: Plan) -> ItemLabel:
    done = sum(entry.status == "completed" for entry in plan.entries)
    return ItemLabel("plan", f"{done} of {len(plan.entries)} done")


def _named_plan(update: PlanUpdate) -> ItemLabel:
    match update.plan:
        case PlanItems(plan_id=name, entries=entries):
            done = sum(entry.status == "completed" for entry in entries)
            return ItemLabel("plan", f"{name}: {done} of {len(entries)} done")
        case PlanFile(plan_id=name, uri=uri):
            return ItemLabel("plan", f"{name}: {uri}")
        case PlanMarkdown(plan_id=name, content=text):
            return ItemLabel("plan", f"{name}: {text}")
    return ItemLabel("plan", None)


def _commands(update: AvailableCommandsUpdate) -> ItemLabel:
    return ItemLabel("commands", ", ".join(command.name for command in update.available_commands))


def _setup_words(facts: SetupFacts) -> list[ItemLabel]:
    words = [ItemLabel("mode", facts.modes.current_mode_id)] if facts.modes is not None else []
    return [*words, *([_config(facts)] if facts.config_options is not None else [])]


def _config(update: ConfigOptionUpdate | SetupFacts) -> ItemLabel:
    values = [
        f"{option.id}={option.current_value}"
        for option in update.config_options or ()
        if isinstance(option, SelectOption | BooleanOption)
    ]
    return ItemLabel("config", ", ".join(values))


def _info(update: SessionInfoUpdate) -> ItemLabel:
    return ItemLabel("title", update.title) if update.title is not UNSET else ItemLabel("session", None)


def _usage(update: UsageUpdate) -> ItemLabel:
    cost = f", {update.cost.amount:g} {update.cost.currency}" if update.cost else ""
    return ItemLabel("usage", f"{update.used} of {update.size} tokens{cost}")


def _session(status: SessionStatus) -> ItemLabel:
    return ItemLabel("session", f"{status.status}: {status.reason}" if status.reason else status.status)


STATES: Final[dict[type, Callable[[Any], ItemLabel]]] = {
    Plan: _plan,
    PlanUpdate: _named_plan,
    PlanRemoved: lambda update: ItemLabel("plan", f"{update.plan_id}: removed"),
    AvailableCommandsUpdate: _commands,
    CurrentModeUpdate: lambda update: ItemLabel("mode", update.current_mode_id),
    ConfigOptionUpdate: _config,
    SessionInfoUpdate: _info,
    UsageUpdate: _usage,
    Notice: lambda notice: ItemLabel(f"{notice.severity}: {notice.title}", notice.description),
    CompactionUpdate: lambda update: ItemLabel("compaction", update.status),
    SessionStatus: _session,
    UnaskingMode: lambda found: ItemLabel("mode", f"{found.put_into}: in {found.mode} it would not ask"),
    ExtensionMessage: lambda sent: ItemLabel("extension", sent.method),
    ExtensionAnswered: lambda answered: ItemLabel("extension", f"{answered.method}: answered"),
    SessionReset: lambda reset: ItemLabel("session-reset", reset.reason),
}


# A session's life: begun, in a turn or not, ended, and maybe begun again.

TAIL_LINES: Final = 50
_INT32: Final = range(-(2**31), 2**31)
_GONE: Final = frozenset(("closed", "deleted"))


class Life(msgspec.Struct, array_like=True):
    """`turn` is the one that runs; `last_turn` is the one that ran before, which does not begin again."""

    fresh: bool = True  # no event yet, or a reset
    shown_active: bool = False
    ended: bool = False
    turn: str | None = None
    last_turn: str | None = None
    exit: AgentExited | None = None

    def copy(self) -> Life:
        return msgspec.structs.replace(self)

    def begin(self, out: Outbox, *, raw: bool = False) -> None:
        self.fresh = self.ended = False
        data = shapes.SessionStarted(out.session.metadata)
        out.emit("session.started", data, synthetic=True, raw=raw)

    def begin_turn(self, out: Outbox, turn: str, *, raw: bool) -> None:
        self.turn = turn
        out.emit("turn.started", shapes.Turn("started", turn), synthetic=True, raw=raw)

    def end_turn(self, out: Outbox, *, raw: bool = False) -> None:
        """`raw`: the event says how it ended."""
        if self.turn is None:
            return
        metadata = embedded(out.cause.payload) if raw else None
        out.emit("turn.ended", shapes.Turn("ended", self.turn, metadata), synthetic=True, raw=raw)
        self.turn, self.last_turn = None, self.turn

    def ends_with(self, status: SessionStatus) -> shapes.SessionEnded | None:
        """None where it goes on: a server that stops takes its agents with it, and their sessions wait."""
        exited, self.exit = self.exit, None
        if status.status in _GONE:
            return shapes.SessionEnded("terminated", "daemon")
        how = (status.reason or "").partition(":")[0]
        if status.status != "disconnected" or how not in ("crashed", "ended"):
            return None
        if how == "ended":
            return shapes.SessionEnded("completed", "agent")
        code = exited.code if exited else None
        return shapes.SessionEnded(
            "error",
            "agent",
            message=f"the agent {status.reason}",
            exit_code=code if code is not None and code in _INT32 else None,
            stderr=_stderr(exited.stderr_tail) if exited and exited.stderr_tail else None,
        )


def _stderr(text: str) -> shapes.Stderr:
    """The log has the end of it. Where that is short it counts as all there was."""
    lines = text.splitlines()
    if len(lines) <= TAIL_LINES:
        return shapes.Stderr(truncated=False, head=text, total_lines=len(lines))
    return shapes.Stderr(truncated=True, tail="\n".join(lines[-TAIL_LINES:]))


SILENT: Final = frozenset(("turn-state", "agent-exited", "session-status"))
"""Events that may show nothing of their own: a turn's state repeats what the prompt and the asks say, an agent's
exit is told with the end of the session, and `session.started` says that the session became active."""

_OF_AGENTS: Final = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))  # what any other says is Legation's own
_UNREADABLE: Final = frozenset((DiagnosticCode.AGENT_STRAY_LINE, DiagnosticCode.AGENT_LINE_TOO_LONG))
_NO_TROUBLE: Final = frozenset(
    (
        DiagnosticCode.AGENT_SPAWN,
        DiagnosticCode.AGENT_INITIALIZED,
        DiagnosticCode.AGENT_EXIT,
        DiagnosticCode.AGENT_STDERR,
        DiagnosticCode.AGENT_RESTART_SCHEDULED,
        DiagnosticCode.AGENT_RESTART_SUPPRESSED,
        DiagnosticCode.AGENT_LATE_RESPONSE,
        DiagnosticCode.STORAGE_RECOVERED,
    )
)


class MessageNumbers(msgspec.Struct, array_like=True):
    """Numbers of the whole messages that `messages` makes of projected events. They are counted with every fold, so that
    a checkpoint is of both. `tools` are the names of the calls of this turn."""

    sequence: int = 0
    started: bool = False
    tools: dict[str, str] = {}

    def copy(self) -> MessageNumbers:
        return MessageNumbers(self.sequence, self.started, dict(self.tools))

    def count(self, projected: ProjectedEvent) -> bool:
        """Whether it is told; then `sequence` is its number."""
        if projected.type == "session.started" and (projected.cause.type == _RESET or not self.started):
            self.sequence, self.started, self.tools = shapes.floor(projected.cause.seq), True, {}
        elif projected.type == "turn.ended":
            self.tools = {}
        if projected.type in ("item.delta", "item.started"):
            return False
        data = projected.data
        failed = isinstance(data, shapes.SessionEnded) and data.reason == "error"
        told = failed or projected.type in _ALWAYS_TOLD or projected.has_raw
        self.sequence += told
        return told

    def note_name(self, item: shapes.Item) -> None:
        """Note the name of a call once it is told: its own item comes before."""
        for part in item.content:
            if isinstance(part, shapes.ItemToolCall):
                self.tools[part.call_id] = part.name
                if len(self.tools) > 2 * KEPT:  # of those before, the fold itself has forgotten the calls
                    del self.tools[next(iter(self.tools))]


_RESET: Final = SessionReset.event_type()
_ALWAYS_TOLD: Final = frozenset(
    (
        "item.completed",
        "session.started",
        "error",
        "agent.unparsed",
        "question.requested",
        "permission.requested",
    )
)

STATE_FORMAT: Final = 2
"""Of `FoldState`, and of what a fold makes of it: to be raised whenever the same log gives other numbers or other events.
Checkpoints of another format are not read."""


class FoldState(msgspec.Struct, frozen=True, array_like=True):
    """A fold between two events, but for the text of the message that is being said (INV-U8). It says nothing that is not
    in the log."""

    sequence: int
    items: int
    messages: MessageNumbers
    life: Life
    text: TextState | None
    calls: Mapping[str, ToolItemState]
    asks: AsksState


_read_state = msgspec.json.Decoder(FoldState).decode
_UNWRITABLE: Final = (*jsontext.READ_ERRORS, TypeError, OverflowError)


def encode_state(state: FoldState) -> bytes | None:
    """Encode it with a checksum. None where it would not come back as it is: then there is no checkpoint here."""
    try:
        text = _written(state)
        # Whatever an agent sent may be in a call, or in what was asked; the rest is texts and numbers.
        if (state.calls or state.asks != NOTHING_ASKED) and _decoded(text) != state:
            return None
    except _UNWRITABLE:
        return None
    return crc32(text).to_bytes(4) + text


def decode_state(encoded: bytes) -> FoldState | None:
    """None where it is damaged: whoever wants it folds from an earlier one."""
    text = encoded[4:]
    if crc32(text).to_bytes(4) != encoded[:4]:
        return None
    try:
        return _decoded(text)
    except _UNWRITABLE:
        return None


def _written(state: FoldState) -> bytes:
    try:
        return msgspec.json.encode(state)
    except (UnicodeEncodeError, OverflowError):  # half a character, a number above 64 bits
        text = json.dumps(msgspec.to_builtins(state), separators=(",", ":")).encode()
    if _decoded(text) != state:
        raise ValueError("it does not come back as it is")
    return text


def _decoded(text: bytes) -> FoldState:
    try:
        return _read_state(text)
    except jsontext.READ_ERRORS:
        return msgspec.convert(jsontext.read_leniently(text), FoldState)


class Projector:
    __slots__ = ("_asks", "_life", "_out", "_session", "_text", "_tools", "messages")

    def __init__(self, session: SessionFacts) -> None:
        self._session = session
        self._out = Outbox(session)
        self.messages = MessageNumbers()
        self._forget()

    def _forget(self) -> None:
        self._life = Life()
        self._text = TextItems()
        self._tools = ToolItems()
        self._asks = Asks()

    def copy(self) -> Projector:
        """One that goes on from here by itself."""
        other = Projector(self._session)
        other._out = self._out.copy()
        other.messages = self.messages.copy()
        other._life = self._life.copy()
        other._text = self._text.copy()
        other._tools = self._tools.copy()
        other._asks = self._asks.copy()
        return other

    def state(self) -> FoldState:
        """As it is, to be encoded at once: nothing is copied."""
        return FoldState(
            self._out.sequence,
            self._out.items,
            self.messages,
            self._life,
            self._text.state(),
            self._tools.state(),
            self._asks.state(),
        )

    @classmethod
    def restored(cls, session: SessionFacts, state: FoldState, log_seq: int) -> Projector:
        """One that goes on behind that event of the log. The state is its own from now on."""
        fold = cls(session)
        fold._out = Outbox(session, state.sequence, state.items)
        fold.messages, fold._life = state.messages, state.life
        fold._text = TextItems.restored(fold._out, state.text, log_seq)
        fold._tools, fold._asks = ToolItems(state.calls), Asks(state.asks)
        return fold

    @property
    def sequence(self) -> int:
        """The last one that was given out."""
        return self._out.sequence

    def feed(self, event: Event) -> list[ProjectedEvent]:
        """The events of one stream, in order, from its first readable one."""
        found = self._out.begin(event)
        if self._text.goes_on(self._out, event):
            return found
        self._take(event)
        for each in found:
            if self.messages.count(each) and type(each.data) is shapes.ItemEvent:
                self.messages.note_name(each.data.item)
        return found

    def feed_whole(self, event: Event) -> list[ProjectedEvent] | None:
        """As `feed`; None, and nothing is fed, where a message may end with the event of which the text is missing."""
        found = self._out.begin(event)
        if self._text.goes_on(self._out, event):
            return found
        return None if self._lacks_text_for(event) else self.feed(event)

    def feed_uncounted(self, event: Event, *, whole: bool = False) -> list[ProjectedEvent] | None:
        """As `feed`, or `feed_whole`, but for the messages: who makes them counts them."""
        found = self._out.begin(event)
        if self._text.goes_on(self._out, event):
            return found
        if whole and self._lacks_text_for(event):
            return None
        self._take(event)
        return found

    def _take(self, event: Event) -> None:
        payload = _payload(event)
        if self._life.fresh and type(payload) is not SessionReset:
            self._out.jump()
            self._life.begin(self._out)
        _TAKES.get(type(payload), Projector._state)(self, payload)

    def go_on(self, events: Sequence[Event], start: int, *, framed: bool = True) -> list[ProjectedRow]:
        """The rows of the events from there on, one each, as far as they only go on with a message: of a hundred
        events ninety-nine do. Without `raw`. What comes next is for `feed`."""
        return self._text.go_on(self._out, events, start, framed=framed)

    # Its text, which need not be there (INV-U8).

    def pass_over(self, events: Sequence[Event], start: int) -> int:
        """As `go_on`, for who wants nothing of it: how many of them there are. Their text is missing then."""
        return self._text.pass_over(self._out, events, start)

    def drop_text(self, log_seq: int) -> None:
        """Let go of the text of the message that is being said: `log_seq` is the last event that was fed."""
        self._text.drop(log_seq)

    @property
    def missing_text(self) -> MissingText | None:
        return self._text.missing

    def fill_text(self, text: RecalledText) -> None:
        self._text.fill(text)

    def _lacks_text_for(self, event: Event) -> bool:
        """Whether the message that is being said may end with that event, and its text is missing. What tells its end is
        the first row of the event."""
        if self._text.missing is None:
            return False
        payload = _payload(event)
        if isinstance(payload, Chunk):
            return not self._text.is_said_by(payload)
        return type(payload) in _MAY_END

    # The conversation.

    def _say(self, chunk: Chunk) -> None:
        self._text.say(self._out, chunk)

    def _tool_call(self, update: ToolCall | ToolCallUpdate) -> None:
        self._text.end(self._out)
        self._tools.take(self._out, update)

    # Turns.

    def _prompt(self, started: PromptStarted) -> None:
        self._end_turn()
        self._life.begin_turn(self._out, started.turn, raw=False)
        content = tuple(part_of(block) for block in started.prompt)
        self._out.whole_item("message", "user", content, native_id=started.turn, synthetic=True)

    def _prompt_finished(self, finished: PromptFinished) -> None:
        if self._life.turn is None and finished.turn != self._life.last_turn:
            self._life.turn = finished.turn  # begun before the log that is read
        if self._life.turn != finished.turn:
            self._state(finished)
            return
        self._stop_talking()
        if finished.error is not None:
            details = json_value(finished.error)
            self._out.emit("error", shapes.Error(finished.error.message, "prompt_failed", details))
        self._life.end_turn(self._out, raw=True)

    def _turn_state(self, turn: TurnState) -> None:
        """Says something new only where no prompt says it: a turn that an agent began by itself."""
        if turn.state == "idle":
            if turn.turn == self._life.turn:
                self._stop_talking()
                self._life.end_turn(self._out, raw=True)
        elif turn.turn not in (self._life.turn, self._life.last_turn):
            self._end_turn()
            self._life.begin_turn(self._out, turn.turn, raw=True)

    def _end_turn(self) -> None:
        self._stop_talking()
        self._life.end_turn(self._out)

    def _stop_talking(self) -> None:
        self._text.end(self._out)
        self._tools.end(self._out)

    # Asking.

    def _permission_asked(self, asked: PermissionAsked) -> None:
        self._text.end(self._out)
        self._tools.stand(self._out, asked.tool_call_id)
        self._asks.permission_asked(self._out, asked)

    def _permission_answered(self, answer: PermissionAnswered) -> None:
        self._asks.permission_answered(self._out, answer)

    def _unasked(self, effect: UnaskedEffect) -> None:
        """Tell it as an error: there a reader of any kind looks for what went wrong."""
        what = f"{effect.title}: done, and nobody had allowed it"
        data = shapes.Error(what, "unasked_effect", json_value(effect))
        self._out.emit("error", data, synthetic=True, raw=True)

    def _unasking(self, mode: UnaskingMode) -> None:
        if mode.put_into is not None:
            self._state(mode)
            return
        data = shapes.Error(f"in mode {mode.mode} the agent does not ask", "unasking_mode", json_value(mode))
        self._out.emit("error", data, synthetic=True, raw=True)

    def _question_asked(self, asked: QuestionAsked) -> None:
        self._text.end(self._out)
        self._asks.question_asked(self._out, asked)

    def _question_answered(self, answer: QuestionAnswered) -> None:
        self._asks.question_answered(self._out, answer)

    # The session.

    def _agent_exited(self, exited: AgentExited) -> None:
        self._life.exit = exited  # told when the session says what it means

    def _status(self, status: SessionStatus) -> None:
        life = self._life
        if status.status == "active" and not life.shown_active:
            life.shown_active = True
        elif status.status == "active" and life.ended:
            life.begin(self._out, raw=True)
        elif (end := life.ends_with(status)) is not None and not life.ended:
            self._end_turn()
            life.ended = True
            self._out.emit("session.ended", end, synthetic=True, raw=True)
        else:
            self._state(status)

    def _reset(self, reset: SessionReset) -> None:
        self._end_turn()
        self._forget()
        self._out.jump()
        self._life.begin(self._out)
        self._state(reset)

    def _diagnostic(self, found: Diagnostic) -> None:
        if found.code in _UNREADABLE:
            self._out.emit(
                "agent.unparsed", shapes.Unparsed(found.message, found.code), synthetic=True, raw=True
            )
        elif found.code in _NO_TROUBLE:
            self._show("status", shapes.ItemLabel(found.code, found.message))
        else:
            data = shapes.Error(found.message, found.code, json_value(found.data) if found.data else None)
            self._out.emit("error", data, synthetic=True, raw=True)

    # What has no shape of its own.

    def _own_step(self, payload: Plan | PlanUpdate | PlanRemoved | CompactionUpdate) -> None:
        """One that stands between what is said before and after."""
        self._text.end(self._out)
        self._state(payload)

    def _state(self, payload: object) -> None:
        words = STATES.get(type(payload))
        if words is None:
            self._show("unknown")
        else:
            self._show("status", words(payload))

    def _setup(self, facts: SetupFacts) -> None:
        self._show("status", *_setup_words(facts))

    def _unrecognized(self, update: Unrecognized) -> None:
        self._text.end(self._out)
        if update.value is not None:
            self._show("unknown")
            return
        digest = hashlib.sha256(update.raw).hexdigest()
        data = shapes.Unparsed("the text is no JSON that can be read", "session/update", digest)
        self._out.emit("agent.unparsed", data, synthetic=True, raw=True)

    def _show(self, kind: shapes.ItemKind, *words: shapes.Part) -> None:
        whole = shapes.ItemJson(embedded(self._out.cause.brief))
        role: shapes.Role = "assistant" if kind == "unknown" else "system"
        cause = self._out.cause.type
        self._out.whole_item(kind, role, (*words, whole), native_id=cause, synthetic=cause not in _OF_AGENTS)


def _payload(event: Event) -> object:
    return Unrecognized(event.brief) if nests_too_deep(event.brief) else event_types.decode(event)


_MAY_END: Final = frozenset(
    (
        ToolCall,
        ToolCallUpdate,
        Plan,
        PlanUpdate,
        PlanRemoved,
        CompactionUpdate,
        PromptStarted,
        PromptFinished,
        TurnState,
        PermissionAsked,
        QuestionAsked,
        SessionStatus,
        SessionReset,
        Unrecognized,
    )
)
_TAKES: Final[dict[type, Callable[[Projector, Any], None]]] = {
    AgentMessageChunk: Projector._say,
    AgentThoughtChunk: Projector._say,
    UserMessageChunk: Projector._say,
    CompactionSummaryChunk: Projector._say,
    ToolCall: Projector._tool_call,
    ToolCallUpdate: Projector._tool_call,
    Plan: Projector._own_step,
    PlanUpdate: Projector._own_step,
    PlanRemoved: Projector._own_step,
    CompactionUpdate: Projector._own_step,
    PromptStarted: Projector._prompt,
    PromptFinished: Projector._prompt_finished,
    TurnState: Projector._turn_state,
    PermissionAsked: Projector._permission_asked,
    PermissionAnswered: Projector._permission_answered,
    UnaskedEffect: Projector._unasked,
    UnaskingMode: Projector._unasking,
    QuestionAsked: Projector._question_asked,
    QuestionAnswered: Projector._question_answered,
    AgentExited: Projector._agent_exited,
    SessionStatus: Projector._status,
    SessionReset: Projector._reset,
    SetupFacts: Projector._setup,
    Diagnostic: Projector._diagnostic,
    Unrecognized: Projector._unrecognized,
}
