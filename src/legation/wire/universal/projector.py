"""A session's log as events of sandbox-agent 0.1.11: a fold over it, whose state is small and can be copied.

INV-U1..U3 and U5 are those of `output`.
INV-U4  Nothing raises, and nothing is lost but what `SILENT` names: what has no shape of its own goes out as an item
        of kind `unknown`, what cannot be read at all as `agent.unparsed`.
INV-U6  Every item that is completed was started, once, and its deltas together are its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from legation.wire import event_types
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
from legation.wire.api.sessions import ALWAYS
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
from legation.wire.universal.items import Chunk, TextItems, ToolItems, part_of
from legation.wire.universal.output import (
    Outbox,
    ProjectedEvent,
    ProjectedRow,
    embedded,
    json_text,
    json_value,
    nests_too_deep,
)
from legation.wire.universal.shapes import ItemLabel, SessionFacts

# Permissions and questions: asked, and answered by the same id.

# A question's form as 0.1.11 can show it: one prompt, one list of options; and its answer as one text.
#
# The fields of a form are asked in their order: `answers[n]` of a reply is about the nth.

_BOOLEAN = (("Yes", True), ("No", False))


class FormChoice(msgspec.Struct, frozen=True):
    label: str
    value: object


class FormField(msgspec.Struct, frozen=True):
    """`type` is JSON Schema's. With `choices`, only their values are valid; `many` of them at once where it says so."""

    name: str
    title: str
    type: str
    description: str | None = None
    choices: tuple[FormChoice, ...] = ()
    many: bool = False


def fields_of(schema: Mapping[str, object] | None) -> tuple[FormField, ...]:
    """The fields that an agent's schema asks for, as far as it can be read."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return ()
    return tuple(_field(str(name), each) for name, each in properties.items() if isinstance(each, Mapping))


def _asked_question(question: QuestionAsked) -> shapes.Question:
    fields = fields_of(question.requested_schema)
    return shapes.Question(question.id, _prompt(question, fields), _options(fields), None, "requested")


def _answered_question(asked: shapes.Question | None, answer: QuestionAnswered) -> shapes.Question:
    """`asked` is None where the question is not in the log that was read."""
    accepted = answer.outcome == "accepted"
    return shapes.Question(
        answer.id,
        asked.prompt if asked else "",
        asked.options if asked else (),
        _response(answer.content) if accepted else None,
        "answered" if accepted else "rejected",
    )


def _field(name: str, schema: Mapping[str, object]) -> FormField:
    type_ = str(schema.get("type", "string"))
    items = schema.get("items")
    many = type_ == "array"
    described = schema.get("description")
    return FormField(
        name=name,
        title=str(schema.get("title") or name),
        type=type_,
        description=described if isinstance(described, str) else None,
        choices=_choices(items if many and isinstance(items, Mapping) else schema),
        many=many,
    )


def _choices(schema: Mapping[str, object]) -> tuple[FormChoice, ...]:
    for key in ("oneOf", "anyOf"):
        listed = schema.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            named = [each for each in listed if isinstance(each, Mapping) and "const" in each]
            return tuple(FormChoice(str(each.get("title") or each["const"]), each["const"]) for each in named)
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        names = schema.get("enumNames")
        labels = names if isinstance(names, Sequence) and len(names) == len(values) else values
        return tuple(FormChoice(str(label), value) for label, value in zip(labels, values, strict=True))
    if schema.get("type") == "boolean":
        return tuple(FormChoice(label, value) for label, value in _BOOLEAN)
    return ()


def _prompt(question: QuestionAsked, fields: tuple[FormField, ...]) -> str:
    """The message; after it the page to visit, or what there is to fill in where that is more than one choice."""
    lines = [question.message]
    if question.url is not None:
        lines.append(question.url)
    if len(fields) > 1 or (fields and not fields[0].choices):
        lines += [_described(field) for field in fields]
    return "\n".join(lines)


def _described(field: FormField) -> str:
    kind = " | ".join(choice.label for choice in field.choices) or field.type
    about = f": {field.description}" if field.description else ""
    return f"- {field.title} ({kind}){about}"


def _options(fields: tuple[FormField, ...]) -> tuple[str, ...]:
    """The options of the one field; beside it there may be room for words of one's own, as agents name it."""
    first, *others = fields or (None,)
    if first is None or any(other.name != f"{first.name}_custom" for other in others):
        return ()
    return tuple(choice.label for choice in first.choices)


