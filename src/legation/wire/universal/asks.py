"""Permissions and questions: asked, and answered by the same id.

A question's form is shown as 0.1.11 can show it: one prompt, one list of options; and its answer as one text. The fields
of a form are asked in their order: `answers[n]` of a reply is about the nth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from legation.errors import InvalidParams
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse, ElicitationValue
from legation.wire.api.sessions import ALWAYS
from legation.wire.event_types import PermissionAnswered, PermissionAsked, QuestionAnswered, QuestionAsked
from legation.wire.universal import shapes
from legation.wire.universal.output import Outbox, embedded, json_text

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


def answer_to(asked: CreateElicitationRequest, answers: Sequence[Sequence[str]]) -> CreateElicitationResponse:
    """The nth list is about the nth field of the form; an empty one leaves it out."""
    if asked.mode != "form":
        return CreateElicitationResponse(action="accept")
    fields = fields_of(asked.requested_schema)
    if len(answers) > len(fields):
        _refuse(f"it has {len(fields)} fields, and there are {len(answers)} answers")
    required = (asked.requested_schema or {}).get("required")
    needed = set(required) if isinstance(required, list | tuple) else set()
    content: dict[str, ElicitationValue] = {}
    for number, field in enumerate(fields):
        given = answers[number] if number < len(answers) else ()
        if given:
            content[field.name] = _given(field, given)
        elif field.name in needed:
            _refuse(f"field {number + 1} is required")
    return CreateElicitationResponse(action="accept", content=content)


def _given(field: FormField, given: Sequence[str]) -> ElicitationValue:
    if field.many:
        return tuple(str(_read(field, text)) for text in given)
    if len(given) > 1:
        _refuse(f"{field.title!r} takes one answer")
    return _read(field, given[0])


def _read(field: FormField, text: str) -> ElicitationValue:
    if field.choices:
        for choice in field.choices:
            if text in (choice.label, json_text(choice.value), choice.value):
                value = choice.value
                return value if isinstance(value, str | int | float | bool) else str(value)
        _refuse(f"{field.title!r} takes one of {', '.join(choice.label for choice in field.choices)}")
    reader = _READERS.get(field.type)
    if reader is None:
        return text
    try:
        return reader(text)
    except ValueError:
        _refuse(f"{field.title!r} takes {'a number' if reader is float else 'a whole number'}")


_READERS: Final[Mapping[str, type[int] | type[float]]] = {"integer": int, "number": float}


def _refuse(why: str) -> NoReturn:
    raise InvalidParams(f"cannot answer the question so: {why}; correct the answers")


# The approval of a plan, as a question beside the permission.

PLAN_OPTIONS: Final = ("Approve", "Reject")
_YES: Final = frozenset(("approve", "approved", "yes", "once", "accept"))


def is_plan(asked: PermissionAsked) -> bool:
    """Tell whether it is whether the agent may leave its plan and begin: Claude Code's ExitPlanMode, and what others have of it."""
    return asked.action.kind == shapes.PLAN_KIND


def plan_question(asked: PermissionAsked) -> shapes.Question:
    """Make a question of it, under the permission's own id: whichever is answered answers both."""
    plan = asked.action.params.get("plan")
    prompt = f"{asked.title}\n\n{plan}" if isinstance(plan, str) and plan else asked.title
    return shapes.Question(asked.id, prompt, PLAN_OPTIONS, None, "requested")


def approves_plan(answers: Sequence[Sequence[str]]) -> bool:
    """Read the answer to such a question. What is neither of its options is refused: it must not pass for a yes."""
    given = [text.strip().lower() for each in answers for text in each]
    if len(given) != 1 or given[0] not in _YES | {"reject", "rejected", "no"}:
        _refuse(f"a plan takes one of {', '.join(PLAN_OPTIONS)}")
    return given[0] in _YES


_GRANT: Final = "grant:"  # what a grant's own approvals are decided by


class _AskedPermission(msgspec.Struct, frozen=True):
    """A permission that was asked for: what its answer must say again, and which options would allow it for ever."""

    tool: str
    for_ever: tuple[str, ...] = ()


_UNSEEN: Final = _AskedPermission("other")


class AsksState(msgspec.Struct, frozen=True, array_like=True):
    permissions: dict[str, _AskedPermission] = {}
    questions: dict[str, shapes.Question] = {}


NOTHING_ASKED: Final = AsksState()


class Asks:
    __slots__ = ("_permissions", "_questions")

    def __init__(self, state: AsksState = NOTHING_ASKED) -> None:
        self._permissions: dict[str, _AskedPermission] = dict(state.permissions)
        self._questions: dict[str, shapes.Question] = dict(state.questions)

    def copy(self) -> Asks:
        return Asks(self.state())

    def state(self) -> AsksState:
        """As it is: nothing is copied."""
        return AsksState(self._permissions, self._questions)

    def permission_asked(self, out: Outbox, asked: PermissionAsked) -> None:
        for_ever = tuple(each.option_id for each in asked.options if each.kind == "allow_always")
        self._permissions[asked.id] = _AskedPermission(asked.action.tool, for_ever)
        data = shapes.Permission(asked.id, asked.action.tool, "requested", embedded(out.cause.payload))
        out.emit("permission.requested", data, raw=True)
        if is_plan(asked):
            question = self._questions[asked.id] = plan_question(asked)
            out.emit("question.requested", question, synthetic=True)

    def permission_answered(self, out: Outbox, answer: PermissionAnswered) -> None:
        asked = self._permissions.pop(answer.id, _UNSEEN)
        data = shapes.Permission(answer.id, asked.tool, _status(answer, asked), embedded(out.cause.payload))
        out.emit("permission.resolved", data, synthetic=True, raw=True)
        if (plan := self._questions.pop(answer.id, None)) is not None:
            approved = answer.outcome == "approved"
            said = PLAN_OPTIONS[0] if approved else PLAN_OPTIONS[1] if answer.outcome == "denied" else None
            status: shapes.QuestionStatus = "rejected" if said is None else "answered"
            out.emit("question.resolved", replace(plan, response=said, status=status), synthetic=True)

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
