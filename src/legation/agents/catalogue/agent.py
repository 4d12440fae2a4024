"""What is known of an agent here and now, without starting it."""

from __future__ import annotations

from typing import Literal

import msgspec

from legation.agents.catalogue.found import How
from legation.agents.driver import DriverName

SignInState = Literal["not needed", "signed in", "key", "signed out", "unknown"]
"""`key`: one of its variables is set here. `unknown`: it keeps its sign-in where it cannot be told."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """`how` is None for what is not on this machine. `credentials` says which are set, never to what.

    `problem` says why it cannot be started, and what to do; None: it can.
    """

    name: str
    title: str
    how: How | None
    version: str | None
    wanted: str | None
    path: str | None
    driver: DriverName
    command: tuple[str, ...]
    env: dict[str, str]
    aliases: tuple[str, ...]
    credentials: dict[str, bool]
    sign_in: SignInState
    home: str
    problem: str | None

    @property
    def ready(self) -> bool:
        return self.problem is None

    @property
    def outdated(self) -> bool:
        return self.how == "installed" and self.wanted is not None and self.version != self.wanted
