"""What users hold: a connection to one server. Its twin is async_connection.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from legation.client import operations
from legation.client.find import data_folder, find
from legation.client.part_file import Filter, Unchanged
from legation.client.repeat import REPEATS, Outages
from legation.client.spawn import Spawn
from legation.client.surface import Surface
from legation.client.target import Target, target
from legation.client.timeouts import DEFAULT_TIMEOUTS, Timeouts
from legation.secret import Secret

if TYPE_CHECKING:
    from legation.client.caller import Caller
    from legation.client.child import ServerChild

    _Surface = Surface[Caller]
else:
    _Surface = Surface


class How(TypedDict, total=False):
    """What every way to a server takes besides the server itself."""

    workspace: str | None  # None: the one the token belongs to
    certificate: str | None  # the only one to trust, in PEM; None: those that the system trusts
    timeouts: Timeouts
    repeats: int  # of a call that is safe to repeat, when the server cannot be reached or is busy
    outages: Outages | None  # told when what is followed waits for its server, and when that is back


class Legation(_Surface):
    """Make one with `connect`, `find` or `start`; close it, or use it in a `with`."""

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
        from legation.client.caller import Caller  # brings httpx2 with it

        at = target(url, token, workspace, certificate)
        super().__init__(Caller(at, timeouts, repeats, outages))
        self._child: ServerChild | None = None

    @classmethod
    def connect(cls, url: str, token: str | Secret, **how: Unpack[How]) -> Self:
        """To a server that runs. Makes no call: the first operation finds out whether it is there."""
        return cls(url, token, **how)

    @classmethod
    def find(cls, data_dir: Path | None = None, **how: Unpack[How]) -> Self:
        """To the `legation up` of this machine, and after a restart to the next one: at another port, if need be."""
        folder, own = data_folder(data_dir), "certificate" in how
        found = find(folder)
        how.setdefault("certificate", found.certificate)
        made = cls(found.url, found.token, **how)

        def again() -> Target:
            found = find(folder)
            certificate = how.get("certificate") if own else found.certificate
            return target(found.url, found.token, how.get("workspace"), certificate)

        made.caller.located.again = again
        return made

    @classmethod
    def start(cls, spawn: bool | Spawn = True, **how: Unpack[How]) -> Self:
        """To a server of one's own, healthy on return and stopped by `close`; with `spawn=False` as `find`."""
        if spawn is False:
            return cls.find(**how)
        from legation.client.child import ServerChild

        child = ServerChild(Spawn() if spawn is True else spawn)
        made = cls(child.url, child.token, **how)
        made._child = child
        child.start()
        return made

    @property
    def url(self) -> str:
        return self.caller.located.now.base

    def backup(
        self, path: str | Path, *, keys: bool = False, through: Callable[[], Filter] = Unchanged
    ) -> None:
        """A copy of everything the server keeps, as one file readable by its owner alone. It takes the scope `backup`.

        Prompts and what agents said can be read in it; the vault's secrets only with `keys`, or with those of the
        server. `through` makes what the bytes go through on their way into the file.
        """
        self.caller.download(operations.backup(keys), Path(path), through)

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url}>"
