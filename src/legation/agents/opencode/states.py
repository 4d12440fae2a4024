"""What a session is and does: told as events, and where it is asked for."""

from __future__ import annotations

from typing import TypeAlias

from legation.agents.opencode.shape import Native


class Busy(Native, tag="busy", tag_field="type"):
    pass


class Idle(Native, tag="idle", tag_field="type"):
    pass


class Retry(Native, tag="retry", tag_field="type"):
    """It asks the model again at `next`, in milliseconds since the epoch."""

    attempt: int
    message: str
    next: int


Status: TypeAlias = Busy | Idle | Retry


class SessionModel(Native):
    id: str
    provider_id: str
    variant: str | None = None


class SessionTime(Native):
    created: int
    updated: int


class SessionInfo(Native):
    id: str
    directory: str
    title: str
    time: SessionTime
    parent_id: str | None = None
    cost: float | None = None
    agent: str | None = None
    model: SessionModel | None = None


class Todo(Native):
    content: str
    status: str
    priority: str
