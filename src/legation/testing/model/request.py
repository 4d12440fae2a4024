"""What an agent asked of the model, in words that do not depend on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent tells the model about a tool call."""

    id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str
    tool_results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """`body` is the whole of it as it came. The representation shows no header: one of them is a key."""

    path: str
    model: str
    stream: bool
    tools: tuple[str, ...]
    system: str = field(repr=False)
    messages: tuple[Message, ...] = field(repr=False)
    schema: Mapping[str, object] | None = field(repr=False)  # which the reply must fit, if any
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, object] = field(repr=False)

    @property
    def prompt(self) -> str:
        """All that the user side said since the model spoke last."""
        return "\n".join(message.text for message in self._newest() if message.role == "user")

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Those since the model spoke last."""
        return tuple(result for message in self._newest() for result in message.tool_results)

    def mentions(self, text: str) -> bool:
        """Whether any message of the conversation has it, the system's aside."""
        return any(text in message.text for message in self.messages if message.role != "system")

    def _newest(self) -> tuple[Message, ...]:
        spoke = [place for place, message in enumerate(self.messages) if message.role == "assistant"]
        return self.messages[spoke[-1] + 1 :] if spoke else self.messages