def _response(content: Mapping[str, object] | None) -> str | None:
    """The one value as text; several as JSON."""
    if not content:
        return None
    values = list(content.values())
    if len(values) > 1:
        return json_text(content)
    value = values[0]
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return value if isinstance(value, str) else json_text(value)


_GRANT: Final = "grant:"  # what a grant's own approvals are decided by


class _AskedPermission(msgspec.Struct, frozen=True):
    """A permission that was asked for: what its answer must say again, and which options would allow it for ever."""

    tool: str
    for_ever: tuple[str, ...] = ()


_UNSEEN: Final = _AskedPermission("other")


class Asks:
    __slots__ = ("_permissions", "_questions")

    def __init__(self) -> None:
        self._permissions: dict[str, _AskedPermission] = {}
        self._questions: dict[str, shapes.Question] = {}

    def copy(self) -> Asks:
        other = Asks()
        other._permissions, other._questions = dict(self._permissions), dict(self._questions)
        return other

    def permission_asked(self, out: Outbox, asked: PermissionAsked) -> None:
        for_ever = tuple(each.option_id for each in asked.options if each.kind == "allow_always")
        self._permissions[asked.id] = _AskedPermission(asked.action.tool, for_ever)
        data = shapes.Permission(asked.id, asked.action.tool, "requested", embedded(out.cause.payload))
        out.emit("permission.requested", data, raw=True)

    def permission_answered(self, out: Outbox, answer: PermissionAnswered) -> None:
        asked = self._permissions.pop(answer.id, _UNSEEN)
        data = shapes.Permission(answer.id, asked.tool, _status(answer, asked), embedded(out.cause.payload))
        out.emit("permission.resolved", data, synthetic=True, raw=True)

    def question_asked(self, out: Outbox, asked: QuestionAsked) -> None:
        data = self._questions[asked.id] = _asked_question(asked)
        out.emit("question.requested", data, raw=True)

    def question_answered(self, out: Outbox, answer: QuestionAnswered) -> None:
        data = _answered_question(self._questions.pop(answer.id, None), answer)
        out.emit("question.resolved", data, synthetic=True, raw=True)


def _status(answer: PermissionAnswered, asked: _AskedPermission) -> shapes.PermissionStatus:
    """A refusal is any end that is no yes: silence, a cancelled turn."""
    if answer.outcome != "approved":
        return "reject"
    for_ever = answer.option_id in asked.for_ever or answer.by.startswith(_GRANT) or answer.message == ALWAYS
    return "accept_for_session" if for_ever else "accept"


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


class Life(msgspec.Struct):
    """`turn` is the one that runs; `last_turn` is the one that ran before, which does not begin again."""

    session: SessionFacts
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
        data = shapes.SessionStarted(self.session.metadata)
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


class Projector:
    __slots__ = ("_asks", "_life", "_out", "_session", "_text", "_tools")

    def __init__(self, session: SessionFacts) -> None:
        self._session = session
        self._out = Outbox(session)
        self._forget()

    def _forget(self) -> None:
        self._life = Life(self._session)
        self._text = TextItems()
        self._tools = ToolItems()
        self._asks = Asks()

    def copy(self) -> Projector:
        """One that goes on from here by itself."""
        other = Projector(self._session)
        other._out = self._out.copy()
        other._life = self._life.copy()
        other._text = self._text.copy()
        other._tools = self._tools.copy()
        other._asks = self._asks.copy()
        return other

    @property
    def sequence(self) -> int:
        """The last one that was given out."""
        return self._out.sequence

    @property
    def held(self) -> int:
        """Bytes, about, of what it remembers of open calls."""
        return self._tools.held

    def feed(self, event: Event) -> list[ProjectedEvent]:
        """The events of one stream, in order, from its first readable one."""
        found = self._out.begin(event)
        if self._text.goes_on(self._out, event):
            return found
        payload = Unrecognized(event.brief) if nests_too_deep(event.brief) else event_types.decode(event)
        if self._life.fresh and type(payload) is not SessionReset:
            self._out.jump()
            self._life.begin(self._out)
        _TAKES.get(type(payload), Projector._state)(self, payload)
        return found

    def go_on(self, events: Sequence[Event], start: int) -> list[ProjectedRow]:
        """The frames of the events from there on, one each, as far as they only go on with a message: of a hundred
        events ninety-nine do. Without `raw`. What comes next is for `feed`."""
        return self._text.go_on(self._out, events, start)

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
