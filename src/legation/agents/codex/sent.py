"""What the app server of Codex is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Sent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is sent to Codex."""


class ThreadSettings(Sent):
    """What thread/start, thread/resume and thread/fork have in common."""

    cwd: str
    approval_policy: str
    approvals_reviewer: str
    sandbox: str
    config: Mapping[str, object]
    model: str | None = None
    model_provider: str | None = None
    runtime_workspace_roots: tuple[str, ...] | None = None


class OldThread(ThreadSettings, kw_only=True):
    """thread/resume, thread/fork."""

    thread_id: str
    exclude_turns: bool = False


class ModeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without instructions of ours Codex has its own for the mode."""

    model: str
    reasoning_effort: str | None = None
    developer_instructions: str | None = None


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    settings: ModeSettings


UserInput: TypeAlias = Mapping[str, object]


class TurnStart(Sent):
    thread_id: str
    input: tuple[UserInput, ...]
    collaboration_mode: Mode | None = None


class TurnSteer(Sent):
    thread_id: str
    expected_turn_id: str
    input: tuple[UserInput, ...]


class TurnInterrupt(Sent):
    thread_id: str
    turn_id: str


class ThreadOf(Sent):
    """thread/unsubscribe, thread/delete, thread/read, thread/backgroundTerminals/clean."""

    thread_id: str


class ThreadList(Sent):
    model_providers: tuple[str, ...]
    cwd: str | None = None
    cursor: str | None = None
    limit: int | None = None


class ItemList(Sent):
    thread_id: str
    sort_direction: str
    cursor: str | None = None
    limit: int | None = None
