"""The tools that agents can call through this server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from legation.errors import NotFound
from legation.gateway.http_spec import HttpSpec
from legation.gateway.tool import Tool
from legation.gateway.traceids import TraceIds
from legation.redact import Redactor

if TYPE_CHECKING:
    import httpx2

    from legation.secret import Secret


class Toolbox:
    """`async with` it, for as long as tools are called; at its end the connections to them are closed."""

    def __init__(self, specs: list[HttpSpec], redactor: Redactor) -> None:
        self._specs = specs
        self._redactor = redactor
        self._tools: dict[str, Tool] = {}
        self._transport: httpx2.AsyncBaseTransport | None = None
        self.trace_ids = TraceIds()

    @classmethod
    def load(cls, path: Path | None, environ: Mapping[str, str]) -> Toolbox:
        """Raises ConfigInvalid with every problem. Without a file there are no tools, and every call is 404."""
        redactor = Redactor()
        if path is None:
            return cls([], redactor)
        from legation.gateway.toolfile import read_tools  # only who has tools reads YAML

        return cls(read_tools(path, environ, redactor), redactor)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._specs)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Of all headers: what no log may show."""
        return tuple({secret for spec in self._specs for secret in spec.secrets})

    async def __aenter__(self) -> Self:
        if self._specs:
            from legation.gateway.http_tool import HttpTool, new_transport  # importing httpx2 is slow

            self._transport = transport = new_transport()
            self._tools = {spec.name: HttpTool(spec, transport, self._redactor) for spec in self._specs}
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._tools = {}
        if self._transport is not None:
            await self._transport.aclose()

    def get(self, name: str) -> Tool | None:
        """By its exact name."""
        return self._tools.get(name)

    def find(self, name: str) -> Tool:
        if (tool := self._tools.get(name)) is None:
            raise NotFound(
                "cannot find the tool; check its name, or add it to the file of the setting `tools`"
            )
        return tool
