"""Tool calls in no agent's words: what the model wants done, for a script that any agent can play.

The request that takes the step says which tools there are; `tool_calls` puts these into the name and the arguments of one
of them. A call by the agent's own name is `script.ToolCall`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import uuid4

TodoStatus: TypeAlias = Literal["pending", "in_progress", "completed"]


def new_call_id() -> str:
    return f"toolu_{uuid4().hex[:20]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    id: str = field(default_factory=new_call_id)


@dataclass(frozen=True, slots=True)
class WriteFile(_Call):
    """A relative `path` is below the working directory that the request names."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class ReadFile(_Call):
    path: str


@dataclass(frozen=True, slots=True)
class EditFile(_Call):
    """`old` becomes `new`. Give whole lines: an agent that edits by patches has nothing smaller."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RunShell(_Call):
    """`unconfined` asks for it outside the agent's own sandbox, where the agent has a way to ask for that."""

    command: str
    unconfined: bool = False


@dataclass(frozen=True, slots=True)
class AskUser(_Call):
    question: str
    options: tuple[str, ...]
    header: str = "Question"
    multiple: bool = False


@dataclass(frozen=True, slots=True)
class ExitPlan(_Call):
    """The plan is ready. An agent that takes plans as text in the answer gets it so."""

    plan: str


@dataclass(frozen=True, slots=True)
class Todo(_Call):
    """The whole list: what is to be done, and how far it is."""

    items: tuple[tuple[str, TodoStatus], ...]


@dataclass(frozen=True, slots=True)
class SubAgent(_Call):
    prompt: str


@dataclass(frozen=True, slots=True)
class Mcp(_Call):
    """A tool of an MCP server, however the agent names it."""

    server: str
    tool: str
    args: Mapping[str, object] = field(default_factory=dict)


Tool: TypeAlias = WriteFile | ReadFile | EditFile | RunShell | AskUser | ExitPlan | Todo | SubAgent | Mcp
