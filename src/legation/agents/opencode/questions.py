"""OpenCode's questions as forms, and their answers as OpenCode wants them: a list of labels for each question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from legation.agents.opencode.requests import QuestionInfo, QuestionRequest
from legation.wire.acp.elicitation import CreateElicitationRequest, ElicitationValue

NOBODY: Final = "Nobody can be asked here. Decide by yourself, and say what you chose."
_CUSTOM: Final = "Type your own answer, or add to what you chose above (optional)."


def form(session_id: str, request: QuestionRequest) -> CreateElicitationRequest:
    """One field for each question, and one for an answer of one's own where that is welcome."""
    fields: dict[str, Any] = {}
    for number, question in enumerate(request.questions):
        fields[_name(number)] = _field(question)
        if question.custom is not False:
            own = {"type": "string", "title": "Other", "description": _CUSTOM}
            fields[f"{_name(number)}_custom"] = own
    return CreateElicitationRequest(
        mode="form",
        message="\n".join(question.question for question in request.questions),
        requested_schema={"type": "object", "properties": fields},
        session_id=session_id,
        tool_call_id=request.tool.call_id if request.tool else None,
    )


def answers(request: QuestionRequest, content: Mapping[str, ElicitationValue] | None) -> list[list[str]]:
    given = content or {}
    return [
        [*_labels(given.get(_name(number))), *_labels(given.get(f"{_name(number)}_custom"))]
        for number in range(len(request.questions))
    ]


def unanswerable(request: QuestionRequest) -> list[list[str]]:
    return [[NOBODY] for _ in request.questions]


def _name(number: int) -> str:
    return f"question_{number}"


def _field(question: QuestionInfo) -> dict[str, Any]:
    choices = [
        {"const": option.label, "title": option.label, "description": option.description}
        for option in question.options
    ]
    head = {"title": question.header or question.question, "description": question.question}
    if not choices:
        return {"type": "string", **head}
    if question.multiple:
        return {"type": "array", **head, "items": {"anyOf": choices}}
    return {"type": "string", **head, "oneOf": choices}


def _labels(value: ElicitationValue | None) -> list[str]:
    if value is None or value == "":
        return []
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
