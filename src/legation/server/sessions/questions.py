"""Questions of agents: they wait in the session until somebody answers over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from legation.errors import InvalidParams
from legation.wire.acp.elicitation import (
    CreateElicitationRequest,
    CreateElicitationResponse,
    ElicitationValue,
)
from legation.wire.universal.embedded import json_text
from legation.wire.universal.questions import Field, fields_of

REJECTED: Final = CreateElicitationResponse(action="decline")


class WaitingQuestions:
    """A handler that never answers: somebody's reply does, or the time is over."""

    modes: Final = frozenset(("form", "url"))

    async def ask(self, _request: CreateElicitationRequest) -> CreateElicitationResponse:
        never: asyncio.Future[CreateElicitationResponse] = asyncio.get_running_loop().create_future()
        return await never


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
            content[field.name] = _value(field, given)
        elif field.name in needed:
            _refuse(f"field {number + 1} is required")
    return CreateElicitationResponse(action="accept", content=content)


def _value(field: Field, given: Sequence[str]) -> ElicitationValue:
    if field.many:
        return tuple(str(_one(field, text)) for text in given)
    if len(given) > 1:
        _refuse(f"{field.title!r} takes one answer")
    return _one(field, given[0])


def _one(field: Field, text: str) -> ElicitationValue:
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
