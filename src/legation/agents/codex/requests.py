"""What the app server of Codex asks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from legation.agents.codex.items import CommandAction, Native


class Network(Native):
    host: str
    protocol: str


class CommandAsked(Native):
    """item/commandExecution/requestApproval."""

    thread_id: str
    item_id: str
    command: str | None = None
    cwd: str | None = None
    reason: str | None = None
    kind: str = "command"  # or writeStdin
    command_actions: tuple[CommandAction, ...] | None = None
    network_approval_context: Network | None = None
    additional_permissions: object = None


class FileChangeAsked(Native):
    """item/fileChange/requestApproval. What it changes was said by the item of that id."""

    thread_id: str
    item_id: str
    reason: str | None = None
    grant_root: str | None = None


class PermissionsAsked(Native):
    """item/permissions/requestApproval."""

    thread_id: str
    item_id: str
    cwd: str
    permissions: Mapping[str, object]
    reason: str | None = None


class Option(Native):
    label: str
    description: str


class Question(Native):
    id: str
    header: str
    question: str
    options: tuple[Option, ...] | None = None


class UserInputAsked(Native):
    """item/tool/requestUserInput."""

    thread_id: str
    item_id: str
    questions: tuple[Question, ...]


class ElicitationAsked(Native):
    """mcpServer/elicitation/request: an MCP server asks, or Codex asks whether it may be called."""

    thread_id: str
    server_name: str
    mode: str
    message: str
    meta: object = msgspec.field(default=None, name="_meta")
    requested_schema: object = None
    url: str | None = None
    elicitation_id: str | None = None
