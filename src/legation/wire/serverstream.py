"""Events of a server's own stream, `server`: its life, and diagnostics of its log."""

from typing import Literal

from legation.wire.payload import Payload


class ServerStarted(Payload):
    """The server listens."""

    version: str
    mode: Literal["up", "server"]
    url: str


class ServerStopped(Payload):
    """It was told to stop, and does. After a crash this is missing."""
