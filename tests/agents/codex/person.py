"""Somebody who is asked, and the question that the scripted model has Codex ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from legation.testing.model import ToolCall
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse

BLUE = CreateElicitationResponse(action="accept", content={"colour": "Blue"})
QUESTION = ToolCall(
    "request_user_input",
    {
        "questions": [
            {
                "id": "colour",
                "header": "Colour",
                "question": "Which colour?",
                "options": [
                    {"label": "Red", "description": "like a rose"},
                    {"label": "Blue", "description": "like the sky"},
                ],
            }
        ]
    },
)


@dataclass
class Person:
    answer: CreateElicitationResponse
    asked: list[CreateElicitationRequest] = field(default_factory=list)
    modes: frozenset[str] = frozenset(("form",))

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        self.asked.append(request)
        return self.answer
