"""`AskUserQuestion` as an ACP form, and the filled-in form as the tool's answers."""

from __future__ import annotations

from collections.abc import Mapping

from legation.agents.answers import READ_ERRORS, fit
from legation.agents.claude.messages import Native
from legation.wire.acp.elicitation import CreateElicitationRequest, ElicitationValue


class Option(Native):
    label: str
    description: str = ""


class Question(Native):
    question: str
    header: str = ""
    options: tuple[Option, ...] = ()
    multiSelect: bool = False  # noqa: N815 - spelt as on the wire


class Asked(Native):
    questions: tuple[Question, ...]


def read_questions(given: object) -> tuple[Question, ...]:
    """Empty where the call asks nothing that can be shown."""
    try:
        return fit(given, Asked).questions
    except READ_ERRORS:
        return ()


def form(questions: tuple[Question, ...], session_id: str, call_id: str) -> CreateElicitationRequest:
    """One field for each question; an answer in one's own words fits as well."""
    alone = questions[0].question if len(questions) == 1 else "Claude Code has some questions."
    properties = {_name(number): _field(each) for number, each in enumerate(questions)}
    return CreateElicitationRequest(
        mode="form",
        message=alone,
        requested_schema={"type": "object", "properties": properties, "required": list(properties)},
        session_id=session_id,
        tool_call_id=call_id,
    )


def answers(
    questions: tuple[Question, ...], content: Mapping[str, ElicitationValue] | None
) -> dict[str, str]:
    """By the question's own text, as the tool wants them."""
    given = content or {}
    return {
        each.question: _said(given[_name(number)])
        for number, each in enumerate(questions)
        if _name(number) in given
    }


def _name(number: int) -> str:
    return f"question_{number}"


def _field(question: Question) -> dict[str, object]:
    choices = [
        {"const": each.label, "title": each.label, "description": each.description}
        for each in question.options
    ]
    about = {"title": question.header or question.question, "description": question.question}
    if question.multiSelect:
        return {"type": "array", **about, "items": {"anyOf": choices}}
    return {"type": "string", **about, **({"oneOf": choices} if choices else {})}


def _said(value: ElicitationValue) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value)
