"""A tool behind the door: what carries out a call after it was decided, whatever it speaks to its other side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from legation.approvals.policy.facts import Facts
from legation.approvals.request import Returned, Token
from legation.wire.acp.toolcall import ToolCall, ToolKind
from legation.wire.action import Action, Sort


class Tool(Protocol):
    @property
    def name(self) -> str:
        """Exact; of a server with several tools it is `server.tool`."""

    @property
    def kind(self) -> ToolKind:
        """ACP's, for policies."""

    @property
    def folder(self) -> str | None:
        """Where its relative paths begin."""

    @property
    def arguments(self) -> Mapping[str, Sort]:
        """What its owner says that they are, by name."""

    async def call(self, action: Action, token: Token) -> Returned:
        """The effect, once. A failure is a `Returned` too; words of the tool are in it without our secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Returned):
    """`tool_status` is what the tool itself answered with, where it did."""

    tool_status: int | None = None


def action_for(agent: str, tool: str, kind: ToolKind, params: Mapping[str, object], facts: Facts) -> Action:
    """The same reading of paths, commands and addresses as of any agent's tool call. Without a folder they begin at `/`."""
    call = ToolCall(tool_call_id="", title="", name=tool, kind=kind, raw_input=params)
    return Action.from_tool_call(agent, call, cwd=facts.cwd or "/", home=facts.home, declared=facts.declared)


def facts_of(tool: Tool | None, folder: str | None = None) -> Facts:
    """Of a call of the tool; `folder` in place of its own. None: nobody knows it here."""
    place = folder or (tool.folder if tool else None)
    return Facts(workspace=place, cwd=place, declared=tool.arguments if tool else {})
