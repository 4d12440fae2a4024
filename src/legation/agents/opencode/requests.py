"""What OpenCode waits for: told as events, and listed while it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from legation.agents.opencode.shape import Native


class ToolRef(Native):
    message_id: str
    call_id: str


class PermissionRequest(Native):
    id: str
    session_id: str
    permission: str
    patterns: tuple[str, ...]
    metadata: Mapping[str, Any]
    tool: ToolRef | None = None


class QuestionOption(Native):
    label: str
    description: str


class QuestionInfo(Native):
    question: str
    header: str
    options: tuple[QuestionOption, ...]
    multiple: bool | None = None
    custom: bool | None = None


class QuestionRequest(Native):
    id: str
    session_id: str
    questions: tuple[QuestionInfo, ...]
    tool: ToolRef | None = None
