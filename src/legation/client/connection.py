"""A connection to one server: what users hold."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, TypeVar, Unpack

from legation.client.request import REPEATS, Outages
from legation.client.surface import Surface
from legation.client.target import DEFAULT_TIMEOUTS, ServerTarget, Spawn, Timeouts, data_folder, find, target
from legation.secret import Secret

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller
    from legation.client.child import ServerChild
    from legation.client.http import Caller

A = TypeVar("A", bound="Caller | AsyncCaller")


class How(TypedDict, total=False):
    """The options that every way to a server takes."""

    workspace: str | None  # None: the one the token belongs to
    certificate: str | None  # the only one to trust, in PEM; None: those that the system trusts
    timeouts: Timeouts
    repeats: int  # of a call that is safe to repeat, when the server cannot be reached or is busy
    outages: Outages | None  # told when what is followed waits for its server, and when that is back


class ServerConnection(Surface[A]):
    """A connection, sync or async: where it leads, and the server that was started for it."""

    def __init__(
        self,
        url: str,
        token: str | Secret,
        *,
        workspace: str | None = None,
        certificate: str | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        repeats: int = REPEATS,
        outages: Outages | None = None,
    ) -> None:
        at = target(url, token, workspace, certificate)
        super().__init__(self._caller_to(at, timeouts, repeats, outages))
        self._child: ServerChild | None = None

    @staticmethod
    def _caller_to(at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None) -> A:
        """Make the caller; importing it is slow, and only now is it needed."""
        raise NotImplementedError

    @classmethod
    def connect(cls, url: str, token: str | Secret, **how: Unpack[How]) -> Self:
        """Connect to a server that runs. Makes no call: the first operation finds out whether it is there."""
        return cls(url, token, **how)

    @classmethod
    def find(cls, data_dir: Path | None = None, **how: Unpack[How]) -> Self:
        """Connect to the `legation up` of this machine, and after a restart to the next one: at another port, if need be."""
        folder, own = data_folder(data_dir), "certificate" in how
        found = find(folder)
        how.setdefault("certificate", found.certificate)
        made = cls(found.url, found.token, **how)

        def again() -> ServerTarget:
            found = find(folder)
            certificate = how.get("certificate") if own else found.certificate
            return target(found.url, found.token, how.get("workspace"), certificate)

        made.caller.located.again = again
        return made

    @classmethod
    def _to_own(cls, spawn: bool | Spawn, how: How) -> Self:
        """Make a connection to a server of one's own, which does not run yet; with `spawn=False` as `find`."""
        if spawn is False:
            return cls.find(**how)
        from legation.client.child import ServerChild

        child = ServerChild(Spawn() if spawn is True else spawn)
        made = cls(child.url, child.token, **how)
        made._child = child
        return made

    @property
    def url(self) -> str:
        return self.caller.located.now.base

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url}>"


class Legation(ServerConnection["Caller"]):
    """Make one with `connect`, `find` or `start`; close it, or use it in a `with`."""

    @staticmethod
    def _caller_to(at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None) -> Caller:
        from legation.client.http import Caller  # brings httpx2 with it

        return Caller(at, timeouts, repeats, outages)

    @classmethod
    def start(cls, spawn: bool | Spawn = True, **how: Unpack[How]) -> Self:
        """Start a server of one's own, healthy on return and stopped by `close`; with `spawn=False` as `find`."""
        made = cls._to_own(spawn, how)
        if made._child is not None:
            made._child.start()
        return made

    def close(self) -> None:
        self.caller.close()
        if self._child is not None:
            self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLegation(ServerConnection["AsyncCaller"]):
    """Make one with `connect`, `find` or `start`; close it, or use it in an `async with`."""

    @staticmethod
    def _caller_to(
        at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None
    ) -> AsyncCaller:
        from legation.client.async_http import AsyncCaller  # brings httpx2 and asyncio with it

        return AsyncCaller(at, timeouts, repeats, outages)

    @classmethod
    def start(cls, spawn: bool | Spawn = True, **how: Unpack[How]) -> Self:
        """Connect to a server of one's own; with `spawn=False` as `find`.

        It starts when the `async with` is entered, and is healthy then; leaving stops it.
        """
        return cls._to_own(spawn, how)

    async def close(self) -> None:
        await self.caller.close()
        if self._child is not None:
            await self.caller.work(self._child.stop)

    async def __aenter__(self) -> Self:
        child = self._child
        if child is not None:
            try:
                await self.caller.work(child.start)
            except BaseException:  # also when this task is cancelled: the thread then gives up by itself
                child.give_up()
                await self.caller.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
