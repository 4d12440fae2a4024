"""The seam between a script and the bytes of one kind of model endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import ModelRequest
from legation.testing.model.script import Cut, Failure, Pause, Reply, Stall, TooLong

Frame: TypeAlias = bytes | Pause | Stall | Cut


class Wire(Protocol):
    """Holds no state and does no I/O: it reads requests and writes answers."""

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        """The answer to what asks for no reply, such as a list of models; None where it is not that."""

    def read(self, request: HttpRequest) -> ModelRequest | None:
        """A request for a reply; None where the path is none of this wire's, ValueError where it cannot be read."""

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        """The body as it is sent, with the silences in their places."""

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        """The same without a stream."""

    def failure(self, failure: Failure | TooLong) -> HttpAnswer: ...
