"""What a turn asks, and whether it asked: the gate's questions as permissions, its calls held against them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from legation.agents.amp import tools
from legation.agents.amp.options import Flags
from legation.agents.amp.permissions import Gate, Question
from legation.agents.claude.messages import UserBody
from legation.agents.native import NativeAgent, Permission
from legation.errors import AgentError
from legation.ids import new_id


class Asking:
    """`calls` are those that the stream told: the name and the arguments of each, by its id."""

    def __init__(self, agent: NativeAgent, session_id: str, calls: Mapping[str, tuple[str, object]]) -> None:
        self._agent = agent
        self._session = session_id
        self._calls = calls
        self._gate: Gate | None = None

    def gate_at(self, folder: Path) -> Gate:
        self._gate = Gate(folder, self._decide, self._agent.refused_permission)
        return self._gate

    def _decide(self, question: Question) -> asyncio.Task[Permission]:
        call = question.id or self._announced(question)
        about = tools.described(call, question.tool, question.input)
        return self._agent.ask_permission(self._session, about)

    def _announced(self, question: Question) -> str:
        """The call of its stream that it asks about, where it does not say which."""
        for call, about in reversed(tuple(self._calls.items())):
            if about == (question.tool, question.input):
                return call
        return new_id("call")

    def ungated(self, told: UserBody) -> str:
        """The tool that was run on this machine and not asked about; empty where there is none."""
        for block in told.content:
            if isinstance(block, str) or block.type != "tool_result" or block.is_error:
                continue
            name, _ = self._calls.get(block.tool_use_id, ("", None))
            if tools.is_local(name) and not self._was_asked(block.tool_use_id, name):
                return name
        return ""

    def _was_asked(self, call: str, name: str) -> bool:
        gate = self._gate
        return gate is not None and (call in gate.asked or name in gate.asked_tools)


def must_be_gated(name: str, flags: Flags) -> None:
    if not (flags.has_plugins or flags.has_permissions):
        raise AgentError(
            f"cannot start {name!r}: this version of Amp has neither plugins nor permission rules, so that nobody could"
            " decide on what it does; update it"
        )
