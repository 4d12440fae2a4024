"""What a host has told on its own stream."""

from collections.abc import Callable
from typing import TypeVar

from legation.host.host import AcpHost
from legation.wire import event_types
from legation.wire.event_types import AgentUpdated, Diagnostic
from legation.wire.events import Event

P = TypeVar("P")


async def events_of(host: AcpHost) -> list[Event]:
    stream = await host.log.stream("host")
    return [event async for event in stream.subscribe(follow=False)]


async def told(host: AcpHost, kind: type[P]) -> list[P]:
    payloads = [event_types.decode(event) for event in await events_of(host)]
    return [payload for payload in payloads if isinstance(payload, kind)]


async def codes(host: AcpHost) -> list[str]:
    return [diagnostic.code for diagnostic in await told(host, Diagnostic)]


async def until_told(host: AcpHost, kind: type[P], matches: Callable[[P], bool], count: int = 1) -> P:
    """The `count`-th that matches, from the beginning."""
    async for event in host.events():
        payload = event_types.decode(event)
        if isinstance(payload, kind) and matches(payload):
            count -= 1
            if not count:
                return payload
    raise AssertionError("the stream ended first")


async def until_code(host: AcpHost, code: str, count: int = 1) -> Diagnostic:
    return await until_told(host, Diagnostic, lambda found: found.code == code, count)


async def until_agent(host: AcpHost, status: str, count: int = 1) -> AgentUpdated:
    return await until_told(host, AgentUpdated, lambda found: found.status == status, count)
