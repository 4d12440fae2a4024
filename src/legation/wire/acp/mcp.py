"""MCP servers that a session is given. Values of `env` and `headers` are secrets: never log these shapes."""

from collections.abc import Mapping
from typing import TypeAlias

from legation.wire.acp.shape import Shape

McpTransport: TypeAlias = str
MCP_TRANSPORTS = ("stdio", "http", "sse")


class NameValue(Shape):
    """An environment variable or a header."""

    name: str
    value: str


class McpServer(Shape):
    """A stdio server has command, args and env, and no `type` on the wire; the others have url and headers."""

    name: str
    type: McpTransport = "stdio"
    command: str | None = None
    args: tuple[str, ...] | None = None
    env: tuple[NameValue, ...] | None = None
    url: str | None = None
    headers: tuple[NameValue, ...] | None = None

    @classmethod
    def stdio(
        cls, name: str, command: str, args: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> "McpServer":
        # The protocol requires args and env even when empty.
        return cls(name=name, command=command, args=args, env=_pairs(env))

    @classmethod
    def http(cls, name: str, url: str, headers: Mapping[str, str] | None = None) -> "McpServer":
        return cls(name=name, type="http", url=url, headers=_pairs(headers))


def _pairs(values: Mapping[str, str] | None) -> tuple[NameValue, ...]:
    return tuple(NameValue(name=name, value=value) for name, value in (values or {}).items())
