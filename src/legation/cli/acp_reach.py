"""The server behind `legation acp`: the one that is named, the one of this machine, or one of our own."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from legation.client.target import Target, find, target
from legation.errors import ConfigInvalid, LegationError, Unavailable
from legation.settings import Settings, variable

if TYPE_CHECKING:
    from legation.client.child import ServerChild

TRIES: Final = 3  # of two that start at once, one finds the other's server
PAUSE: Final = 0.5  # seconds before another try: the other server's time to be found
START: Final = 60.0  # seconds for a server of our own to become healthy: its time


class Reach:
    """`with Reach(...)`: at its end a server of our own is stopped. Blocks."""

    def __init__(self, settings: Settings, workspace: str | None) -> None:
        self._settings = settings
        self._workspace = workspace
        self._child: ServerChild | None = None

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def is_own(self) -> bool:
        """Whether the last one was started here."""
        return self._child is not None

    def look(self) -> Target:
        """Where the server is now, and as whom; Unavailable where there is none. Starts none."""
        settings = self._settings
        if settings.url is not None:
            if settings.token is None:
                raise ConfigInvalid(f"cannot talk to {settings.url} without a token; set {variable('token')}")
            return target(settings.url, settings.token, self._workspace)
        found = find(settings.data_dir)
        return target(found.url, found.token, self._workspace, found.certificate)

    def __call__(self) -> Target:
        """As `look`; where there is none, one is started."""
        for attempt in range(TRIES):
            try:
                return self.look()
            except Unavailable:
                pass
            try:
                return self._start()
            except LegationError as error:
                if attempt == TRIES - 1:
                    raise
                print(f"legation: {error.message}; trying again", file=sys.stderr)
                time.sleep(PAUSE)
        raise Unavailable("cannot reach a Legation here; start one with `legation up`")

    def _start(self) -> Target:
        from legation.client.child import ServerChild
        from legation.client.target import Spawn

        self._stop()
        print("legation: no Legation runs here; one is started, and ends with this", file=sys.stderr)
        child = ServerChild(Spawn(data_dir=self._settings.data_dir, wait=START))
        child.start()
        self._child = child
        return target(child.url, child.token, self._workspace)

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()
